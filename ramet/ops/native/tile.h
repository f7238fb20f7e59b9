// Register tiles and packing: the products inside attention and inside the head.
#pragma once

#include "simd.h"

namespace ramet {

// out[r][j] (+)= sum over k of a[r][k] * b[k][j] for kN * kLanes columns; step k (kPair elements of the sum) of a's row r
// lies at a + r * a_row + k * a_step, of b's vector j at b + j * group + k * step. Every element is summed in the order
// of k alone, so its bits depend neither on kM nor on kN.
template <class E, int kM, int kN>
void tile(const typename E::Type* a, int a_row, const typename E::Type* b, ptrdiff_t group, ptrdiff_t step, int n_steps,
          float* out, int out_row, bool add, ptrdiff_t a_step) {
    Vec sums[kM][kN];
#pragma GCC unroll 8
    for (int r = 0; r < kM; ++r)
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) sums[r][j] = add ? load(out + r * out_row + j * kLanes) : Vec{};
    for (int k = 0; k < n_steps; ++k) {
        Vec column[kN];
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) column[j] = load_packed<E>(b + j * group + k * step);
#pragma GCC unroll 8
        for (int r = 0; r < kM; ++r)
#pragma GCC unroll 8
            for (int j = 0; j < kN; ++j) sums[r][j] = E::dot(sums[r][j], a + r * a_row + k * a_step, column[j]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kM; ++r)
#pragma GCC unroll 8
        for (int j = 0; j < kN; ++j) store(out + r * out_row + j * kLanes, sums[r][j]);
}

template <class E, int kM, int kN = kColumns>
INLINE void tile_columns(const typename E::Type* a, int a_row, const typename E::Type* b, ptrdiff_t group,
                         ptrdiff_t step, int n_steps, float* out, int out_row, bool add, int n_columns,
                         ptrdiff_t a_step) {
    if constexpr (kN > 1)
        if (n_columns < kN)
            return tile_columns<E, kM, kN - 1>(a, a_row, b, group, step, n_steps, out, out_row, add, n_columns, a_step);
    tile<E, kM, kN>(a, a_row, b, group, step, n_steps, out, out_row, add, a_step);
}

// n_rows <= kRows rows times n_vectors vectors of columns. Rows of `a` and `out` up to kRows must exist; a row of `a` is
// contiguous unless a_step says otherwise.
template <class E>
void product(const typename E::Type* a, int a_row, int n_rows, const typename E::Type* b, ptrdiff_t group,
             ptrdiff_t step, int n_steps, float* out, int out_row, bool add, int n_vectors,
             ptrdiff_t a_step = E::kPair) {
    for (int j = 0; j < n_vectors; j += kColumns) {
        const auto* from = b + j * group;
        float* to = out + j * kLanes;
        int n = std::min(kColumns, n_vectors - j);
        if (n_rows > 4) tile_columns<E, 6>(a, a_row, from, group, step, n_steps, to, out_row, add, n, a_step);
        else if (n_rows > 2) tile_columns<E, 4>(a, a_row, from, group, step, n_steps, to, out_row, add, n, a_step);
        else if (n_rows > 1) tile_columns<E, 2>(a, a_row, from, group, step, n_steps, to, out_row, add, n, a_step);
        else tile_columns<E, 1>(a, a_row, from, group, step, n_steps, to, out_row, add, n, a_step);
    }
}

#if defined(RAMET_AVX512)
INLINE void transpose(__m512i (&x)[16]) {
    __m512i y[16];
    for (int i = 0; i < 16; i += 4) {
        __m512i a = _mm512_unpacklo_epi32(x[i], x[i + 1]), b = _mm512_unpackhi_epi32(x[i], x[i + 1]);
        __m512i c = _mm512_unpacklo_epi32(x[i + 2], x[i + 3]), d = _mm512_unpackhi_epi32(x[i + 2], x[i + 3]);
        y[i] = _mm512_unpacklo_epi64(a, c), y[i + 1] = _mm512_unpackhi_epi64(a, c);
        y[i + 2] = _mm512_unpacklo_epi64(b, d), y[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    for (int i = 0; i < 4; ++i) {
        __m512i a = _mm512_shuffle_i32x4(y[i], y[i + 4], 0x88), b = _mm512_shuffle_i32x4(y[i], y[i + 4], 0xdd);
        __m512i c = _mm512_shuffle_i32x4(y[i + 8], y[i + 12], 0x88), d = _mm512_shuffle_i32x4(y[i + 8], y[i + 12], 0xdd);
        x[i] = _mm512_shuffle_i32x4(a, c, 0x88), x[i + 4] = _mm512_shuffle_i32x4(b, d, 0x88);
        x[i + 8] = _mm512_shuffle_i32x4(a, c, 0xdd), x[i + 12] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

// pack_columns for rows whose type is the packed one: 32-bit words of 16 rows, transposed.
template <class S>
void pack_words(const S* const* rows, int n_rows, int width, S* out, ptrdiff_t ahead) {
    constexpr int kPer = 4 / sizeof(S);
    for (int c = 0; c < width; c += 16 * kPer) {
        int n = std::min(16 * kPer, width - c), n_words = divide_up(n, kPer);
        __m512i x[16];
        for (int r = 0; r < 16; ++r) {
            if (ahead && r < n_rows) __builtin_prefetch(rows[r] + c + ahead, 0, 1);
            if (r >= n_rows) x[r] = _mm512_setzero_si512();
            else if (sizeof(S) == 2) x[r] = _mm512_maskz_loadu_epi16(0xffffffffu >> (32 - n), rows[r] + c);
            else x[r] = _mm512_maskz_loadu_epi32((__mmask16)(0xffffu >> (16 - n)), rows[r] + c);
        }
        transpose(x);
        for (int w = 0; w < n_words; ++w) _mm512_storeu_si512(out + (ptrdiff_t)(c + w * kPer) * 16, x[w]);
    }
}
#endif

// kLanes rows (null behind n_rows: zeros) of `width` elements, as [width / kPair][kLanes][kPair]; an odd width is padded.
// What lies `ahead` elements behind will be needed soon; fetched into the first cache it would drive out what is packed.
template <class E, class S>
void pack_columns(const S* const* rows, int n_rows, int width, typename E::Type* out, ptrdiff_t ahead = 0) {
#if defined(RAMET_AVX512)
    if constexpr (std::is_same<S, typename E::Type>::value) return pack_words<S>(rows, n_rows, width, out, ahead);
#endif
    constexpr int kPair = E::kPair;
    for (int c = 0; c < round_up(width, kPair); ++c)
        for (int r = 0; r < kLanes; ++r)
            out[(c / kPair * kLanes + r) * kPair + c % kPair] =
                r < n_rows && c < width ? E::from(rows[r][c]) : typename E::Type{};
}

// kPair rows of `width` elements, as [width][kPair]: the summed dimension of the second product are the rows.
template <class E, class S>
void pack_rows(const S* const* rows, int n_rows, int width, typename E::Type* out) {
    if constexpr (E::kPair == 2) {
        for (int c = 0; c < width; ++c) {
            uint32_t low = rows[0][c].bits, high = n_rows > 1 ? rows[1][c].bits : 0;
            uint32_t word = low | high << 16;
            std::memcpy(out + 2 * c, &word, 4);
        }
    } else {
        for (int c = 0; c < width; ++c) out[c] = E::from(rows[0][c]);
    }
}

}  // namespace ramet
