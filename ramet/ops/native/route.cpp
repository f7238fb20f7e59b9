// The choice of each row's experts; the contract is ops/experts/reference.py.
#include <cmath>
#include <limits>
#include <vector>

#include "rms.h"

namespace ramet {
namespace {

constexpr int64_t kWorthThreads = 1 << 12;  // logits: fewer take less time than waking a thread

// A number's rank among others: NaN counts as larger than any.
float ranked(float value) { return value == value ? value : std::numeric_limits<float>::infinity(); }

// The n_chosen largest of a row, descending, the first of equal ones first; NaN counts as larger than any.
template <class S>
void choose(const S* logits, int n_experts, int n_chosen, int64_t* chosen, float* values) {
    int n = 0;
    for (int e = 0; e < n_experts; ++e) {
        const float rank = ranked(widen(logits[e]));
        if (n == n_chosen && !(rank > values[n - 1])) continue;
        int at = n < n_chosen ? n++ : n - 1;
        for (; at > 0 && rank > values[at - 1]; --at) chosen[at] = chosen[at - 1], values[at] = values[at - 1];
        chosen[at] = e, values[at] = rank;
    }
    for (int i = 0; i < n; ++i) values[i] = widen(logits[chosen[i]]);
}

// Logits, descending, to shares of their sum after exp; `shares` has room for whole vectors.
INLINE void to_shares(float* shares, int n) {
    const Vec top = splat(shares[0]);
    for (int i = n; i < round_up(n, kLanes); ++i) shares[i] = -std::numeric_limits<float>::infinity();
    float total = 0;
    for (int i = 0; i < n; i += kLanes) store(shares + i, exp2((load(shares + i) - top) * 1.44269504f));
    for (int i = 0; i < n; ++i) total += shares[i];
    for (int i = 0; i < n; ++i) shares[i] /= total;
}

template <class S>
void route(const S* logits, int64_t stride, int n_rows, int n_experts, int n_chosen, const float* scale, int64_t* chosen,
           float* weights, int n_threads) {
    if ((int64_t)n_rows * n_experts < kWorthThreads) n_threads = 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        std::vector<float> shares(round_up(n_chosen, kLanes));
#pragma omp for schedule(static)
        for (int row = 0; row < n_rows; ++row) {
            int64_t* own = chosen + (int64_t)row * n_chosen;
            float* to = weights + (int64_t)row * n_chosen;
            choose(logits + row * stride, n_experts, n_chosen, own, shares.data());
            to_shares(shares.data(), n_chosen);
            for (int i = 0; i < n_chosen; ++i)
                to[i] = scale ? shares[i] * scale[own[i]] : rounded<S>(splat(shares[i]))[0];
        }
    }
}

// Sigmoids of a row to the last bit or so, for shares that are nearly equal decide what is chosen, and the same with
// the bias.
void to_sigmoids(const float* logits, const float* bias, int n, float* shares, float* biased) {
    for (int i = 0; i < n; ++i) {
        shares[i] = 1.0f / (1.0f + std::exp(-logits[i]));
        biased[i] = shares[i] + bias[i];
    }
}

// Hides the experts of all groups but the n_kept best.
void keep_groups(float* biased, int n_groups, int n_kept, int size, float* sums, int64_t* kept, float* values) {
    for (int g = 0; g < n_groups; ++g) {
        float first = -std::numeric_limits<float>::infinity(), second = first;
        for (int e = g * size; e < (g + 1) * size; ++e) {
            const float value = ranked(biased[e]);
            if (value > first) second = first, first = value;
            else if (value > second) second = value;
        }
        sums[g] = first + second;
    }
    choose(sums, n_groups, n_kept, kept, values);
    for (int i = 0; i < n_kept; ++i) sums[kept[i]] = std::numeric_limits<float>::quiet_NaN();
    for (int g = 0; g < n_groups; ++g)
        for (int e = g * size; sums[g] == sums[g] && e < (g + 1) * size; ++e)
            biased[e] = -std::numeric_limits<float>::infinity();
}

void route_grouped(const float* logits, int64_t stride, const float* bias, int n_rows, int n_experts, int n_chosen,
                   int n_groups, int n_kept, float scale, int64_t* chosen, float* weights, int n_threads) {
    if ((int64_t)n_rows * n_experts < kWorthThreads) n_threads = 1;
#pragma omp parallel num_threads(n_threads) if (n_threads > 1)
    {
        std::vector<float> shares(n_experts), biased(n_experts), sums(n_groups), values(n_experts);
        std::vector<int64_t> kept(n_groups);
#pragma omp for schedule(static)
        for (int row = 0; row < n_rows; ++row) {
            int64_t* own = chosen + (int64_t)row * n_chosen;
            float* to = weights + (int64_t)row * n_chosen;
            to_sigmoids(logits + row * stride, bias, n_experts, shares.data(), biased.data());
            keep_groups(biased.data(), n_groups, n_kept, n_experts / n_groups, sums.data(), kept.data(), values.data());
            choose(biased.data(), n_experts, n_chosen, own, values.data());
            float total = 0;
            for (int i = 0; i < n_chosen; ++i) total += shares[own[i]];
            for (int i = 0; i < n_chosen; ++i) to[i] = shares[own[i]] / (total + 1e-20f) * scale;
        }
    }
}

}  // namespace
}  // namespace ramet

extern "C" void ramet_route_grouped(const float* logits, int64_t stride, const float* bias, int32_t n_rows,
                                    int32_t n_experts, int32_t n_chosen, int32_t n_groups, int32_t n_kept, float scale,
                                    int64_t* chosen, float* weights, int32_t n_threads) {
    ramet::route_grouped(logits, stride, bias, n_rows, n_experts, n_chosen, n_groups, n_kept, scale, chosen, weights,
                         n_threads);
}

extern "C" void ramet_route(const void* logits, int64_t stride, int32_t n_rows, int32_t n_experts, int32_t n_chosen,
                            const float* scale, int64_t* chosen, float* weights, int32_t is_bf16, int32_t n_threads) {
    auto run = [&](auto* from) {
        ramet::route(from, stride, n_rows, n_experts, n_chosen, scale, chosen, weights, n_threads);
    };
    if (is_bf16) run((const ramet::bf16*)logits);
    else run((const float*)logits);
}
