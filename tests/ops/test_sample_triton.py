"""Drawing ids in Triton against the same in float64: on a GPU, or interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fixtures.draws import JUST_BELOW_1, assert_drawn, assert_ends, assert_one_entry, random_sampling, same, sampling
from fixtures.triton_device import DEVICE

from ramet.ops.head import reference
from ramet.ops.head import triton as ours
from ramet.ops.head.reference import Sampled, Vocabulary
from ramet.tree import Sampling

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where kernels are interpreted
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def places(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int32, device=DEVICE)


def as_vocabulary(logits: torch.Tensor) -> tuple[torch.Tensor, Vocabulary]:
    """Hidden states [N, N] and a vocabulary whose products are these logits [N, V]."""
    return torch.eye(len(logits), device=DEVICE), ours.prepare(logits.T.contiguous().to(DEVICE))


def drawn(logits: torch.Tensor, how: Sampling, **options: Any) -> Sampled:
    """By the kernels, of logits [N, V]; in float32, with the reference at its side."""
    hidden, vocabulary = as_vocabulary(logits)
    found, wanted = (m.sample(hidden, places(len(logits)), vocabulary, how, **options) for m in (ours, reference))
    assert torch.equal(found.tokens, wanted.tokens)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 70])
@pytest.mark.parametrize(("vocab_size", "width", "excluded"), [(2, 16, 0), (500, 63, 499), (1025, 136, 5)])
def test_sample(dtype: torch.dtype, n: int, vocab_size: int, width: int, excluded: int) -> None:
    """Of states with further rows of NaN."""
    rng = np.random.default_rng(n)
    rows, how = torch.from_numpy(rng.integers(0, 20, n).astype(np.int32)).to(DEVICE), random_sampling(rng, n)
    hidden = torch.cat((torch.randn(20, width) / width**0.5, torch.full((3, width), torch.nan))).to(dtype).to(DEVICE)
    weight = torch.randn(vocab_size, width).to(dtype).to(DEVICE)
    found = ours.sample(hidden, rows, ours.prepare(weight), how, excluded=excluded)
    logits = hidden[rows.long()].double() @ weight.double().T
    tokens, logprobs, entropy = reference.sampled(logits, how, excluded)
    assert_drawn(found, tokens, logprobs, entropy)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6])
def test_the_likeliest_is_the_lowest_of_equals(temperature: float) -> None:
    logits = torch.zeros(3, 700)
    logits[0, [77, 78, 699]] = 2.0
    logits[1, [511, 512]] = 1.0
    found = drawn(logits, sampling(3, temperature, 0.0))
    assert found.tokens.tolist() == [77, 511, 0]
    torch.testing.assert_close(found.logprobs.cpu(), logits.log_softmax(-1).max(-1).values)


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("likeliest", [0, 127, 128, 640])
def test_the_excluded_id_is_never_drawn(temperature: float, likeliest: int) -> None:
    logits = torch.randn(20, 641)
    logits[:, likeliest] = 50.0
    uniforms = np.append(np.linspace(0.01, 0.99, 19), JUST_BELOW_1)
    found = drawn(logits, sampling(20, temperature, uniforms, [0, 0, 2, 0] * 5), excluded=likeliest)
    assert bool((found.tokens != likeliest).all())
    left = logits.index_fill(1, torch.tensor(likeliest), float("-inf")).log_softmax(-1).to(DEVICE)
    torch.testing.assert_close(found.logprobs, left.gather(1, found.tokens[:, None])[:, 0])
    torch.testing.assert_close(found.entropy, -(left.exp() * left.clamp(min=-1e9)).sum(-1))


@pytest.mark.parametrize("vocab_size", [2, 32, 33, 128, 129, 1000])
def test_uniforms_at_the_ends_draw_the_first_and_the_last(vocab_size: int) -> None:
    assert_ends(drawn, vocab_size)


def test_one_entry() -> None:
    assert_one_entry(drawn)


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_as_often_as_likely(temperature: float) -> None:
    """Draws by uniforms in equal steps: each id falls within one step of its share."""
    n, logits = 400, torch.randn(1, 300) * 2
    hidden, vocabulary = as_vocabulary(logits)
    how = sampling(n, temperature, (np.arange(n) + 0.5) / n)
    found = ours.sample(hidden, torch.zeros(n, dtype=torch.int64, device=DEVICE), vocabulary, how)
    counts = torch.bincount(found.tokens.cpu(), minlength=300)
    assert float((counts - n * (logits[0] / temperature).softmax(-1)).abs().max()) <= 1.01
    assert bool((found.tokens.diff() >= 0).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap(dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(20, 1).to(dtype).to(DEVICE), torch.randn(700, 1).to(dtype).to(DEVICE)
    how = sampling(20, [0, 1, 0.5, 1] * 5, np.linspace(0.01, 0.99, 20), [0, 0, 0, 9] * 5)
    logits = hidden.double() @ weight.double().T
    tokens, logprobs, entropy = reference.sampled(4 * torch.tanh(logits / 4), how, 7)
    found = ours.sample(hidden, places(20), ours.prepare(weight), how, excluded=7, softcap=4.0)
    held = found.tokens == tokens
    assert int(held.sum()) >= 18  # capped logits are all but equal, some
    torch.testing.assert_close(found.logprobs[held].double(), logprobs[held], rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=1e-5, atol=2e-5)


def test_nan_spoils_its_row_alone() -> None:
    hidden, vocabulary = torch.randn(9, 32, device=DEVICE), ours.prepare(torch.randn(300, 32, device=DEVICE))
    how, rows = random_sampling(np.random.default_rng(1), 9), places(9)
    whole = ours.sample(hidden, rows, vocabulary, how, excluded=0)
    hidden[[3, 5]] = torch.nan
    found = ours.sample(hidden, rows, vocabulary, how, excluded=0)
    spoilt = torch.isin(rows, torch.tensor([3, 5], device=DEVICE))
    assert torch.equal(found.logprobs.isnan(), spoilt)
    assert torch.equal(found.entropy.isnan(), spoilt)
    assert torch.equal(found.tokens[~spoilt], whole.tokens[~spoilt])
    assert bool(((found.tokens > 0) & (found.tokens < 300)).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.0, 3.0])
def test_what_a_row_gets_depends_on_no_other_row(dtype: torch.dtype, softcap: float) -> None:
    """Any number of rows among others, in any order; of those beside it any may be drawn in another way."""
    rng, most = np.random.default_rng(8), 140 if DEVICE.type == "cuda" else 68
    hidden, weight = (torch.randn(most, 136) / 8).to(dtype).to(DEVICE), torch.randn(700, 136).to(dtype).to(DEVICE)
    how, vocabulary = random_sampling(rng, most), ours.prepare(weight)
    options: dict[str, Any] = {"excluded": 9, "softcap": softcap}
    whole = ours.sample(hidden, places(most), vocabulary, how, **options)
    cold = np.flatnonzero(how.temperatures == 0)
    for which in (*(rng.permutation(most)[:n] for n in (1, 2, 13, 65)), cold, cold[:3]):
        rows = torch.from_numpy(which).to(DEVICE)
        found = ours.sample(hidden, rows, vocabulary, reference.part_of(how, which), **options)
        assert same(found, whole, rows)


@pytest.mark.parametrize("held", [1, 5])
def test_rows_in_pieces(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more are drawn from a part of the vocabulary than logits are held of."""
    rng, hidden = np.random.default_rng(4), torch.randn(21, 48, device=DEVICE)
    how, vocabulary = random_sampling(rng, 21), ours.prepare(torch.randn(300, 48, device=DEVICE))
    whole = ours.sample(hidden, places(21), vocabulary, how, excluded=2)
    monkeypatch.setattr(ours, "_HELD", held)
    assert np.count_nonzero(reference.is_cut(how)) > held
    assert same(ours.sample(hidden, places(21), vocabulary, how, excluded=2), whole)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="true sizes need a GPU")
@pytest.mark.parametrize(("n", "width", "vocab_size"), [(16, 4096, 151936), (300, 2048, 157184)])
def test_true_sizes(n: int, width: int, vocab_size: int) -> None:
    rng = np.random.default_rng(9)
    hidden = torch.randn(n, width, dtype=torch.bfloat16, device=DEVICE)
    weight = torch.randn(vocab_size, width, dtype=torch.bfloat16, device=DEVICE) * (3 / width**0.5)
    how, vocabulary = random_sampling(rng, n), ours.prepare(weight)
    whole = ours.sample(hidden, places(n), vocabulary, how, excluded=7)
    for at in range(0, n, 16):
        logits = hidden[at : at + 16].double() @ weight.double().T
        tokens, logprobs, entropy = reference.sampled(logits, reference.part_of(how, slice(at, at + 16)), 7)
        own = slice(at, at + 16)
        same_tokens = whole.tokens[own] == tokens
        assert int(same_tokens.sum()) >= len(tokens) - 1  # a uniform may fall within rounding of an edge
        torch.testing.assert_close(whole.logprobs[own][same_tokens].double(), logprobs[same_tokens], rtol=0, atol=1e-4)
        torch.testing.assert_close(whole.entropy[own].double(), entropy, rtol=0, atol=1e-4)
    for which in (np.arange(1), np.arange(n)[::-1].copy(), rng.permutation(n)[: n // 2]):
        found = ours.sample(
            hidden, torch.from_numpy(which).to(DEVICE), vocabulary, reference.part_of(how, which), excluded=7
        )
        assert same(found, whole, torch.from_numpy(which).to(DEVICE))
