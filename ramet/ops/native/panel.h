// Products with a weight packed once at load: vectors of kLanes columns, each [room / kPair][kLanes][kPair].
#pragma once

#include "tile.h"

namespace ramet {

// Whether the matrix units multiply this element.
template <class E>
bool by_units() {
    return amx::available && E::kPair == 2;
}

// Rows that pass a weight at a time, vectors of columns that are taken at a time, and steps of a sum that are taken for
// all of these: blocks of the matrix units, which stay with a sum to its end, or of registers.
template <class E>
int rows_at_once() {
    return by_units<E>() ? 32 : 8 * kRows;
}
template <class E>
int vectors_at_once() {
    return by_units<E>() ? 2 : 4;
}
template <class E>
int steps_at_once() {
    return by_units<E>() ? 1 << 20 : 512;
}

// Elements from a row to the next in scratch memory: an odd number of lines, so that rows do not share a cache's set.
template <class T>
int padded(int width) {
    constexpr int kLine = 64 / sizeof(T);
    return (divide_up(width, kLine) | 1) * kLine;
}

// A row of `width` elements as one that can be multiplied, with zeros up to `room`.
template <class E, class S>
void copy_row(const S* from, int width, int room, typename E::Type* to) {
    if constexpr (std::is_same<S, typename E::Type>::value) std::memcpy(to, from, width * sizeof(S));
    else
        for (int c = 0; c < width; ++c) to[c] = E::from(from[c]);
    for (int c = width; c < room; ++c) to[c] = typename E::Type{};
}

// sums [n_rows][n_vectors * kLanes] = rows of `a` times packed vectors.
template <class E>
void multiply(const typename E::Type* a, int a_row, int n_rows, const typename E::Type* b, int room, int n_vectors,
              float* sums, int out_row, Ahead* ahead = nullptr) {
    const int n_steps = room / E::kPair, most = steps_at_once<E>();
    for (int k = 0; k < n_steps; k += most)
        product<E>(a + k * E::kPair, a_row, n_rows, b + (ptrdiff_t)k * kLanes * E::kPair, (ptrdiff_t)kLanes * room,
                   kLanes * E::kPair, std::min(most, n_steps - k), sums, out_row, k > 0, n_vectors, E::kPair, ahead);
}

// How often multiply() fetches ahead.
inline int64_t n_fetches(int n_rows, int room, int n_vectors) {
    return std::max<int64_t>(1, (int64_t)divide_up(n_rows, 32) * (room / 32) * divide_up(n_vectors, 2));
}

// weight [n_parts * n_rows, width] as vectors of kLanes rows, those of the parts in turn; the last of a part is padded.
template <class E, class S>
void pack_vectors(const S* weight, int n_parts, int n_rows, int width, typename E::Type* out) {
    for (int r = 0; r < n_rows; r += kLanes)
        for (int part = 0; part < n_parts; ++part) {
            const S* rows[kLanes];
            const int n = std::min(kLanes, n_rows - r);
            for (int i = 0; i < n; ++i) rows[i] = weight + ((int64_t)part * n_rows + r + i) * width;
            pack_columns<E, S>(rows, n, width, out);
            out += (ptrdiff_t)kLanes * round_up(width, E::kPair);
        }
}

}  // namespace ramet
