"""Reading the vocabulary on the CPU against its reference in float64, by both paths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from fixtures.cpu_variants import CpuVariants, skip_without_kernels

from ramet.ops.head import reference
from ramet.ops.head import torch as plain
from ramet.round import Stream, pack
from ramet.tree import IntArray, Read, Segment, Tree
from ramet.units import Unit, Units

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-5}  # sums are float32 in both
cpu = CpuVariants("head")


@pytest.fixture(params=["compiled", "plain"], autouse=True)
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    if request.param == "compiled":
        skip_without_kernels()
    monkeypatch.setattr(cpu, "has_native", request.param == "compiled")
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # quicker for many small arrays; other numbers are tested below
    torch.use_deterministic_algorithms(True)  # torch.empty is NaN
    yield str(request.param)
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


def reading(rng: np.random.Generator, rows: int, vocab_size: int, *, normalize: float = 0.5) -> Stream:
    """`rows` rows of one segment, some read twice and in no order, with duplicate columns."""
    order = [*rng.permutation(rows).tolist(), *rng.integers(0, rows, rows // 3).tolist()]
    columns = rng.integers(0, vocab_size, (len(order), 9)).astype(np.int32)
    columns[:, 1] = columns[:, 0]
    columns[0, :2] = 0, vocab_size - 1
    reads = [Read(columns[i, : rng.integers(1, 9)], row, bool(rng.random() < normalize)) for i, row in enumerate(order)]
    tree = Tree.of([Segment(np.zeros(rows, np.int32), reads=reads)])
    none = np.zeros(0, np.int32)
    return pack(Units.of([Unit(tree, none, 0, none)])).on(torch.device("cpu"))


def expected(
    hidden: torch.Tensor, weight: torch.Tensor, stream: Stream, softcap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = hidden.double() @ weight.double().T
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    row = torch.repeat_interleave(stream.read_index.long(), stream.offsets.diff().long())
    norms = logits.logsumexp(-1).masked_fill(stream.normalize == 0, torch.nan)
    return logits[row, stream.columns.long()], norms[stream.read_index.long()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 12, 63, 65])
@pytest.mark.parametrize(("vocab_size", "width"), [(1, 16), (1000, 63), (4097, 64), (20000, 130)])
def test_read(dtype: torch.dtype, rows: int, vocab_size: int, width: int) -> None:
    rng = np.random.default_rng(rows)
    stream = reading(rng, rows, vocab_size)
    hidden, weight = torch.randn(rows, width).to(dtype), torch.randn(vocab_size, width).to(dtype)
    found = cpu.read(hidden, cpu.prepare(weight), stream)
    for a, b in zip(found, expected(hidden, weight, stream), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=TOLERANCE[dtype], atol=1e-4, equal_nan=True)


def test_the_reference_agrees() -> None:
    stream = reading(np.random.default_rng(1), 20, 300)
    hidden, weight = torch.randn(20, 32), torch.randn(300, 32)
    for a, b in zip(
        reference.read(hidden, reference.prepare(weight), stream), expected(hidden, weight, stream), strict=True
    ):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("normalize", [0.0, 1.0])
def test_nothing_or_everything_normalised(normalize: float) -> None:
    stream = reading(np.random.default_rng(2), 7, 100, normalize=normalize)
    _, norms = cpu.read(torch.randn(7, 32), cpu.prepare(torch.randn(100, 32)), stream)
    assert bool(norms.isnan().all()) == (normalize == 0.0)
    assert bool(norms.isfinite().all()) == (normalize == 1.0)


def test_one_entry_far_above_the_rest() -> None:
    stream = reading(np.random.default_rng(3), 5, 9000, normalize=1.0)
    weight = torch.zeros(9000, 16)
    weight[8191] = 1000.0
    _, norms = cpu.read(torch.ones(5, 16), cpu.prepare(weight), stream)
    torch.testing.assert_close(norms, torch.full_like(norms, 16000.0))
    _, norms = cpu.read(-torch.ones(5, 16), cpu.prepare(weight), stream)
    torch.testing.assert_close(norms, torch.full_like(norms, float(np.log(8999))))


def test_nan_spoils_its_row_alone() -> None:
    stream = reading(np.random.default_rng(4), 9, 500, normalize=1.0)
    hidden = torch.randn(9, 32)
    hidden[3] = torch.nan
    logits, norms = cpu.read(hidden, cpu.prepare(torch.randn(500, 32)), stream)
    row = torch.repeat_interleave(stream.read_index, stream.offsets.diff())
    assert torch.equal(logits.isnan(), row == 3)
    assert torch.equal(norms.isnan(), stream.read_index == 3)


@pytest.mark.parametrize("column", [-1, 100])
def test_a_column_outside_the_vocabulary_is_refused(column: int) -> None:
    stream = reading(np.random.default_rng(5), 4, 100)
    stream.columns[3] = column
    with pytest.raises(IndexError, match="vocabulary"):
        cpu.read(torch.randn(4, 32), cpu.prepare(torch.randn(100, 32)), stream)


def test_preparing_copies_nothing() -> None:
    weight = torch.randn(100, 32)
    assert cpu.prepare(weight).weight.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [30.0, 1.5])
def test_softcap(dtype: torch.dtype, softcap: float) -> None:
    """Logits from far below the cap to far above it, of one product each, so that they are exact to rounding."""
    stream = reading(np.random.default_rng(6), 40, 5000, normalize=1.0)
    hidden, weight = torch.randn(40, 1).to(dtype), torch.randn(5000, 1).to(dtype)
    hidden *= torch.logspace(-4, 2, 40)[:, None].to(dtype)
    wanted = expected(hidden, weight, stream, softcap)
    for read in (cpu.read, reference.read):
        found = read(hidden, cpu.prepare(weight), stream, softcap)
        assert float(found[0].abs().max()) <= softcap
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double(), b, rtol=2e-6, atol=1e-30)


def test_softcap_of_nan_and_infinity() -> None:
    stream = reading(np.random.default_rng(7), 3, 50, normalize=1.0)
    hidden = torch.tensor([[1.0], [torch.nan], [3e38]]) * torch.tensor([1.0, 0.0, 0.0, 0.0])
    weight = torch.full((50, 4), 2.0)
    logits, norms = cpu.read(hidden, cpu.prepare(weight), stream, 30.0)
    rows = torch.repeat_interleave(stream.read_index, stream.offsets.diff())
    assert torch.equal(logits.isnan(), rows == 1)
    assert torch.equal(norms.isnan(), stream.read_index == 1)
    assert bool((logits[rows == 2] == 30.0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [0.0, 30.0])
@pytest.mark.parametrize("width", [66, 130])
def test_bits_of_a_row_depend_on_no_other_row(path: str, dtype: torch.dtype, softcap: float, width: int) -> None:
    """Every number of rows up to 200 among others, in any order."""
    if path == "plain" and softcap:
        pytest.skip("torch's tanh does not promise it")
    rng = np.random.default_rng(8)
    hidden, weight = torch.randn(200, width).to(dtype), torch.randn(9000, width).to(dtype)
    columns, vocabulary = rng.integers(0, 9000, (200, 3)).astype(np.int32), cpu.prepare(weight)

    def read(rows: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows, 3] and norms of some rows, in their order."""
        reads = [Read(columns[row], i) for i, row in enumerate(rows)]
        stream = pack(Units.of([Unit(Tree.of([Segment(np.zeros(len(rows), np.int32), reads=reads)]))])).on(
            torch.device("cpu")
        )
        logits, norms = cpu.read(hidden[rows], vocabulary, stream, softcap)
        return logits.view(-1, 3), norms

    logits, norms = read(np.arange(200, dtype=np.int32))
    assert bool(norms.isfinite().all())
    for n in (1, 1, 2, 3, 5, 6, 7, 12, 13, 16, 17, 31, 64, 65, 100, 199, 200):
        rows = rng.permutation(200)[:n].astype(np.int32)
        found = read(rows)
        assert torch.equal(found[0], logits[rows])
        assert torch.equal(found[1], norms[rows])


def test_bits_do_not_depend_on_where_a_row_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the plain path, whose parts of the vocabulary are many here."""
    monkeypatch.setattr(plain, "_CHUNK", 16)
    hidden, weight = torch.randn(2000, 8), torch.randn(320, 8)
    whole = plain.logsumexp(hidden, weight)
    for at in range(0, 2000, 13):
        assert torch.equal(plain.logsumexp(hidden[at : at + 13], weight), whole[at : at + 13])


def test_bits_do_not_depend_on_threads(path: str) -> None:
    if path != "compiled":
        pytest.skip("torch's products do not promise it")
    hidden, weight = torch.randn(70, 66).bfloat16(), torch.randn(9000, 66).bfloat16()
    row, entries = torch.zeros(4000, dtype=torch.int32), torch.arange(4000, dtype=torch.int32)
    one = cpu.logsumexp(hidden, weight), cpu.columns(hidden, weight, row, entries)
    torch.set_num_threads(2)
    two = cpu.logsumexp(hidden, weight), cpu.columns(hidden, weight, row, entries)
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])
