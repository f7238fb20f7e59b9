// Drawing from the likeliest part of a vocabulary; the contract is `drawn` of ops/head/reference.py. Weights are whole
// numbers of 2^-40 of the largest, so that it does not matter in which order they are summed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

namespace ramet {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr double kWhole = 1099511627776.0;  // 2^40
constexpr double kLightest = -29.0;         // e to this is no whole part
constexpr size_t kFew = 256;                // put in order before more are

struct Part {
    double temperature, uniform, top_p;
    int top_k;
};

struct Kept {
    float logit;
    int id;
    int64_t weight;
};

bool heavier(const Kept& a, const Kept& b) { return a.logit > b.logit; }

// The k-th largest of n logits but one; -infinity where there are fewer.
float kth_largest(const float* logits, int n, int excluded, int k, std::vector<float>& heap) {
    heap.clear();
    for (int v = 0; v < n; ++v) {
        if (v == excluded || ((int)heap.size() == k && !(logits[v] > heap.front()))) continue;
        if ((int)heap.size() == k) std::pop_heap(heap.begin(), heap.end(), std::greater<>()), heap.pop_back();
        heap.push_back(logits[v]);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    return (int)heap.size() == k ? heap.front() : kNone;
}

// The lowest of the largest logits that weigh as much as is wanted, the first at least. Puts some of them in order.
float last_within(std::vector<Kept>& kept, double wanted) {
    float last = kept.front().logit;
    int64_t passed = 0;
    size_t begin = 0;
    for (size_t n = kFew; begin < kept.size(); n *= 8) {
        const size_t end = std::min(kept.size(), begin + n);
        const auto from = kept.begin() + begin, to = kept.begin() + end;
        if (to != kept.end()) std::nth_element(from, to, kept.end(), heavier);
        std::sort(from, to, heavier);
        if (begin == 0) last = from->logit;
        for (auto i = from; i != to; ++i) {
            if (!((double)passed < wanted)) return last;
            last = i->logit;
            passed += i->weight;
        }
        begin = end;
    }
    return last;
}

class Row {
  public:
    // The id drawn, -1 for none in a row with NaN, and how far its logit lies below the largest.
    int draw(const float* logits, int n, int excluded, const Part& part, float* below) {
        float top = kNone, sum = 0;
        for (int v = 0; v < n; ++v) {
            if (v == excluded) continue;
            top = logits[v] > top ? logits[v] : top;
            sum += logits[v] - logits[v];  // NaN of what is not finite
        }
        *below = std::numeric_limits<float>::quiet_NaN();
        if (sum != 0.0f) return -1;
        const float last = part.top_k > 0 && part.top_k < n ? kth_largest(logits, n, excluded, part.top_k, heap_) : kNone;
        keep(logits, n, excluded, part.temperature, top, last);
        float least = last;
        if (part.top_p < 1) {
            ordered_ = kept_;
            least = last_within(ordered_, part.top_p * (double)weight_above(kNone));
        }
        const double wanted = part.uniform * (double)weight_above(least);
        int64_t passed = 0;
        for (const Kept& own : kept_) {
            if (own.logit < least) continue;
            passed += own.weight;
            if ((double)passed > wanted) return *below = own.logit - top, own.id;
        }
        return -1;
    }

  private:
    // Those from `last` on that weigh anything.
    void keep(const float* logits, int n, int excluded, double temperature, float top, float last) {
        kept_.clear();
        const double least = std::max((double)last, top + kLightest * temperature);
        for (int v = 0; v < n; ++v) {
            if (v == excluded || logits[v] < least) continue;
            const int64_t weight = std::llrint(std::exp(((double)logits[v] - top) / temperature) * kWhole);
            if (weight > 0) kept_.push_back({logits[v], v, weight});
        }
    }

    int64_t weight_above(float least) const {
        int64_t total = 0;
        for (const Kept& own : kept_) total += own.logit < least ? 0 : own.weight;
        return total;
    }

    std::vector<float> heap_;
    std::vector<Kept> kept_, ordered_;
};

}  // namespace
}  // namespace ramet

extern "C" {

// logits [n_rows][n_entries]; of each row the token, and how far its logit lies below the largest.
void ramet_cut(const float* logits, int32_t n_rows, int32_t n_entries, int32_t excluded, const float* temperatures,
               const float* uniforms, const float* top_p, const int32_t* top_k, int64_t* tokens, float* below,
               int32_t n_threads) {
#pragma omp parallel num_threads(n_threads) if (n_threads > 1 && n_rows > 1)
    {
        ramet::Row row;
#pragma omp for schedule(dynamic, 1)
        for (int32_t r = 0; r < n_rows; ++r) {
            const int id = row.draw(logits + (int64_t)r * n_entries, n_entries, excluded,
                                    {temperatures[r], uniforms[r], top_p[r], top_k[r]}, below + r);
            tokens[r] = id >= 0 ? id : excluded == 0;
        }
    }
}
}
