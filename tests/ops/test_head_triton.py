"""Reading the vocabulary in Triton against its reference in float64: on a GPU, or interpreted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fixtures.triton_device import DEVICE
from oracles import head_lists

from ramet.ops.head import reference
from ramet.ops.head import triton as ours
from ramet.round import Round, Stream, pack
from ramet.tree import IntArray, Read, Segment, Tree
from ramet.units import Unit, Units

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, where kernels are interpreted
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def reading(rng: np.random.Generator, rows: int, vocab_size: int, *, normalize: float = 0.5) -> Round:
    """`rows` rows of one segment, some read twice and in no order, with duplicate columns and reads without any."""
    order = [*rng.permutation(rows).tolist(), *rng.integers(0, rows, rows // 3).tolist()]
    columns = rng.integers(0, vocab_size, (len(order), 9)).astype(np.int32)
    columns[:, 1] = columns[:, 0]
    columns[0, :2] = 0, vocab_size - 1
    reads = [
        Read(columns[i, : rng.integers(i > 0, 9)], row, bool(rng.random() < normalize)) for i, row in enumerate(order)
    ]
    return pack(Units.of([Unit(Tree.of([Segment(np.zeros(rows, np.int32), reads=reads)]))]))


def stream_of(packed: Round) -> Stream:
    return packed.with_work(head_lists.plan(packed)).on(DEVICE)


def read(
    hidden: torch.Tensor, weight: torch.Tensor, stream: Stream, softcap: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """By the kernels, behind further rows of NaN."""
    padded = torch.cat((hidden, torch.full_like(hidden[:1], torch.nan).expand(5, -1)))
    return ours.read(padded, ours.prepare(weight), stream, softcap)


def assert_as_reference(
    hidden: torch.Tensor, weight: torch.Tensor, stream: Stream, softcap: float = 0.0, atol: float = 1e-4
) -> None:
    exact = reference.Vocabulary(weight.double())
    logits = reference.capped(hidden.double() @ exact.weight.T, softcap)
    row = torch.repeat_interleave(stream.read_index.long(), stream.offsets.diff().long())
    norms = logits.logsumexp(-1).masked_fill(stream.normalize == 0, torch.nan)[stream.read_index.long()]
    for found, expected in zip(
        read(hidden, weight, stream, softcap), (logits[row, stream.columns.long()], norms), strict=True
    ):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=atol, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 12, 65])
@pytest.mark.parametrize(("vocab_size", "width"), [(1, 16), (500, 63), (1025, 130)])
def test_read(dtype: torch.dtype, rows: int, vocab_size: int, width: int) -> None:
    stream = stream_of(reading(np.random.default_rng(rows), rows, vocab_size))
    hidden = torch.randn(rows, width).to(dtype).to(DEVICE)
    assert_as_reference(hidden, torch.randn(vocab_size, width).to(dtype).to(DEVICE), stream)


@pytest.mark.parametrize("normalize", [0.0, 1.0])
def test_nothing_or_everything_normalised(normalize: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not normalize:
        monkeypatch.delattr(ours, "_logsumexp")  # costs nothing
    stream = stream_of(reading(np.random.default_rng(2), 7, 100, normalize=normalize))
    _, norms = read(torch.randn(7, 32, device=DEVICE), torch.randn(100, 32, device=DEVICE), stream)
    assert bool(norms.isnan().all()) == (normalize == 0.0)
    assert bool(norms.isfinite().all()) == (normalize == 1.0)


def test_one_entry_far_above_the_rest() -> None:
    stream = stream_of(reading(np.random.default_rng(3), 5, 900, normalize=1.0))
    weight, ones = torch.zeros(900, 16, device=DEVICE), torch.ones(5, 16, device=DEVICE)
    weight[819] = 1000.0
    _, norms = read(ones, weight, stream)
    torch.testing.assert_close(norms, torch.full_like(norms, 16000.0))
    _, norms = read(-ones, weight, stream)
    torch.testing.assert_close(norms, torch.full_like(norms, float(np.log(899))))


def test_nan_spoils_its_row_alone() -> None:
    stream = stream_of(reading(np.random.default_rng(4), 9, 300, normalize=1.0))
    hidden = torch.randn(9, 32, device=DEVICE)
    hidden[3] = torch.nan
    logits, norms = read(hidden, torch.randn(300, 32, device=DEVICE), stream)
    row = torch.repeat_interleave(stream.read_index, stream.offsets.diff())
    assert torch.equal(logits.isnan(), row == 3)
    assert torch.equal(norms.isnan(), stream.read_index == 3)


@pytest.mark.parametrize("column", [-1, 100, 2**31 - 1])
def test_a_column_outside_the_vocabulary_is_nan(column: int) -> None:
    stream = stream_of(reading(np.random.default_rng(5), 4, 100))
    stream.columns[3] = column
    logits, _ = read(torch.randn(4, 32, device=DEVICE), torch.randn(100, 32, device=DEVICE), stream)
    assert torch.equal(logits.isnan(), torch.arange(len(logits), device=DEVICE) == 3)


def test_preparing_copies_nothing() -> None:
    weight = torch.randn(100, 32, device=DEVICE)
    assert ours.prepare(weight).weight.data_ptr() == weight.data_ptr()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [30.0, 1.5])
def test_softcap(dtype: torch.dtype, softcap: float) -> None:
    """Logits from far below the cap to far above it, of one product each, so that they are exact to rounding."""
    stream = stream_of(reading(np.random.default_rng(6), 40, 1000, normalize=1.0))
    hidden = torch.randn(40, 1) * torch.logspace(-4, 2, 40)[:, None]
    weight = torch.randn(1000, 1).to(dtype).to(DEVICE)
    assert_as_reference(hidden.to(dtype).to(DEVICE), weight, stream, softcap, atol=1e-7)


def test_softcap_of_nan_and_infinity() -> None:
    stream = stream_of(reading(np.random.default_rng(7), 3, 50, normalize=1.0))
    hidden = torch.tensor([[1.0], [torch.nan], [3e38]]) * torch.tensor([1.0, 0.0, 0.0, 0.0])
    logits, norms = read(hidden.to(DEVICE), torch.full((50, 4), 2.0, device=DEVICE), stream, 30.0)
    rows = torch.repeat_interleave(stream.read_index, stream.offsets.diff())
    assert torch.equal(logits.isnan(), rows == 1)
    assert torch.equal(norms.isnan(), stream.read_index == 1)
    assert bool((logits[rows == 2] == 30.0).all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("softcap", [0.0, 30.0])
def test_bits_of_a_row_depend_on_no_other_row(dtype: torch.dtype, softcap: float) -> None:
    """Any number of rows among others, in any order."""
    rng = np.random.default_rng(8)
    hidden, weight = (torch.randn(n, 130).to(dtype).to(DEVICE) for n in (140, 700))
    columns = rng.integers(0, 700, (140, 3)).astype(np.int32)

    def found(rows: IntArray) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [rows, 3] and norms of some rows, in their order."""
        reads = [Read(columns[row], i, bool(row % 2)) for i, row in enumerate(rows)]
        stream = stream_of(pack(Units.of([Unit(Tree.of([Segment(np.zeros(len(rows), np.int32), reads=reads)]))])))
        logits, norms = read(hidden[torch.from_numpy(rows)], weight, stream, softcap)
        return logits.view(-1, 3), norms

    logits, norms = found(np.arange(140, dtype=np.int32))
    assert torch.equal(norms.isfinite(), torch.arange(140, device=DEVICE) % 2 == 1)
    for n in (1, 2, 13, 65, 140):
        rows = rng.permutation(140)[:n].astype(np.int32)
        some = found(rows)
        assert torch.equal(some[0], logits[rows])
        assert torch.equal(some[1].nan_to_num(), norms[rows].nan_to_num())


def test_nothing_read() -> None:
    stream = stream_of(pack(Units.of([Unit(Tree.of([Segment(np.zeros(4, np.int32))]))])))
    logits, norms = ours.read(torch.empty(0, 8, device=DEVICE), ours.prepare(torch.ones(9, 8, device=DEVICE)), stream)
    assert (len(logits), len(norms)) == (0, 0)


@pytest.mark.skipif(DEVICE.type != "cuda", reason="true sizes need a GPU")
@pytest.mark.parametrize(("rows", "width"), [(16, 1024), (70, 2560)])
def test_true_sizes(rows: int, width: int) -> None:
    stream = stream_of(reading(np.random.default_rng(9), rows, 248320))
    weight = torch.randn(248320, width, dtype=torch.bfloat16, device=DEVICE) * 0.02
    assert_as_reference(torch.randn(rows, width, dtype=torch.bfloat16, device=DEVICE), weight, stream)
