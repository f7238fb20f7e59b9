"""Drawing from a part of a vocabulary in Triton against the reference, of the same logits: on a GPU, or interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fixtures.draws import JUST_BELOW_1, sampling
from fixtures.triton_device import DEVICE

from ramet.ops.cut import triton as ours
from ramet.ops.head import reference
from ramet.ops.head import triton as head
from ramet.tree import Sampling

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where kernels are interpreted
_BLOCK = 128


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def drawn(logits: torch.Tensor, how: Sampling, excluded: int = -1) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, -1 where nothing was drawn, and how far their logits lie below the largest, of logits [N, V]. Behind
    the logits of a row is NaN, and among the rows is one that is not drawn."""
    n, n_entries = logits.shape
    n_blocks = -(-n_entries // _BLOCK)
    logits = logits.clone().to(DEVICE)
    if excluded >= 0:
        logits[:, excluded] = head.HIDDEN.value
    padded = torch.full((n, n_blocks * _BLOCK), head.HIDDEN.value, device=DEVICE)
    padded[:, :n_entries] = logits
    which = np.arange(n + 1)[np.arange(n + 1) != 1][:n]  # of n + 1 rows all but the second
    most = torch.full((n_blocks, n + 1), torch.nan, device=DEVICE)
    most[:, which] = padded.view(n, n_blocks, _BLOCK).amax(-1).T
    held = torch.full((n, n_entries + -n_entries % 16 + 16), torch.nan, device=DEVICE)
    held[:, :n_entries] = logits

    def spread(values: np.ndarray[Any, Any]) -> torch.Tensor:
        wide = np.zeros(n + 1, values.dtype)
        wide[which] = values
        return torch.from_numpy(wide).to(DEVICE)

    cuts = ours.Cuts(
        torch.from_numpy(which.astype(np.int32)).to(DEVICE), spread(how.temperatures), spread(how.uniforms),
        spread(how.top_p), spread(np.where(how.top_k < n_entries, how.top_k, 0)), held,
    )  # fmt: skip
    tokens = torch.full((n + 1,), -1, device=DEVICE)
    logprobs = torch.zeros(n + 1, device=DEVICE)
    ours.draw(cuts, most, n_entries, _BLOCK, tokens, logprobs)
    assert int(tokens[1]) == -1 or n == 1
    at = torch.from_numpy(which).to(DEVICE)
    return tokens[at], logprobs[at]


def check(logits: torch.Tensor, how: Sampling, excluded: int = -1) -> torch.Tensor:
    tokens, below = drawn(logits, how, excluded)
    logits = logits.clone().to(DEVICE)
    if excluded >= 0:
        logits[:, excluded] = float("-inf")
    assert torch.equal(tokens, reference.drawn(logits, how))
    assert torch.equal(below, logits.gather(1, tokens[:, None])[:, 0] - logits.max(-1).values)
    return tokens


@pytest.mark.parametrize("n_listed", [16384, 100, 24])
@pytest.mark.parametrize(("vocab_size", "excluded"), [(1, -1), (2, 0), (129, 128), (1000, 3), (2500, -1)])
def test_draws_are_the_references(
    vocab_size: int, excluded: int, n_listed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where logits are listed, and where there are more than the list holds."""
    monkeypatch.setattr(ours, "_LISTED", n_listed)
    rng, n = np.random.default_rng(vocab_size), 16
    how = sampling(
        n, rng.choice([0.3, 1, 2], n), rng.random(n), rng.choice([0, 1, 3, 20, vocab_size], n),
        rng.choice([1, 0.95, 0.5, 0], n),
    )  # fmt: skip
    check(torch.randn(n, vocab_size) * 2, how, excluded)


def test_what_equals_the_last_is_kept() -> None:
    """Of a few values each of which many logits have, 0 and -0 among them."""
    n, logits = 12, torch.randint(-2, 3, (12, 700)).float() / 2
    logits[logits == 0] *= torch.where(torch.rand(int((logits == 0).sum())) < 0.5, -1.0, 1.0)
    how = sampling(n, 1.0, np.linspace(0, JUST_BELOW_1, n), [1, 150, 400] * 4, [1, 1, 0.3, 0.7] * 3)
    check(logits, how)


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (0, 0.6), (20, 0.8)])
def test_the_ends_of_a_part(top_k: int, top_p: float) -> None:
    """The first id and the last that are kept; where these are, transformers says."""
    from transformers.generation import logits_process as warpers

    logits = torch.randn(2, 600) * 2
    scores = warpers.TemperatureLogitsWarper(0.7)(None, logits.double())
    if top_k:
        scores = warpers.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = warpers.TopPLogitsWarper(top_p)(None, scores)
    kept = [row.isfinite().nonzero()[:, 0] for row in scores]
    firsts = check(logits, sampling(2, 0.7, 0.0, top_k, top_p))
    lasts = check(logits, sampling(2, 0.7, JUST_BELOW_1, top_k, top_p))
    assert firsts.tolist() == [int(ids[0]) for ids in kept]
    assert lasts.tolist() == [int(ids[-1]) for ids in kept]


@pytest.mark.parametrize("temperature", [1e-20, 1e-3, 1e3, 1e20])
def test_temperatures(temperature: float) -> None:
    logits = torch.randn(4, 300) * 10
    check(logits, sampling(4, temperature, [0.1, 0.9, 0.5, 0.3], [0, 3, 7, 0], [0.5, 1, 0.9, 0.999]), excluded=7)


def test_values_near_and_far() -> None:
    """Neighbouring numbers, tiny ones, and all that is kept below 0."""
    n = 4
    near = torch.tensor([[20.0]]).view(torch.int32) + torch.randint(0, 9, (n, 300), dtype=torch.int32)
    for logits in (near.view(torch.float32), torch.randn(n, 300) * 1e-42, -50 - torch.rand(n, 300) * 9):
        check(logits, sampling(n, 1.0, np.linspace(0, 0.99, n), [0, 5, 30, 299], [0.5, 1, 0.9, 0.3]))


def test_a_row_of_nan_ends() -> None:
    """And draws some id or none; other rows are as they would be without it."""
    logits = torch.randn(9, 500)
    how = sampling(9, 1.0, 0.4, [0, 4, 20] * 3, [0.8, 1, 0.8] * 3)
    whole, _ = drawn(logits, how, 0)
    logits[:3] = torch.nan
    logits[3:6, 17] = torch.nan
    tokens, _ = drawn(logits, how, 0)
    assert torch.equal(tokens[6:], whole[6:])
    assert bool(((tokens[:6] == -1) | (tokens[:6] > 0)).all())
    assert bool((tokens < 500).all())


@pytest.mark.skipif(DEVICE.type != "cuda", reason="true sizes need a GPU")
@pytest.mark.parametrize("scale", [1.0, 3.0, 6.0])
def test_true_sizes(scale: float) -> None:
    rng, n = np.random.default_rng(1), 96
    how = sampling(
        n, rng.choice([0.3, 0.6, 1], n), rng.random(n), rng.choice([0, 1, 20, 1000, 5000], n),
        rng.choice([1, 0.95, 0.3], n),
    )  # fmt: skip
    check(torch.randn(n, 151936) * scale, how, 5)
