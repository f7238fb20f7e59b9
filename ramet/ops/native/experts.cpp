// All experts of a layer in one call; the contract is ops/experts/reference.py.
//
// Pairs of a row and one of its experts are sorted by expert, so that an expert's weights are read once. First come the
// activations of every pair, a task a range of one expert's columns; then the outputs, a task a range of the columns of
// all rows, which walks the experts in their order. tile() sums an element in the order of its terms alone, and a row's
// experts are added in theirs: a row's bits depend neither on the rows that share the call nor on the threads.
#include <atomic>

#include "activation.h"
#include "memory.h"
#include "panel.h"
#include "rms.h"

namespace ramet {
namespace {

constexpr int kBlock = 256;             // rows of x gathered at a time
constexpr int kRowBlock = 96;           // pairs in the second product at a time
constexpr int kTasks = 16;              // a thread, at least, in the first product
constexpr size_t kTotals = 1 << 20;     // bytes of sums that a task of the second product keeps
constexpr int kNarrow = 4, kWide = 12;  // vectors of columns in such a task, at most: for few pairs an expert, and for
constexpr int kManyPairs = 32;          // many, where each task reads many activations
constexpr int64_t kWorthThreads = 1 << 18;  // products

// A layer's sizes: n_experts of gate and up [size, width] and down [width, size].
struct Sizes {
    int n_experts, size, width;

    template <class E>
    int64_t gate_up() const {
        return 2 * (int64_t)round_up(size, kLanes) * round_up(width, E::kPair);
    }
    template <class E>
    int64_t down() const {
        return (int64_t)round_up(width, kLanes) * round_up(size, E::kPair);
    }
};

// The pairs of a call, sorted by expert, within it by row: the rows and weights of expert e are [offsets[e],
// offsets[e + 1]). What is chosen lies in [0, n_experts).
struct Pairs {
    int n_experts, *offsets, *rows;
    float* weights;

    // The first expert from e on that is wanted; n_experts behind the last.
    int touched(int e) const {
        while (e < n_experts && offsets[e] == offsets[e + 1]) ++e;
        return e;
    }

    static size_t bytes(int n_pairs, int n_experts) { return ((size_t)n_experts + 2 * (size_t)n_pairs + 2) * 4; }

    Pairs(const int64_t* chosen, const float* given, int n_rows, int n_chosen, int n_experts, Memory& memory)
        : n_experts(n_experts),
          offsets(memory.take<int>(n_experts + 2)),
          rows(memory.take<int>((size_t)n_rows * n_chosen)),
          weights(memory.take<float>((size_t)n_rows * n_chosen)) {
        std::fill(offsets, offsets + n_experts + 2, 0);
        int* next = offsets + 1;  // where the next pair of an expert goes; at last, where the expert ends
        const int n_pairs = n_rows * n_chosen;
        for (int i = 0; i < n_pairs; ++i) ++next[chosen[i] + 1];
        for (int e = 0; e < n_experts; ++e) next[e + 1] += next[e];
        for (int i = 0; i < n_pairs; ++i) {
            int at = next[chosen[i]]++;
            rows[at] = i / n_chosen;
            weights[at] = given[i];
        }
    }
};

// Groups [begin, end) of an expert's columns; a group is a vector of gates and one of ups.
struct Task {
    int expert, begin, end;
};

// The work of the first product: the experts that are wanted, those of most rows first, each in `n_parts` tasks.
class Work {
  public:
    static size_t bytes(int n_experts) { return (size_t)n_experts * 4; }

    Work(const Pairs& pairs, int n_experts, int n_groups, int n_threads, Memory& memory)
        : experts_(memory.take<int>(n_experts)), n_groups_(n_groups) {
        auto count = [&](int e) { return pairs.offsets[e + 1] - pairs.offsets[e]; };
        for (int e = 0; e < n_experts; ++e)
            if (count(e) > 0) experts_[n_touched_++] = e;
        std::stable_sort(experts_, experts_ + n_touched_, [&](int a, int b) { return count(a) > count(b); });
        n_parts_ = std::clamp(divide_up(kTasks * n_threads, std::max(1, n_touched_)), 1, divide_up(n_groups, 2));
    }

    int n_touched() const { return n_touched_; }
    int size() const { return n_touched_ * n_parts_; }
    Task operator[](int i) const {
        const int part = i % n_parts_;
        return {experts_[i / n_parts_], n_groups_ * part / n_parts_, n_groups_ * (part + 1) / n_parts_};
    }

  private:
    int* experts_;
    int n_groups_, n_touched_ = 0, n_parts_ = 1;
};

// A call's arguments.
template <class E, class S>
struct Layer {
    using Type = typename E::Type;
    Sizes sizes;
    const Type *gate_up, *down;
    bool is_gelu;
    const S* x;
    int n_rows;
    S* out;

    int n_groups() const { return divide_up(sizes.size, kLanes); }
    int n_vectors() const { return divide_up(sizes.width, kLanes); }
    int width_room() const { return round_up(sizes.width, E::kPair); }
    int size_room() const { return round_up(sizes.size, E::kPair); }
    int hidden_row() const { return padded<Type>(round_up(sizes.size, kLanes)); }
    ptrdiff_t group() const { return (ptrdiff_t)2 * kLanes * width_room(); }
    const Type* gates(const Task& task) const {
        return gate_up + task.expert * sizes.template gate_up<E>() + task.begin * group();
    }
};

// hidden [pairs][hidden_row]: a task's part of it. Meanwhile what `next` begins with is fetched.
template <class E, class S>
void activate(const Layer<E, S>& layer, const Pairs& pairs, const Task& task, const Task* next, typename E::Type* hidden,
              Memory& memory) {
    using Type = typename E::Type;
    const int most = vectors_at_once<E>() / 2, wide = vectors_at_once<E>() * kLanes, width = layer.sizes.width;
    const int room = layer.width_room(), row = padded<Type>(room), hidden_row = layer.hidden_row();
    memory.reset((size_t)(kBlock) * (row * sizeof(Type) + wide * 4), 2);
    Type* block = memory.take<Type>((size_t)(kBlock) * row);
    float* sums = memory.take<float>((size_t)(kBlock) * wide);
    const int last = pairs.offsets[task.expert + 1];
    for (int first = pairs.offsets[task.expert]; first < last; first += kBlock) {
        const int n_block = std::min(kBlock, last - first);
        for (int r = 0; r < n_block; ++r)
            copy_row<E>(layer.x + (int64_t)pairs.rows[first + r] * width, width, room, block + (ptrdiff_t)r * row);
        for (int g = task.begin; g < task.end; g += most) {
            const int n_groups = std::min(most, task.end - g);
            const Type* gates = layer.gates({task.expert, g, task.end});
            const Type* following = next ? layer.gates(*next) : gates;
            if (g + n_groups < task.end) following = gates + n_groups * layer.group();
            Ahead ahead(following, n_groups * layer.group() * sizeof(Type), n_fetches(n_block, room, 2 * n_groups));
            multiply<E>(block, row, n_block, gates, room, 2 * n_groups, sums, wide, &ahead);
            for (int r = 0; r < n_block; ++r)
                for (int j = 0; j < n_groups; ++j) {
                    const float* gate = sums + r * wide + 2 * j * kLanes;
                    Vec a = load(gate);
                    a = layer.is_gelu ? gelu_tanh(a) : silu(a);
                    store(hidden + (ptrdiff_t)(first + r) * hidden_row + (g + j) * kLanes, a * load(gate + kLanes));
                }
        }
    }
}

// Vectors [begin, end) of every row's output columns.
template <class E, class S>
void combine(const Layer<E, S>& layer, const Pairs& pairs, const typename E::Type* hidden, int begin, int end,
             Memory& memory) {
    const int n_vectors = end - begin, wide = n_vectors * kLanes, room = layer.size_room(), row = layer.hidden_row();
    memory.reset(((size_t)layer.n_rows + kRowBlock) * wide * 4, 2);
    float* totals = memory.take<float>((size_t)layer.n_rows * wide);
    float* sums = memory.take<float>(kRowBlock * wide);
    std::fill(totals, totals + (size_t)layer.n_rows * wide, 0.0f);
    auto columns = [&](int e) {
        return layer.down + e * layer.sizes.template down<E>() + (ptrdiff_t)begin * kLanes * room;
    };
    for (int e = pairs.touched(0); e < layer.sizes.n_experts;) {
        const int next = pairs.touched(e + 1), first = pairs.offsets[e], last = pairs.offsets[e + 1];
        Ahead ahead(columns(next < layer.sizes.n_experts ? next : e), (size_t)wide * room * sizeof(typename E::Type),
                    n_fetches(last - first, room, n_vectors));
        for (int p = first; p < last; p += kRowBlock) {
            const int n = std::min(kRowBlock, last - p);
            multiply<E>(hidden + (ptrdiff_t)p * row, row, n, columns(e), room, n_vectors, sums, wide, &ahead);
            for (int i = 0; i < n; ++i) {
                float* to = totals + (ptrdiff_t)pairs.rows[p + i] * wide;
                for (int j = 0; j < wide; j += kLanes)
                    store(to + j, load(to + j) + pairs.weights[p + i] * load(sums + i * wide + j));
            }
        }
        e = next;
    }
    for (int r = 0; r < layer.n_rows; ++r)
        for (int j = begin; j < end; ++j) {
            Vec total = load(totals + (ptrdiff_t)r * wide + (j - begin) * kLanes);
            const int width = layer.sizes.width, n = std::min(kLanes, width - j * kLanes);
            put(layer.out + (int64_t)r * width + j * kLanes, total, n);
        }
}

// Tasks of the second product: as many for each thread, of few enough columns that a task's sums stay in a near cache.
int n_combined(int n_vectors, int n_rows, int n_pairs, int n_touched, int n_threads) {
    const int most = n_pairs < kManyPairs * n_touched ? kNarrow : kWide;
    const int near = std::clamp((int)(kTotals / ((size_t)std::max(1, n_rows) * kLanes * 4)), 2, most);
    return std::min(n_vectors, n_threads * divide_up(n_vectors, n_threads * near));
}

template <class E, class S>
void experts(const Layer<E, S>& layer, const int64_t* chosen, const float* weights, int n_chosen, int n_threads) {
    using Type = typename E::Type;
    const int n_pairs = layer.n_rows * n_chosen, n_experts = layer.sizes.n_experts, n_vectors = layer.n_vectors();
    if ((int64_t)n_pairs * layer.sizes.size * layer.sizes.width < kWorthThreads) n_threads = 1;
    static thread_local Memory shared;
    const size_t n_hidden = ((size_t)n_pairs) * layer.hidden_row();
    shared.reset(n_hidden * sizeof(Type) + Pairs::bytes(n_pairs, n_experts) + Work::bytes(n_experts), 5);
    const Pairs pairs(chosen, weights, layer.n_rows, n_chosen, n_experts, shared);
    const Work work(pairs, n_experts, layer.n_groups(), n_threads, shared);
    Type* hidden = shared.take<Type>(n_hidden);
    const int n_second = n_combined(n_vectors, layer.n_rows, n_pairs, work.n_touched(), n_threads);
    std::atomic<int> taken{0};
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        static thread_local Memory own;
        const Units units;
        for (int i = taken++; i < work.size();) {
            const int next = taken++;
            const Task following = work[std::min(next, work.size() - 1)];
            activate<E, S>(layer, pairs, work[i], next < work.size() ? &following : nullptr, hidden, own);
            i = next;
        }
#pragma omp barrier
#pragma omp for schedule(dynamic, 1)
        for (int i = 0; i < n_second; ++i)
            combine<E, S>(layer, pairs, hidden, (int)((int64_t)n_vectors * i / n_second),
                          (int)((int64_t)n_vectors * (i + 1) / n_second), own);
    }
}

template <class E, class S>
void pack_all(const S* gate_up, const S* down, Sizes sizes, typename E::Type* gate_up_out, typename E::Type* down_out,
              int n_threads) {
    const int64_t area = (int64_t)sizes.size * sizes.width;
    use_large_pages(gate_up_out, sizes.n_experts * sizes.gate_up<E>() * sizeof(typename E::Type));
    use_large_pages(down_out, sizes.n_experts * sizes.down<E>() * sizeof(typename E::Type));
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int e = 0; e < sizes.n_experts; ++e) {
        pack_vectors<E, S>(gate_up + 2 * e * area, 2, sizes.size, sizes.width, gate_up_out + e * sizes.gate_up<E>());
        pack_vectors<E, S>(down + e * area, 1, sizes.width, sizes.size, down_out + e * sizes.down<E>());
    }
}

}  // namespace
}  // namespace ramet

using namespace ramet;

extern "C" {

// Bytes that the packed gate_up and down of all experts take.
void ramet_experts_sizes(int32_t n_experts, int32_t size, int32_t width, int32_t is_bf16, int64_t* bytes) {
    const Sizes sizes{n_experts, size, width};
    bytes[0] = n_experts * (is_bf16 ? sizes.gate_up<Bf16>() * sizeof(Bf16::Type) : sizes.gate_up<F32>() * sizeof(float));
    bytes[1] = n_experts * (is_bf16 ? sizes.down<Bf16>() * sizeof(Bf16::Type) : sizes.down<F32>() * sizeof(float));
}

void ramet_experts_pack(const void* gate_up, const void* down, int32_t n_experts, int32_t size, int32_t width,
                        void* gate_up_out, void* down_out, int32_t is_bf16, int32_t n_threads) {
    const Sizes sizes{n_experts, size, width};
    if (is_bf16)
        pack_all<Bf16, bf16>((const bf16*)gate_up, (const bf16*)down, sizes, (Bf16::Type*)gate_up_out,
                             (Bf16::Type*)down_out, n_threads);
    else
        pack_all<F32, float>((const float*)gate_up, (const float*)down, sizes, (float*)gate_up_out, (float*)down_out,
                             n_threads);
}

void ramet_experts(const void* x, const int64_t* chosen, const float* weights, const void* gate_up, const void* down,
                   int32_t n_experts, int32_t size, int32_t width, int32_t n_rows, int32_t n_chosen, int32_t is_gelu,
                   void* out, int32_t is_bf16, int32_t n_threads) {
    const Sizes sizes{n_experts, size, width};
    auto run = [&](auto element, const auto* rows) {
        using E = decltype(element);
        using S = std::remove_const_t<std::remove_pointer_t<decltype(rows)>>;
        using Type = typename E::Type;
        const Layer<E, S> layer{sizes, (const Type*)gate_up, (const Type*)down, is_gelu != 0, rows, n_rows, (S*)out};
        experts(layer, chosen, weights, n_chosen, n_threads);
    };
    if (is_bf16) run(Bf16(), (const bf16*)x);
    else run(F32(), (const float*)x);
}
}
