"""Drawing ids on the CPU against the same in float64, by both paths."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.cpu_variants import CpuVariants, skip_without_kernels
from fixtures.draws import JUST_BELOW_1, assert_drawn, assert_ends, assert_one_entry, random_sampling, same, sampling
from oracles.decoders import decoder

from ramet.ops.head import native, reference
from ramet.ops.head import torch as plain
from ramet.ops.head.reference import Sampled, Vocabulary
from ramet.tree import Sampling

DTYPES = [torch.float32, torch.bfloat16]
cpu = CpuVariants("head")


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "compiled":
        skip_without_kernels()
    monkeypatch.setattr(cpu, "has_native", request.param == "compiled")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)  # torch.empty is NaN
    yield str(request.param)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


def as_vocabulary(logits: torch.Tensor) -> tuple[torch.Tensor, Vocabulary]:
    """Hidden states [N, N] and a vocabulary whose products are these logits [N, V]."""
    return torch.eye(len(logits)), cpu.prepare(logits.T.contiguous())


def drawn(logits: torch.Tensor, how: Sampling, **options: Any) -> Sampled:
    """By the op, of logits [N, V]; in float32, with the reference at its side."""
    hidden, vocabulary = as_vocabulary(logits)
    rows = torch.arange(len(logits))
    found, wanted = (m.sample(hidden, rows, vocabulary, how, **options) for m in (cpu, reference))
    assert torch.equal(found.tokens, wanted.tokens)
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 33, 70])
@pytest.mark.parametrize(
    ("vocab_size", "width", "excluded"), [(2, 16, 0), (1000, 63, 999), (4097, 64, -1), (9001, 130, 5)]
)
def test_sample(dtype: torch.dtype, n: int, vocab_size: int, width: int, excluded: int) -> None:
    rng = np.random.default_rng(n)
    rows, how = torch.from_numpy(rng.integers(0, 20, n).astype(np.int32)), random_sampling(rng, n)
    hidden, weight = (torch.randn(20, width) / width**0.5).to(dtype), torch.randn(vocab_size, width).to(dtype)
    logits = hidden[rows.long()].double() @ weight.double().T
    tokens, logprobs, entropy = reference.sampled(logits, how, excluded)
    for module in (cpu, reference):
        found = module.sample(hidden, rows, cpu.prepare(weight), how, excluded=excluded)
        assert_drawn(found, tokens, logprobs, entropy)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-6])
def test_the_likeliest_is_the_lowest_of_equals(temperature: float) -> None:
    logits = torch.zeros(3, 5000)
    logits[0, [77, 78, 4999]] = 2.0
    logits[1, [1023, 1024]] = 1.0
    found = drawn(logits, sampling(3, temperature, 0.0))
    assert found.tokens.tolist() == [77, 1023, 0]
    torch.testing.assert_close(found.logprobs, logits.log_softmax(-1).max(-1).values)


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("likeliest", [0, 63, 64, 2999])
def test_the_excluded_id_is_never_drawn(temperature: float, likeliest: int) -> None:
    logits = torch.randn(40, 3000)
    logits[:, likeliest] = 50.0
    uniforms = np.append(np.linspace(0.01, 0.99, 39), JUST_BELOW_1)
    found = drawn(logits, sampling(40, temperature, uniforms, [0, 0, 2, 0] * 10), excluded=likeliest)
    assert bool((found.tokens != likeliest).all())
    left = logits.index_fill(1, torch.tensor(likeliest), float("-inf")).log_softmax(-1)
    torch.testing.assert_close(found.logprobs, left.gather(1, found.tokens[:, None])[:, 0])
    torch.testing.assert_close(found.entropy, -(left.exp() * left.clamp(min=-1e9)).sum(-1))


@pytest.mark.parametrize("vocab_size", [2, 64, 65, 1024, 1025, 3001])
def test_uniforms_at_the_ends_draw_the_first_and_the_last(vocab_size: int) -> None:
    assert_ends(drawn, vocab_size)


def test_one_entry() -> None:
    assert_one_entry(drawn)


@pytest.mark.parametrize(("top_k", "top_p"), [(0, 1.0), (40, 1.0), (0, 0.7), (30, 0.8)])
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_as_often_as_likely(top_k: int, top_p: float, temperature: float) -> None:
    """2,000 draws by uniforms in equal steps fall as transformers' warpers have it, each id's within one step."""
    n, logits = 2000, torch.randn(1, 300) * 2
    hidden, vocabulary = as_vocabulary(logits)
    rows, uniforms = torch.zeros(n, dtype=torch.int64), (np.arange(n) + 0.5) / n
    found = cpu.sample(hidden, rows, vocabulary, sampling(n, temperature, uniforms, top_k, top_p))
    share = warped(logits[0], temperature, top_k, top_p)
    counts = torch.bincount(found.tokens, minlength=300)
    assert bool((counts[share == 0] == 0).all())
    assert float((counts - n * share).abs().max()) <= 1.01
    assert bool((found.tokens.diff() >= 0).all())


def warped(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """Probabilities [V] by transformers."""
    from transformers.generation import logits_process as warpers

    scores = warpers.TemperatureLogitsWarper(temperature)(None, logits[None].double())
    if top_k:
        scores = warpers.TopKLogitsWarper(top_k)(None, scores)
    if top_p < 1:
        scores = warpers.TopPLogitsWarper(top_p)(None, scores)
    return scores.softmax(-1)[0]


def test_chi_square_of_random_draws() -> None:
    n, logits = 20000, torch.randn(1, 50)
    hidden, vocabulary = as_vocabulary(logits)
    uniforms = np.random.default_rng(3).random(n)
    found = cpu.sample(hidden, torch.zeros(n, dtype=torch.int64), vocabulary, sampling(n, 1.0, uniforms))
    expected = n * logits[0].softmax(-1)
    chi = float(((torch.bincount(found.tokens, minlength=50) - expected) ** 2 / expected).sum())
    assert 20 < chi < 90  # 49 degrees of freedom


def test_the_least_part_of_a_vocabulary_are_the_likeliest() -> None:
    logits = torch.randn(5, 2000)
    logits[:, 600] = logits[:, 300] = 9.0
    for how in (sampling(5, 1.0, 0.3, 1), sampling(5, 1.0, 0.3, 0, 1e-6), sampling(5, 1.0, 0.3, 3, 0.0)):
        assert drawn(logits, how).tokens.tolist() == [300] * 5
        how.uniforms[:] = JUST_BELOW_1
        assert drawn(logits, how).tokens.tolist() == [600] * 5


@pytest.mark.parametrize("dtype", DTYPES)
def test_softcap(dtype: torch.dtype) -> None:
    hidden, weight = torch.randn(40, 1).to(dtype), torch.randn(3000, 1).to(dtype)
    how = sampling(40, [0, 1, 0.5, 1] * 10, np.linspace(0.01, 0.99, 40), [0, 0, 0, 9] * 10)
    logits = hidden.double() @ weight.double().T
    tokens, logprobs, entropy = reference.sampled(4 * torch.tanh(logits / 4), how, 7)
    for module in (cpu, reference):
        found = module.sample(hidden, torch.arange(40), cpu.prepare(weight), how, excluded=7, softcap=4.0)
        held = found.tokens == tokens
        assert int(held[1:].sum()) >= 37  # capped logits are all but equal, some
        torch.testing.assert_close(found.logprobs[held].double(), logprobs[held], rtol=1e-5, atol=2e-5)
        torch.testing.assert_close(found.entropy.double(), entropy, rtol=1e-5, atol=2e-5)


def test_nan_spoils_its_row_alone() -> None:
    hidden, weight = torch.randn(9, 32), torch.randn(500, 32)
    how = random_sampling(np.random.default_rng(1), 9)
    vocabulary, rows = cpu.prepare(weight), torch.arange(9)
    whole = cpu.sample(hidden, rows, vocabulary, how, excluded=0)
    hidden[[3, 5]] = torch.nan
    found = cpu.sample(hidden, rows, vocabulary, how, excluded=0)
    spoilt = torch.isin(rows, torch.tensor([3, 5]))
    assert torch.equal(found.logprobs.isnan(), spoilt)
    assert torch.equal(found.entropy.isnan(), spoilt)
    assert torch.equal(found.tokens[~spoilt], whole.tokens[~spoilt])
    assert bool(((found.tokens > 0) & (found.tokens < 500)).all())


def test_a_decoder_draws_from_its_own_head() -> None:
    model = decoder("gemma3")
    hidden, rows = torch.randn(4, model.shape.hidden_size), torch.tensor([3, 0, 3])
    how = sampling(3, [0, 1, 0], [0.5, 0.9, 0.1])
    found = model.sample(hidden, rows, how, 7)
    logits = reference.capped(hidden[rows] @ model.head.weight.T, model.shape.softcap)
    tokens, logprobs, _ = reference.sampled(logits, how, 7)
    assert torch.equal(found.tokens, tokens)
    torch.testing.assert_close(found.logprobs, logprobs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [66, 130])
def test_what_a_row_gets_depends_on_no_other_row(dtype: torch.dtype, width: int) -> None:
    """Every number of rows up to 100 among others, in any order."""
    rng = np.random.default_rng(8)
    hidden, weight = (torch.randn(100, width) / 8).to(dtype), torch.randn(3000, width).to(dtype)
    how, vocabulary = random_sampling(rng, 100), cpu.prepare(weight)
    whole = cpu.sample(hidden, torch.arange(100), vocabulary, how, excluded=9)
    assert bool(whole.entropy.isfinite().all())
    for n in (1, 1, 2, 3, 7, 16, 17, 33, 65, 99, 100):
        rows = rng.permutation(100)[:n]
        found = cpu.sample(hidden, torch.from_numpy(rows), vocabulary, reference.part_of(how, rows), excluded=9)
        assert same(found, whole, torch.from_numpy(rows))


@pytest.mark.parametrize("held", [1, 5])
def test_rows_in_pieces(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more are drawn from a part of the vocabulary than logits are held of."""
    rng, hidden = np.random.default_rng(4), torch.randn(21, 48)
    how, vocabulary, rows = random_sampling(rng, 21), cpu.prepare(torch.randn(300, 48)), torch.arange(21)
    whole = cpu.sample(hidden, rows, vocabulary, how, excluded=2)
    for module in (native, plain):
        monkeypatch.setattr(module, "_HELD", held)
    assert np.count_nonzero(reference.is_cut(how)) > held
    assert same(cpu.sample(hidden, rows, vocabulary, how, excluded=2), whole)


def test_equals_of_the_last_are_kept() -> None:
    """Of a few values each of which many logits have, 0 and -0 among them, and of a part that is most of the whole."""
    logits = torch.randint(-2, 3, (12, 3000)).float() / 2
    logits[:, ::7] *= -1
    drawn(logits, sampling(12, 1.0, np.linspace(0, JUST_BELOW_1, 12), [1, 500, 2999] * 4, [1, 1, 0.3, 0.7] * 3))
    drawn(torch.randn(12, 6000), sampling(12, 2.0, np.linspace(0, JUST_BELOW_1, 12), 0, [0.9, 0.99, 0.5, 0] * 3))


def test_what_a_row_gets_does_not_depend_on_threads(path: str) -> None:
    if path != "compiled":
        pytest.skip("torch's products do not promise it")
    hidden, vocabulary = torch.randn(70, 66).bfloat16(), cpu.prepare(torch.randn(9000, 66).bfloat16())
    how, rows = random_sampling(np.random.default_rng(2), 70), torch.arange(70)
    one = cpu.sample(hidden, rows, vocabulary, how)
    torch.set_num_threads(2)
    assert same(cpu.sample(hidden, rows, vocabulary, how), one)
