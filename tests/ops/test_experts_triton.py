"""All experts of a layer by Triton's kernels, against the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fixtures.triton_device import DEVICE
from torch.nn import functional

from ramet.ops.experts import reference, triton

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = list(TOLERANCE)
SIZES = [(8, 40, 96), (5, 16, 64), (3, 41, 63), (1, 1, 1), (20, 130, 200)]  # experts, size, width
TRUE_SHAPES = [(128, 704, 2816, "gelu_tanh"), (128, 704, 2304, "gelu_tanh"), (256, 512, 2048, "silu")]
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of rows that nobody reads
only_there = pytest.mark.skipif(DEVICE.type != "cuda", reason="a GPU's size")


def weights(n_experts: int, size: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up = torch.randn(n_experts, 2 * size, width, device=DEVICE, dtype=dtype) * width**-0.5
    return gate_up, torch.randn(n_experts, width, size, device=DEVICE, dtype=dtype) * size**-0.5


def inputs(n_rows: int, n_experts: int, n_chosen: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    shares, chosen = torch.randn(n_rows, n_experts, device=DEVICE).softmax(-1).topk(min(n_chosen, n_experts), -1)
    x = torch.randn(n_rows, width, device=DEVICE, dtype=dtype)
    return x, chosen, shares / shares.sum(-1, keepdim=True)


def exact(x: torch.Tensor, chosen: torch.Tensor, shares: torch.Tensor, *made: Any) -> torch.Tensor:
    """In float64."""
    gate_up, down, activation = made[0].double(), made[1].double(), made[2]
    out = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for expert, rows, places in reference.touched(chosen):
        gate, up = (x[rows].double() @ gate_up[expert].T).chunk(2, -1)
        gate = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
        out[rows] += (gate * up) @ down[expert].T * shares[rows, places, None].double()
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("n_rows", "activation"), [(0, "silu"), (1, "gelu_tanh"), (7, "silu"), (65, "gelu_tanh")])
def test_sums_over_the_chosen(dtype: torch.dtype, sizes: tuple[int, int, int], n_rows: int, activation: str) -> None:
    made, given = weights(*sizes, dtype), inputs(n_rows, sizes[0], 3, sizes[2], dtype)
    found = triton.pack(*made, activation)(*given)
    assert found.dtype == dtype
    wanted = exact(*given, *made, activation)
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not written is NaN."""

    new_empty = torch.Tensor.new_empty

    def filled(x: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        made = new_empty(x, *shape, **options)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", filled)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("load", [1, 99])
@pytest.mark.parametrize("card", [(8, 0), (9, 0)])
def test_each_tiling(card: tuple[int, int], load: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of other cards and of other loads too, where they fit."""
    made, given = weights(3, 72, 136, torch.bfloat16), inputs(150, 3, 2, 136, torch.bfloat16)
    tiling = triton.choose_tiling(torch.bfloat16, card, load, 136, 72)
    monkeypatch.setattr(triton, "choose_tiling", lambda *_: tiling)
    found = triton.pack(*made, "silu")(*given)
    torch.testing.assert_close(found.double(), exact(*given, *made, "silu"), rtol=2e-2, atol=2e-2)


def test_all_rows_want_the_same_experts() -> None:
    """More rows than a tile takes, and experts that nobody wants."""
    made, (x, _, shares) = weights(6, 16, 24, torch.float32), inputs(530, 6, 2, 24, torch.float32)
    chosen = torch.tensor([[4, 1]], device=DEVICE).expand(530, 2)
    found = triton.pack(*made, "silu")(x, chosen, shares)
    torch.testing.assert_close(found, reference.pack(*made, "silu")(x, chosen, shares), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_are_its_own(dtype: torch.dtype) -> None:
    experts = triton.pack(*weights(7, 40, 72, dtype), "silu")
    x, chosen, shares = inputs(90, 7, 3, 72, dtype)
    together = experts(x, chosen, shares)
    for rows in ([0], [89], [3, 5, 50], [*range(40, 80)]):
        assert torch.equal(experts(x[rows], chosen[rows], shares[rows]), together[rows])
    turned = experts(x, chosen.flip(1), shares.flip(1))  # the order of a row's choices is none of the sum
    assert torch.equal(turned, together)


def test_a_row_of_nan_harms_no_other() -> None:
    experts = triton.pack(*weights(4, 24, 32, torch.float32), "silu")
    x, chosen, shares = inputs(20, 4, 2, 32, torch.float32)
    wanted = experts(x, chosen, shares)
    x[11] = torch.nan
    found = experts(x, chosen, shares)
    others = [row for row in range(20) if row != 11]
    assert torch.equal(found[others], wanted[others])
    assert bool(found[11].isnan().all())


@pytest.mark.parametrize("n_rows", [1, 70, 4200])
def test_lists_and_tiles(n_rows: int) -> None:
    """Each pair is in a tile of its expert, ascending; of an expert's tiles the last alone may have room."""
    chosen = torch.randn(n_rows, 9, device=DEVICE).topk(4, -1).indices
    chosen = chosen.masked_fill(chosen == 5, 9)  # no expert's
    slots, (n_tiles, *tiles) = (made.tolist() for made in triton._listed(chosen, 9, 16))
    found: dict[int, list[int]] = {}
    for place, item in enumerate(tiles[:n_tiles]):
        expert, n_own = item % 9, item // 9
        assert 0 < n_own <= 16
        assert len(found.get(expert, [])) % 16 == 0
        found.setdefault(expert, []).extend(slots[16 * place : 16 * place + n_own])
    wanted = {expert: (chosen.flatten() == expert).nonzero().flatten().tolist() for expert in range(9)}
    assert found == {expert: pairs for expert, pairs in wanted.items() if pairs}
    assert list(found) == sorted(found)


def test_garbage_in_lists_stays_within() -> None:
    """Kernels may run on lists that were never written, while others are being compiled."""
    chosen = torch.full((40, 2), 2, dtype=torch.int64, device=DEVICE)
    counts = torch.tensor([[-5, 1 << 30, 3], [7, 1 << 30, -1]], dtype=torch.int32, device=DEVICE)
    slots, tiles = (torch.full((n,), -7, dtype=torch.int32, device=DEVICE) for n in (64 + 32, 16))
    steps = {"block": 32, "step": 32, "n_chosen": 2, "n_experts": 3, "block_experts": 4, "block_rows": 16}
    triton._place[(2,)](chosen, counts, slots, tiles, 40, 2, 4, **steps)
    assert bool((slots[64:] == -7).all())
    assert bool((tiles[5:] == -7).all())
    assert tiles[0] == 4


@only_there
@pytest.mark.parametrize("shape", TRUE_SHAPES, ids=str)
@pytest.mark.parametrize("n_rows", [1, 5, 64, 500, 2500])
def test_true_shapes(shape: tuple[int, int, int, str], n_rows: int) -> None:
    n_experts, size, width, activation = shape
    made, given = weights(n_experts, size, width, torch.bfloat16), inputs(n_rows, n_experts, 8, width, torch.bfloat16)
    experts, plain = triton.pack(*made, activation), reference.pack(*made, activation)
    together = experts(*given)
    torch.testing.assert_close(together, plain(*given), rtol=2e-2, atol=2e-2)
    few = [each[n_rows // 2 : n_rows // 2 + 3] for each in given]  # other tiles, the same bits
    assert torch.equal(experts(*few), together[n_rows // 2 : n_rows // 2 + 3])


@only_there
def test_in_a_recorded_graph() -> None:
    """Recorded on one choice of experts, run on others."""
    made, given = weights(128, 64, 128, torch.bfloat16), inputs(300, 128, 8, 128, torch.bfloat16)
    experts = triton.pack(*made, "silu")
    experts(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = experts(*given)
    for _ in range(3):
        for static, fresh in zip(given, inputs(300, 128, 8, 128, torch.bfloat16), strict=True):
            static.copy_(fresh)
        graph.replay()
        assert torch.equal(out, experts(*given))
