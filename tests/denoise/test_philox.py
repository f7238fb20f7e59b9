"""Philox of many keys at once against numpy's."""

from __future__ import annotations

import numpy as np
import pytest

from ramet.denoise.noise import Noise, uniforms
from ramet.denoise.philox import words


@pytest.mark.parametrize("n", [1, 3, 4, 33])
def test_words_are_those_of_numpys_generator(n: int) -> None:
    rng = np.random.default_rng(n)
    keys = rng.integers(0, 1 << 64, (50, 2), np.uint64)
    counters = rng.integers(0, 1 << 64, (50, 4), np.uint64)
    counters[:, 0], counters[0, 1:], keys[0] = 0, (1 << 64) - 1, (1 << 64) - 1
    found = words(keys, counters, n)
    for row, key, counter in zip(found, keys, counters, strict=True):
        whole = int(key[0]) + (int(key[1]) << 64)
        np.testing.assert_array_equal(row, np.random.Philox(key=whole, counter=counter).random_raw(n))


def test_uniforms_are_those_of_each_noise() -> None:
    noises = [Noise.of(seed, np.zeros(0, np.int32)) for seed in (1, -5, None)]
    keys = np.array([noise.words for noise in noises], np.uint64)
    found = uniforms(keys, np.array([0, 7, 9], np.int32), np.array([3, 0, 1 << 20], np.int32), 30)
    for row, noise, canvas, step in zip(found, noises, [0, 7, 9], [3, 0, 1 << 20], strict=True):
        np.testing.assert_array_equal(row, noise.uniforms(canvas, step, 30))
