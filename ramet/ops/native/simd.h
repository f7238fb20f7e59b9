// Vectors of the machine that this is compiled for, and the few operations that the kernels are made of.
//
// A kernel works on an Element: Bf16 (pairs of bfloat16, products summed in float32 by one instruction) or F32. A
// machine without that instruction widens bfloat16 to F32 while packing, so that every kernel exists once.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define INLINE inline __attribute__((always_inline))

namespace ramet {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define RAMET_AVX512 1
#if defined(__AVX512BF16__)
#define RAMET_BF16_DOT 1
#endif
constexpr int kLanes = 16, kColumns = 4;
#elif defined(__AVX2__) && defined(__FMA__)
#define RAMET_AVX2 1
constexpr int kLanes = 8, kColumns = 2;
#elif defined(__aarch64__)
constexpr int kLanes = 4, kColumns = 4;
#else
constexpr int kLanes = 4, kColumns = 1;
#endif
constexpr int kRows = 6;  // kRows x kColumns vectors of sums, and kColumns + 1 more, fit the registers

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef int32_t IVec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t UVec __attribute__((vector_size(kLanes * 4)));
typedef uint16_t HVec __attribute__((vector_size(kLanes * 2)));

struct bf16 {
    uint16_t bits;
};

INLINE Vec splat(float x) { return Vec{} + x; }

INLINE IVec lane_numbers() {
    IVec lanes;
    for (int i = 0; i < kLanes; ++i) lanes[i] = i;
    return lanes;
}

// a * b + c. What is not written as this is rounded twice (-ffp-contract=off): a compiler that chooses for itself where to
// fuse chooses otherwise for another number of rows, and a row's bits would depend on how many there are.
INLINE Vec fma(Vec a, Vec b, Vec c) {
#if defined(RAMET_AVX512)
    return (Vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(RAMET_AVX2)
    return (Vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__aarch64__)
    return (Vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

// `b` where `a` is NaN or not greater.
INLINE Vec max(Vec a, Vec b) {
#if defined(RAMET_AVX512)
    return (Vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(RAMET_AVX2)
    return (Vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}

INLINE bool any_above(Vec a, float limit) {
#if defined(RAMET_AVX512)
    return _mm512_cmp_ps_mask((__m512)a, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
#elif defined(RAMET_AVX2)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, _mm256_set1_ps(limit), _CMP_GT_OQ)) != 0;
#else
    IVec above = a > splat(limit);
    int32_t any = 0;
    for (int i = 0; i < kLanes; ++i) any |= above[i];
    return any != 0;
#endif
}

INLINE float largest(Vec a) {
    float part[kLanes];
    std::memcpy(part, &a, sizeof a);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) part[i] = part[i + half] > part[i] ? part[i + half] : part[i];
    return part[0];
}

// Always in the same order: halves onto each other.
INLINE float sum(Vec a) {
#if defined(RAMET_AVX512)
    return _mm512_reduce_add_ps((__m512)a);
#else
    float part[kLanes];
    std::memcpy(part, &a, sizeof a);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) part[i] += part[i + half];
    return part[0];
#endif
}

// 2^t. Relative error at most 4e-7 for t in [-125, 127]; 0 below (and for -inf); NaN stays NaN; t must not exceed 127.
// A number too small to be normal is never made: Intel's processors take a hundred cycles and more for one.
INLINE Vec exp2(Vec t) {
#if defined(RAMET_AVX512)
    __mmask16 seen = _mm512_cmp_ps_mask((__m512)t, _mm512_set1_ps(-125.0f), _CMP_NLT_UQ);
    __m512 x = _mm512_max_ps(_mm512_set1_ps(-125.0f), (__m512)t);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    Vec f = (Vec)_mm512_sub_ps(x, n);
#else
    Vec x = t < -125.0f ? splat(-125.0f) : t;
    const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    Vec whole = x + magic;
    Vec f = x - (whole - magic);
#endif
    Vec p = splat(1.3264727e-3f);
    p = fma(p, f, splat(9.6715130e-3f));
    p = fma(p, f, splat(5.5507336e-2f));
    p = fma(p, f, splat(2.4022242e-1f));
    p = fma(p, f, splat(6.9314700e-1f));
    p = fma(p, f, splat(1.0f));
#if defined(RAMET_AVX512)
    return (Vec)_mm512_maskz_scalef_ps(seen, (__m512)p, n);
#else
    IVec scaled = (IVec)p + (((IVec)whole - 0x4b400000) << 23);
    Vec result = x == x ? (Vec)scaled : x;
    return t < -125.0f ? Vec{} : result;
#endif
}

// 1 / x for x in [1, 2^126].
INLINE Vec reciprocal(Vec x) {
#if defined(RAMET_AVX512)
    Vec guess = (Vec)_mm512_rcp14_ps((__m512)x);
    return guess * (2.0f - x * guess);
#else
    return 1.0f / x;
#endif
}

INLINE Vec load(const float* from) {
    Vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

INLINE void store(float* to, Vec x) { std::memcpy(to, &x, sizeof x); }

INLINE Vec load(const bf16* from) {
    HVec half;
    std::memcpy(&half, from, sizeof half);
    return (Vec)(__builtin_convertvector(half, UVec) << 16);
}

// Rounds to the nearest, ties to even; NaN stays NaN.
INLINE void store(bf16* to, Vec x) {
#if defined(RAMET_BF16_DOT)
    __m256bh half = _mm512_cvtneps_pbh((__m512)x);
    std::memcpy(to, &half, sizeof half);
#else
    UVec bits = (UVec)x;
    UVec rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    UVec quiet = (bits >> 16) | 0x40u;
    UVec kept = (UVec)(x == x ? (IVec)rounded : (IVec)quiet);
    HVec half = __builtin_convertvector(kept, HVec);
    std::memcpy(to, &half, sizeof half);
#endif
}

template <class S>
INLINE Vec load_first(const S* from, int n) {
    S part[kLanes] = {};
    std::memcpy(part, from, n * sizeof(S));
    return load(part);
}

template <class S>
INLINE void store_first(S* to, Vec x, int n) {
    S part[kLanes];
    store(part, x);
    std::memcpy(to, part, n * sizeof(S));
}

INLINE float widen(float x) { return x; }
INLINE float widen(bf16 x) {
    uint32_t bits = (uint32_t)x.bits << 16;
    float wide;
    std::memcpy(&wide, &bits, 4);
    return wide;
}

// What packed operands are made of. `kPair` elements of the summed dimension lie side by side and share a lane.
struct F32 {
    using Type = float;
    static constexpr int kPair = 1;
    static INLINE float from(float x) { return x; }
    static INLINE float from(bf16 x) { return widen(x); }
    static INLINE Vec dot(Vec sums, const float* a, Vec b) { return fma(splat(*a), b, sums); }
};

#if defined(RAMET_BF16_DOT)
struct Bf16 {
    using Type = bf16;
    static constexpr int kPair = 2;
    static INLINE bf16 from(bf16 x) { return x; }
    static INLINE Vec dot(Vec sums, const bf16* a, Vec b) {
        int32_t pair;
        std::memcpy(&pair, a, 4);
        return (Vec)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)b);
    }
};
#else
using Bf16 = F32;
#endif

template <class E>
INLINE Vec load_packed(const typename E::Type* from) {
    Vec x;
    std::memcpy(&x, from, sizeof x);
    return x;
}

INLINE int divide_up(int a, int b) { return (a + b - 1) / b; }
INLINE int round_up(int a, int b) { return divide_up(a, b) * b; }

}  // namespace ramet
