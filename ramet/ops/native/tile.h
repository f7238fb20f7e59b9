// Register tiles and packing: the products inside attention and inside the head.
#pragma once

#include "amx.h"

namespace ramet {

// Bytes that will be read soon: at every step of a product a few lines more are fetched into the second cache, so that
// memory is read while the units work.
class Ahead {
  public:
    Ahead() = default;
    // All of [from, from + bytes) within n_steps steps.
    Ahead(const void* from, size_t bytes, int64_t n_steps)
        : at_(static_cast<const char*>(from)), end_(at_ + bytes), size_((bytes / kLine + n_steps - 1) / n_steps * kLine) {}

    INLINE void fetch() {
        const char* stop = std::min(at_ + size_, end_);
        for (; at_ < stop; at_ += kLine) __builtin_prefetch(at_, 0, 2);
    }

  private:
    static constexpr size_t kLine = 64;
    const char *at_ = nullptr, *end_ = nullptr;
    size_t size_ = 0;
};

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

// n_rows <= kRows rows, each number of them with code of its own.
template <class E, int kM = kRows>
INLINE void tile_rows(const typename E::Type* a, int a_row, int n_rows, const typename E::Type* b, ptrdiff_t group,
                      ptrdiff_t step, int n_steps, float* out, int out_row, bool add, int n_columns, ptrdiff_t a_step) {
    if constexpr (kM > 1)
        if (n_rows < kM)
            return tile_rows<E, kM - 1>(a, a_row, n_rows, b, group, step, n_steps, out, out_row, add, n_columns, a_step);
    tile_columns<E, kM>(a, a_row, b, group, step, n_steps, out, out_row, add, n_columns, a_step);
}

#if defined(RAMET_AMX)
namespace amx {

// A block of kM x kN tiles of sums, whose upper rows and columns are tiles of `a` and of `b`: kTileSteps steps from a and b.
template <int kM, int kN>
INLINE void add_step(const bf16* a, ptrdiff_t a_row, const bf16* b, ptrdiff_t group, ptrdiff_t step) {
    load<4>(a, a_row * 2);
    if constexpr (kM > 1) load<5>(a + kTileRows * a_row, a_row * 2);
    load<6>(b, step * 2);
    dot<0, 4, 6>();
    if constexpr (kM > 1) dot<2, 5, 6>();
    if constexpr (kN > 1) {
        load<7>(b + group, step * 2);
        dot<1, 4, 7>();
        if constexpr (kM > 1) dot<3, 5, 7>();
    }
}

// The last steps of a sum, fewer than kTileSteps: as if zeros followed. Nothing behind the n_rows and the steps is read.
template <int kM, int kN>
void add_rest(const bf16* a, ptrdiff_t a_row, int n_rows, const bf16* b, ptrdiff_t group, ptrdiff_t step, int n_steps) {
    constexpr int kWidth = 2 * kTileSteps;
    alignas(64) bf16 rows[kM * kTileRows * kWidth] = {}, columns[kN * kTileSteps * kWidth] = {};
    for (int r = 0; r < n_rows; ++r) std::memcpy(rows + r * kWidth, a + r * a_row, n_steps * 4);
    for (int j = 0; j < kN; ++j)
        for (int k = 0; k < n_steps; ++k)
            std::memcpy(columns + (j * kTileSteps + k) * kWidth, b + j * group + k * step, kTileBytes);
    add_step<kM, kN>(rows, kWidth, columns, kTileSteps * kWidth, kWidth);
}

template <int kM, int kN>
void block(const bf16* a, ptrdiff_t a_row, int n_rows, const bf16* b, ptrdiff_t group, ptrdiff_t step, int n_steps,
           float* out, ptrdiff_t out_row, bool add, Ahead* ahead) {
    float* below = out + kTileRows * out_row;
    if (add) {
        load<0>(out, out_row * 4);
        if constexpr (kN > 1) load<1>(out + kLanes, out_row * 4);
        if constexpr (kM > 1) load<2>(below, out_row * 4);
        if constexpr (kM > 1 && kN > 1) load<3>(below + kLanes, out_row * 4);
    } else {
        zero<0>();
        if constexpr (kN > 1) zero<1>();
        if constexpr (kM > 1) zero<2>();
        if constexpr (kM > 1 && kN > 1) zero<3>();
    }
    int k = 0;
    for (; k + kTileSteps <= n_steps; k += kTileSteps) {
        if (ahead) ahead->fetch();
        add_step<kM, kN>(a + 2 * k, a_row, b + k * step, group, step);
    }
    if (k < n_steps) add_rest<kM, kN>(a + 2 * k, a_row, n_rows, b + k * step, group, step, n_steps - k);
    store<0>(out, out_row * 4);
    if constexpr (kN > 1) store<1>(out + kLanes, out_row * 4);
    if constexpr (kM > 1) store<2>(below, out_row * 4);
    if constexpr (kM > 1 && kN > 1) store<3>(below + kLanes, out_row * 4);
}

// product() by the matrix units. A tile takes kTileSteps terms at once, counted from the first of the call.
inline void product(const bf16* a, ptrdiff_t a_row, int n_rows, const bf16* b, ptrdiff_t group, ptrdiff_t step,
                    int n_steps, float* out, ptrdiff_t out_row, bool add, int n_vectors, Ahead* ahead) {
    const Units units;
    for (int r = 0; r < n_rows; r += 2 * kTileRows) {
        const int n = std::min(2 * kTileRows, n_rows - r), lower = n - kTileRows;
        shape(std::min(n, kTileRows), lower > 0 ? lower : kTileRows);
        const bf16* rows = a + r * a_row;
        for (int j = 0; j < n_vectors; j += 2) {
            const bf16* from = b + j * group;
            float* to = out + r * out_row + j * kLanes;
            const bool two = j + 1 < n_vectors;
            if (lower > 0 && two) block<2, 2>(rows, a_row, n, from, group, step, n_steps, to, out_row, add, ahead);
            else if (lower > 0) block<2, 1>(rows, a_row, n, from, group, step, n_steps, to, out_row, add, ahead);
            else if (two) block<1, 2>(rows, a_row, n, from, group, step, n_steps, to, out_row, add, ahead);
            else block<1, 1>(rows, a_row, n, from, group, step, n_steps, to, out_row, add, ahead);
        }
    }
}

}  // namespace amx
#endif

// n_rows rows times n_vectors vectors of columns, as tile(); a row of `a` is contiguous unless a_step says otherwise. An
// element's bits depend on its terms alone, and are the same where zeros follow them. A sum that is cut into several calls
// keeps its bits where each part but the last has a multiple of 32 terms. What `ahead` names is fetched meanwhile where
// the matrix units work.
template <class E>
void product(const typename E::Type* a, int a_row, int n_rows, const typename E::Type* b, ptrdiff_t group,
             ptrdiff_t step, int n_steps, float* out, int out_row, bool add, int n_vectors,
             ptrdiff_t a_step = E::kPair, [[maybe_unused]] Ahead* ahead = nullptr) {
#if defined(RAMET_AMX)
    if constexpr (E::kPair == 2)
        if (amx::available && a_step == E::kPair)
            return amx::product(a, a_row, n_rows, b, group, step, n_steps, out, out_row, add, n_vectors, ahead);
#endif
    for (int r = 0; r < n_rows; r += kRows)
        for (int j = 0; j < n_vectors; j += kColumns)
            tile_rows<E>(a + (ptrdiff_t)r * a_row, a_row, std::min(kRows, n_rows - r), b + j * group, group, step, n_steps,
                         out + (ptrdiff_t)r * out_row + j * kLanes, out_row, add, std::min(kColumns, n_vectors - j), a_step);
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
