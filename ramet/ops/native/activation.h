// The activations of gated linear units.
#pragma once

#include "simd.h"

namespace ramet {

INLINE Vec sigmoid(Vec x) {
    Vec t = x * -1.44269504f;
    IVec vanishes = t > 126.0f;  // less than 2^-119, and beyond the range of exp2
    Vec factor = reciprocal(exp2(vanishes ? Vec{} : t) + 1.0f);
    return vanishes ? Vec{} : factor;
}

INLINE Vec silu(Vec x) { return x * sigmoid(x); }

// x / 2 * (1 + tanh(u)) = x * sigmoid(2 u): what cancels for x below 0 in the first keeps its digits in the second.
INLINE Vec gelu_tanh(Vec x) { return x * sigmoid(x * (1.59576912f + 0.0713548163f * x * x)); }

}  // namespace ramet
