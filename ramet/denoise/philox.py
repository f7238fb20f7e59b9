"""Philox4x64-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3") for many keys in one call.

NumPy's generator gives the same words, one key after the other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_ROUNDS = 10
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)
_FACTORS = np.array([0xD2E7470EE14C6C93, 0xCA5A826395121157], np.uint64)[:, None, None]
_KEY_STEPS = np.array([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], np.uint64)[:, None, None]


def words(keys: Words, counters: Words, n: int) -> Words:
    """[R, n] what ``numpy.random.Philox(key, counter).random_raw(n)`` gives for each of keys [R, 2] and counters
    [R, 4], whose first words must be 0."""
    blocks = np.arange(1, -(-n // 4) + 1, dtype=np.uint64)
    shape = (2, len(keys), len(blocks))
    even = np.zeros(shape, np.uint64)  # the counter's words 0 and 2
    odd = np.zeros(shape, np.uint64)  # its words 1 and 3
    even[0] = blocks
    even[1] = counters[:, 2, None]
    odd[0] = counters[:, 1, None]
    odd[1] = counters[:, 3, None]
    key = keys.T[:, :, None]
    for _ in range(_ROUNDS):
        low = even * _FACTORS
        even, odd = _high(even)[::-1] ^ odd ^ key, low[::-1]
        key = key + _KEY_STEPS
    return np.stack((even[0], odd[0], even[1], odd[1]), -1).reshape(len(keys), -1)[:, :n]


def _high(words: Words) -> Words:
    """The upper 64 bits of the products with _FACTORS, made of products of halves: no sum here exceeds 64 bits."""
    low, high = words & _LOW, words >> _HALF
    middle = high * (_FACTORS & _LOW)
    carried = (low * (_FACTORS & _LOW) >> _HALF) + (middle & _LOW) + low * (_FACTORS >> _HALF)
    found: Words = high * (_FACTORS >> _HALF) + (middle >> _HALF) + (carried >> _HALF)
    return found
