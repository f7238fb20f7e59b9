"""Random numbers by what they are for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.denoise.noise import Noise
from ramet.values import MAX_SEED, MIN_SEED

PROMPT = np.array([3, 1, 4], np.int32)
SEEDS = st.integers(MIN_SEED, MAX_SEED)
SMALL = st.integers(0, 1000)


@given(SEEDS, SMALL, SMALL, st.integers(1, 64), st.integers(0, 64))
def test_a_row_s_number_depends_on_no_other_row(seed: int, canvas: int, step: int, n: int, more: int) -> None:
    noise = Noise.of(seed, PROMPT)
    np.testing.assert_array_equal(noise.ids(canvas, step, n, 199), noise.ids(canvas, step, n + more, 199)[:n])
    np.testing.assert_array_equal(noise.uniforms(canvas, step, n), noise.uniforms(canvas, step, n + more)[:n])


@given(SEEDS, SMALL, SMALL, st.sampled_from([1, 2, 199, 262144, 262145]))
def test_ranges(seed: int, canvas: int, step: int, vocab_size: int) -> None:
    noise = Noise.of(seed, PROMPT)
    ids, uniforms = noise.ids(canvas, step, 300, vocab_size), noise.uniforms(canvas, step, 300)
    assert ids.dtype == np.int32
    assert uniforms.dtype == np.float32
    assert 0 <= ids.min() <= ids.max() < vocab_size
    assert 0 <= uniforms.min() <= uniforms.max() < 1


def test_all_that_they_are_for_counts() -> None:
    other = np.array([3, 1, 5], np.int32)
    noises = [Noise.of(seed, PROMPT) for seed in (0, 1, -1, MIN_SEED, MAX_SEED)]
    noises += [Noise.of(None, PROMPT), Noise.of(None, other)]
    drawn = [noise.ids(c, s, 8, 1 << 18).tobytes() for noise in noises for c in (0, 1, 2) for s in (0, 1, 2)]
    drawn += [noise.uniforms(c, s, 8).tobytes() for noise in noises for c in (0, 1, 2) for s in (0, 1, 2)]
    assert len(set(drawn)) == len(drawn)
    assert Noise.of(5, PROMPT) == Noise.of(5, other)
    assert Noise.of(None, PROMPT) == Noise.of(None, PROMPT.copy())


def test_ids_and_uniforms_of_one_step_are_unrelated() -> None:
    noise = Noise.of(0, PROMPT)
    scaled = noise.ids(0, 0, 2000, 1 << 18) / (1 << 18)
    assert abs(np.corrcoef(scaled, noise.uniforms(0, 0, 2000))[0, 1]) < 0.1


@pytest.mark.parametrize("vocab_size", [7, 199])
def test_ids_are_as_likely(vocab_size: int) -> None:
    noise = Noise.of(1, PROMPT)
    n = 200 * vocab_size
    counts = np.bincount(noise.ids(0, 0, n, vocab_size), minlength=vocab_size)
    assert ((counts - 200) ** 2 / 200).sum() < vocab_size + 5 * (2 * vocab_size) ** 0.5  # chi squared, 5 deviations


def test_uniforms_are_even() -> None:
    uniforms = np.sort(Noise.of(1, PROMPT).uniforms(0, 0, 20000))
    assert np.abs(uniforms - np.linspace(0, 1, len(uniforms))).max() < 0.015


def test_numbers_stay_what_they_are() -> None:
    """A request that names its seed repeats, on every machine and with every release."""
    assert Noise.of(7, PROMPT).ids(1, 2, 4, 262144).tolist() == [174617, 246469, 99762, 91162]
    assert (Noise.of(None, PROMPT).uniforms(0, 0, 3) * 2**24).tolist() == [1195391, 15320393, 4050794]
