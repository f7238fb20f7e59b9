"""The causal convolution in Triton against its reference: on a GPU, or interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fixtures.random_states import chain, normal, random_units, trunk, unit
from fixtures.triton_device import DEVICE
from oracles import conv_lists

from ramet.cache.state import Recurrent
from ramet.ops.conv import reference
from ramet.ops.conv import triton as ours
from ramet.round import Capacity, Round, Stream, pack
from ramet.units import Unit, Units

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of overflow where kernels are interpreted
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = [torch.float32, torch.bfloat16]


@dataclass(frozen=True)
class Scene:
    """A round with its tensors; what no row may see is NaN: slots that nothing begins from, rows behind the last."""

    packed: Round
    x: torch.Tensor
    weight: torch.Tensor
    window: torch.Tensor
    capacity: Capacity | None = None

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows returned, and all windows afterwards."""
        states = Recurrent(self.window.clone(), self.window[:, :0])
        stream = planned(self.packed, self.weight.shape[1], self.capacity)
        found = ours.causal_conv(self.x, self.weight, stream, states)
        assert found.dtype == self.x.dtype
        assert found.shape == self.x.shape
        return found[: self.packed.n_tokens].cpu(), states.window.cpu()

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        states = Recurrent(self.window.cpu().double(), self.window[:, :0].cpu())
        x, stream = self.x[: self.packed.n_tokens].cpu().double(), self.packed.on(torch.device("cpu"))
        return reference.causal_conv(x, self.weight.cpu().double(), stream, states), states.window


def planned(packed: Round, width: int, capacity: Capacity | None = None) -> Stream:
    """The stream with its lists: of their own length, or filled up with zeros to what a capacity may need."""
    work = conv_lists.plan(packed, width=width)
    if capacity is not None:
        room = ours.room(capacity, width=width)
        assert set(room) == set(work)
        work = {name: np.pad(value, (0, room[name] - len(value))) for name, value in work.items()}
    return packed.with_work(work).on(DEVICE)


def scene(
    rng: np.random.Generator, units: Sequence[Unit], n_slots: int = 1, *, width: int = 4, channels: int = 32,
    dtype: torch.dtype = torch.float32, more_rows: int = 0,
) -> Scene:  # fmt: skip
    packed = pack(Units.of(units))
    window = torch.full((n_slots, width - 1, channels), torch.nan)
    begun = packed["piece_from"][packed["piece_from"] >= 0]
    window[begun] = normal(rng, len(begun), width - 1, channels)
    x = normal(rng, packed.n_tokens + more_rows, channels + 8)
    x[packed.n_tokens :] = torch.nan
    weight = normal(rng, width, channels).t()
    capacity = Capacity(len(x), len(x), len(x)) if more_rows else None
    x, window = x.to(DEVICE, dtype)[:, :channels], window.to(DEVICE, dtype)
    return Scene(packed, x, weight.to(DEVICE), window, capacity)


def check(given: Scene) -> None:
    found, window = given.run()
    expected, expected_window = given.expected()
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert float(error) < TOLERANCE[given.x.dtype]
    assert torch.equal(window.double().nan_to_num(7777.0), expected_window.nan_to_num(7777.0))


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """`torch.empty` is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(8))
def test_random_trees(dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    units, n_slots = random_units(rng, n_trees=3, max_length=(3, 40)[seed % 2])
    width, channels, more_rows = (4, 3, 2, 5)[seed % 4], (32, 272, 300, 40)[seed % 4], (0, 37)[seed // 4]
    check(scene(rng, units, n_slots, width=width, channels=channels, dtype=dtype, more_rows=more_rows))


def test_chains_of_single_rows() -> None:
    cuts = [(i, i + 1) for i in range(9)]
    check(scene(np.random.default_rng(1), [unit(chain(1, 1, 1, 1, 9), 0, cuts), unit(chain(1, 1, 2))], 11))


def test_weights_in_the_reference_s_order() -> None:
    given = scene(np.random.default_rng(2), [unit(trunk(40, 3))])
    other = replace(given, weight=given.weight.contiguous())
    assert torch.equal(other.run()[0], given.run()[0])


def test_large_inputs() -> None:
    given = scene(np.random.default_rng(3), [unit(trunk(40))])
    check(replace(given, x=given.x * 1e4))


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("rows", [2, 32])
def test_rows_loaded_in_other_numbers(monkeypatch: pytest.MonkeyPatch, seed: int, rows: int) -> None:
    """Neither what is right nor a bit of it depends on it."""
    rng = np.random.default_rng(seed)
    units, n_slots = random_units(rng, n_trees=2, max_length=(3, 30)[seed])
    given = scene(rng, units, n_slots, dtype=torch.bfloat16, more_rows=19)
    expected, _ = given.run()
    monkeypatch.setattr(ours, "_ROWS", rows)
    check(given)
    assert torch.equal(given.run()[0], expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_depend_on_the_path_alone(dtype: torch.dtype) -> None:
    """Alone, and among others, cut in other places."""
    rng = np.random.default_rng(4)
    one = scene(rng, [unit(trunk(50, 30))], channels=144, dtype=dtype)
    expected, _ = one.run()
    many = scene(rng, [unit(trunk(3, 2), 0), unit(trunk(50, 9, 30), leaves=[(20, 1), (37, 2)])], 3, channels=144,
                 dtype=dtype)  # fmt: skip
    rows = 5 + torch.cat((torch.arange(50), torch.arange(59, 89)))
    x = torch.full_like(many.x, torch.nan)
    x[rows.to(DEVICE)] = one.x
    found, _ = replace(many, x=x, weight=one.weight).run()
    assert torch.equal(found[rows], expected)


def test_no_states() -> None:
    given = scene(np.random.default_rng(5), [unit(trunk(5, 3))])
    found = ours.causal_conv(given.x, given.weight, planned(given.packed, 4), None)
    assert torch.equal(found.cpu(), given.run()[0])


def test_no_rows() -> None:
    """In a recorded pass of padding alone nothing is written."""
    given = scene(np.random.default_rng(6), [unit(trunk(5))])
    work = {name: np.zeros(n, np.int32) for name, n in ours.room(Capacity(5, 5, 5), width=4).items()}
    states = Recurrent(given.window.clone(), given.window[:, :0])
    ours.causal_conv(given.x, given.weight, given.packed.with_work(work).on(DEVICE), states)
    assert bool(states.window.isnan().all())


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("channels", [6144, 8192])
def test_true_sizes(channels: int) -> None:
    rng, leaves = np.random.default_rng(7), [(1999, 1), (2030, 2)]
    units = [unit(trunk(2000, *[60] * 20), 0, leaves), unit(trunk(200, *[12] * 64))]
    check(scene(rng, units, 4, channels=channels, dtype=torch.bfloat16, more_rows=100))
