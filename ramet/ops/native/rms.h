// What a row's norm is made of.
#pragma once
#include <cmath>

#include "simd.h"

namespace ramet {

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

// As a store and a load of S leave it.
template <class S>
INLINE Vec rounded(Vec x) {
    S part[kLanes];
    store(part, x);
    return load(part);
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

}  // namespace ramet
