// Normalisation, rotary embedding and gating, each in one pass; the contract is ops/norm/reference.py.
#include <cmath>

#include "simd.h"

namespace ramet {
namespace {

constexpr int64_t kWorthThreads = 1 << 15;  // elements: fewer take less time than waking a thread

// f(i, n): n elements from i on, kLanes of them but for the last.
template <class F>
INLINE void each(int n, F f) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) f(i, kLanes);
    if (i < n) f(i, n - i);
}

template <class S>
INLINE Vec get(const S* from, int n) {
    return n == kLanes ? load(from) : load_first(from, n);
}

template <class S>
INLINE void put(S* to, Vec x, int n) {
    if (n == kLanes) store(to, x);
    else store_first(to, x, n);
}

template <class S>
INLINE float inverse_rms(const S* x, int n, float eps) {
    Vec squares[4] = {};  // four, so that a sum need not wait for the one before
    int i = 0;
    for (; i + 4 * kLanes <= n; i += 4 * kLanes)
        for (int j = 0; j < 4; ++j) {
            Vec wide = load(x + i + j * kLanes);
            squares[j] += wide * wide;
        }
    for (; i < n; i += kLanes) {
        Vec wide = get(x + i, std::min(kLanes, n - i));
        squares[0] += wide * wide;
    }
    return 1.0f / std::sqrt(sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / (float)n + eps);
}

template <class S>
void rms_norm(const S* x, int64_t x_stride, const float* weight, float eps, S* out, int n_rows, int width, int n_threads) {
    if ((int64_t)n_rows * width < kWorthThreads) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n_rows; ++row) {
        const S* from = x + row * x_stride;
        S* to = out + (int64_t)row * width;
        float factor = inverse_rms(from, width, eps);
        each(width, [&](int i, int n) { put(to + i, get(from + i, n) * factor * get(weight + i, n), n); });
    }
}

// One head in place: x1 cos - x2 sin, x2 cos + x1 sin.
template <class S>
INLINE void turn(S* x, const float* cos, const float* sin, const float* weight, float eps, int half) {
    float factor = weight ? inverse_rms(x, 2 * half, eps) : 1.0f;
    each(half, [&](int i, int n) {
        Vec a = get(x + i, n), b = get(x + half + i, n), c = get(cos + i, n), s = get(sin + i, n);
        if (weight) {
            a = a * factor * get(weight + i, n);
            b = b * factor * get(weight + half + i, n);
        }
        put(x + i, a * c - b * s, n);
        put(x + half + i, b * c + a * s, n);
    });
}

template <class S>
void rotate(S* qkv, int64_t stride, const float* rotation, int n_heads, int n_kv_heads, int head_dim,
            const float* q_norm, const float* k_norm, float eps, int n_rows, int n_threads) {
    if ((int64_t)n_rows * (n_heads + n_kv_heads) * head_dim < kWorthThreads) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n_rows; ++row) {
        const float* cos = rotation + (int64_t)row * head_dim;
        for (int head = 0; head < n_heads + n_kv_heads; ++head)
            turn(qkv + row * stride + (int64_t)head * head_dim, cos, cos + head_dim / 2,
                 head < n_heads ? q_norm : k_norm, eps, head_dim / 2);
    }
}

INLINE Vec silu(Vec x) {
    Vec t = x * -1.44269504f;
    IVec vanishes = t > 126.0f;  // less than 2^-119, and beyond the range of exp2
    Vec factor = reciprocal(exp2(vanishes ? Vec{} : t) + 1.0f);
    return x * (vanishes ? Vec{} : factor);
}

template <class S>
void silu_mul(const S* gate_up, int64_t stride, S* out, int n_rows, int width, int n_threads) {
    if ((int64_t)n_rows * width < kWorthThreads / 4) n_threads = 1;
#pragma omp parallel for num_threads(n_threads) schedule(static) if (n_threads > 1)
    for (int row = 0; row < n_rows; ++row) {
        const S *gate = gate_up + row * stride, *up = gate + width;
        S* to = out + (int64_t)row * width;
        each(width, [&](int i, int n) { put(to + i, silu(get(gate + i, n)) * get(up + i, n), n); });
    }
}

}  // namespace
}  // namespace ramet

using ramet::bf16;

extern "C" {

void ramet_rms_norm(const void* x, int64_t stride, const float* weight, float eps, void* out, int32_t n_rows,
                    int32_t width, int32_t is_bf16, int32_t n_threads) {
    if (is_bf16) ramet::rms_norm((const bf16*)x, stride, weight, eps, (bf16*)out, n_rows, width, n_threads);
    else ramet::rms_norm((const float*)x, stride, weight, eps, (float*)out, n_rows, width, n_threads);
}

void ramet_rotate(void* qkv, int64_t stride, const float* rotation, int32_t n_heads, int32_t n_kv_heads,
                  int32_t head_dim, const float* q_norm, const float* k_norm, float eps, int32_t n_rows,
                  int32_t is_bf16, int32_t n_threads) {
    if (is_bf16)
        ramet::rotate((bf16*)qkv, stride, rotation, n_heads, n_kv_heads, head_dim, q_norm, k_norm, eps, n_rows, n_threads);
    else
        ramet::rotate((float*)qkv, stride, rotation, n_heads, n_kv_heads, head_dim, q_norm, k_norm, eps, n_rows, n_threads);
}

void ramet_silu_mul(const void* gate_up, int64_t stride, void* out, int32_t n_rows, int32_t width, int32_t is_bf16,
                    int32_t n_threads) {
    if (is_bf16) ramet::silu_mul((const bf16*)gate_up, stride, (bf16*)out, n_rows, width, n_threads);
    else ramet::silu_mul((const float*)gate_up, stride, (float*)out, n_rows, width, n_threads);
}
}
