"""Acceptance, temperatures and stopping, against transformers' own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    EntropyBoundSampler,
    EntropyBoundSamplerConfig,
    LinearTemperatureScheduleLogitsProcessor,
    StableAndConfidentStoppingCriteria,
)

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.sampler import accepted, settled, temperature
from ramet.tree import FloatArray, IntArray

SETTINGS = CanvasConfig(
    vocab_size=20, canvas_length=4, max_steps=48, t_min=0.4, t_max=0.8, entropy_bound=0.1, stability_threshold=1,
    confidence_threshold=0.005, max_new_tokens=8,
)  # fmt: skip
ENTROPIES = st.lists(st.floats(0, 4, width=32), min_size=1, max_size=40).map(lambda each: np.array(each, np.float32))
BOUNDS = st.floats(0.01, 20)


def array(*values: float) -> FloatArray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(("entropy", "bound", "kept"), [
    ((3.0,), 0.1, (True,)),  # one at least
    ((3.0, 2.0), 0.1, (False, True)),
    ((0.0625, 3.0, 0.0), 0.1, (True, True, True)),  # what is before the third sums to 0.0625; its own does not count
    ((0.0625, 3.0, 0.0625), 0.1, (True, False, True)),
    ((0.5, 0.25, 0.25), 0.5, (True, True, True)),  # up to the bound, itself included
    ((0.5, 0.25, 0.25), 0.4375, (False, True, True)),
    ((1.0, 1.0, 1.0), 1.0, (True, True, False)),  # of equal ones the first rows
])  # fmt: skip
def test_acceptance(entropy: tuple[float, ...], bound: float, kept: tuple[bool, ...]) -> None:
    assert accepted(array(*entropy), bound).tolist() == list(kept)


def test_of_many_equal_ones_the_first_are_accepted() -> None:
    entropy = np.where(np.arange(256) % 2, 0.125, 3.0).astype(np.float32)
    assert np.flatnonzero(accepted(entropy, 1.0)).tolist() == list(range(1, 19, 2))


@given(ENTROPIES, BOUNDS)
def test_the_surest_are_accepted(entropy: FloatArray, bound: float) -> None:
    kept = accepted(entropy, bound)
    n = int(kept.sum())
    assert n >= 1
    assert entropy[kept].max() <= entropy[~kept].min(initial=np.inf)
    ranked = np.sort(entropy).astype(np.float64)
    assert ranked[: n - 1].sum() <= bound + 1e-9
    assert n == len(entropy) or ranked[:n].sum() > bound - 1e-9
    assert (accepted(entropy, bound * 2) >= kept).all()


@pytest.mark.parametrize("bound", [0.1, 1.0, 7.0, 100.0])
def test_acceptance_is_transformers_own(bound: float) -> None:
    logits = torch.randn(1, 64, 20, generator=torch.Generator().manual_seed(0)) * torch.linspace(0.5, 12, 64)[:, None]
    theirs = EntropyBoundSampler(EntropyBoundSamplerConfig(bound), 64, 20, 48)
    canvas = theirs.accept_canvas(torch.zeros(1, 64), torch.ones(1, 64), logits, 1)[0]
    entropy = torch.distributions.Categorical(logits=logits).entropy()[0].numpy()
    np.testing.assert_array_equal(accepted(entropy, bound), canvas.bool().numpy())
    assert canvas.sum() > 0
    assert canvas.sum() < 64 or bound == 100


def test_temperatures_are_transformers_own() -> None:
    schedule = LinearTemperatureScheduleLogitsProcessor(0.4, 0.8, 48)
    for step in range(48):
        theirs = schedule(torch.empty(0), torch.tensor(1.0), torch.tensor(48 - step, dtype=torch.int32))
        assert torch.tensor(1.0) / temperature(SETTINGS, step) == theirs
    assert temperature(SETTINGS, 0) == pytest.approx(0.8)
    assert temperature(SETTINGS, 47) == pytest.approx(0.4 + 0.4 / 48)


@pytest.mark.parametrize("stability", [0, 1, 2, 3])
@pytest.mark.parametrize("confidence", [0.5, 9.0])
def test_stopping_is_transformers_own(stability: int, confidence: float) -> None:
    """Over canvases that change rarely, with rows that grow surer."""
    rng, settings = np.random.default_rng(stability), replaced(stability, confidence)
    theirs = StableAndConfidentStoppingCriteria(stability, confidence)
    before: list[IntArray] = []
    found, wanted = [], []
    best = np.zeros(4, np.int32)
    for step in range(40):
        if rng.random() < 0.3:
            best = rng.integers(0, 20, 4).astype(np.int32)
        logits = torch.from_numpy(rng.normal(size=(1, 4, 20)) * step / 4)
        entropy = torch.distributions.Categorical(logits=logits).entropy()[0].float().numpy()
        wanted.append(bool(theirs(torch.from_numpy(best)[None], logits)[0]))
        found.append(settled(best, before[len(before) - stability :], entropy, settings))
        before.append(best)
    assert found == wanted
    assert any(found)
    assert not all(found) or stability == 0


def test_stopping_needs_as_many_steps_before() -> None:
    best, sure = np.zeros(4, np.int32), array(0, 0, 0, 0)
    settings = replaced(2, 0.5)
    assert not settled(best, [], sure, settings)
    assert not settled(best, [best], sure, settings)
    assert settled(best, [best, best], sure, settings)
    assert not settled(best, [best + 1, best], sure, settings)
    assert not settled(best, [best, best], array(0, 0, 1, 1), settings)  # 0.5 is not below 0.5
    assert settled(best, [best, best], array(0, 0, 1, 0.9), settings)


def replaced(stability: int, confidence: float) -> CanvasConfig:
    return replace(SETTINGS, stability_threshold=stability, confidence_threshold=confidence)
