"""The causal convolution: the reference against transformers, the compiled kernel and the plain path against it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fixtures.cpu_variants import CpuVariants, kernel_paths
from fixtures.random_states import CPU, chain, normal, random_stream, trunk, unit
from transformers.models.qwen3_5 import modeling_qwen3_5

from ramet.cache.state import Recurrent
from ramet.ops import OpShape
from ramet.ops.conv import reference
from ramet.round import Stream, pack
from ramet.units import Units

cpu = CpuVariants("conv")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Scene:
    """A stream with its tensors; what no row may see is NaN: slots that nothing begins from."""

    stream: Stream
    x: torch.Tensor
    weight: torch.Tensor
    window: torch.Tensor

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows returned, and all windows afterwards."""
        states = Recurrent(self.window.clone(), self.window[:, :0])
        return self.by_cpu(states), states.window

    def by_cpu(self, states: Recurrent | None) -> torch.Tensor:
        n_channels, width = self.weight.shape
        variant = cpu.of(OpShape(self.x.dtype, n_channels=n_channels, conv_width=width))
        found: torch.Tensor = variant.causal_conv(self.x, self.weight, self.stream, states)
        return found

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        states = Recurrent(self.window.double(), self.window[:, :0])
        return reference.causal_conv(self.x.double(), self.weight.double(), self.stream, states), states.window


def scene(
    rng: np.random.Generator, stream: Stream, n_slots: int, *, width: int = 4, channels: int = 32,
    dtype: torch.dtype = torch.float32,
) -> Scene:  # fmt: skip
    window = torch.full((n_slots, width - 1, channels), torch.nan)
    begun = stream.piece_from[stream.piece_from >= 0].long()
    window[begun] = normal(rng, len(begun), width - 1, channels)
    x = normal(rng, len(stream.tokens), channels + 8)[:, :channels]
    return Scene(stream, x.to(dtype), normal(rng, channels, width).to(dtype), window.to(dtype))


def check(given: Scene) -> None:
    found, window = given.run()
    expected, expected_window = given.expected()
    assert found.dtype == given.x.dtype
    assert found.shape == expected.shape
    error = (found.double() - expected).abs().max() / expected.abs().max()
    assert float(error) < TOLERANCE[given.x.dtype]
    assert torch.equal(window.double().nan_to_num(7777.0), expected_window.nan_to_num(7777.0))


path, _ = kernel_paths(cpu)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """`torch.empty` is NaN."""
    before = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 65])
@pytest.mark.parametrize("width", [1, 2, 4, 6])
def test_the_reference_is_that_of_transformers(n: int, width: int) -> None:
    given = scene(np.random.default_rng(n), pack(Units.of([unit(trunk(n))])).on(CPU), 1, width=width)
    found = reference.causal_conv(given.x, given.weight, given.stream, None)
    expected = modeling_qwen3_5.causal_conv1d_fn(given.x.T[None], given.weight, activation="silu")[0].T
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_path_is_its_rows_in_one_sequence() -> None:
    """A window, then a chain of segments, most of them shorter than the kernel."""
    rng = np.random.default_rng(0)
    given = scene(rng, pack(Units.of([unit(chain(1, 2, 1, 5, 3), 0, [(0, 1), (2, 2), (11, 3)])])).on(CPU), 4)
    found, window = given.expected()
    whole = torch.cat((given.window[0], given.x)).double()
    expected = modeling_qwen3_5.causal_conv1d_fn(whole.T[None], given.weight.double(), activation="silu")[0].T[3:]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for row, slot in ((0, 1), (2, 2), (11, 3)):
        assert torch.equal(window[slot], whole[row + 1 : row + 4])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(8))
def test_random_trees(path: str, dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stream, n_slots = random_stream(rng, max_length=(3, 100)[seed % 2])
    width, channels = (4, 3, 2, 5)[seed % 4], (32, 528, 1040, 40)[seed % 4]
    check(scene(rng, stream, n_slots, width=width, channels=channels, dtype=dtype))


def test_chains_of_single_rows(path: str) -> None:
    rng = np.random.default_rng(1)
    cuts = [(i, i + 1) for i in range(9)]
    check(scene(rng, pack(Units.of([unit(chain(1, 1, 1, 1, 9), 0, cuts), unit(chain(1, 1, 2))])).on(CPU), 11))


def test_large_inputs(path: str) -> None:
    given = scene(np.random.default_rng(2), pack(Units.of([unit(trunk(40))])).on(CPU), 1)
    check(replace(given, x=given.x * 1e4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_depend_on_the_path_alone(path: str, dtype: torch.dtype) -> None:
    """Alone, and among others, cut in other places, by several threads."""
    rng = np.random.default_rng(3)
    one = scene(rng, pack(Units.of([unit(trunk(150, 70))])).on(CPU), 1, channels=1040, dtype=dtype)
    expected, _ = one.run()
    units = Units.of([unit(trunk(3, 2), 0), unit(trunk(150, 9, 70), leaves=[(64, 1), (90, 2)])])
    many = scene(rng, pack(units).on(CPU), 3, channels=1040, dtype=dtype)
    rows = 5 + torch.cat((torch.arange(150), torch.arange(159, 229)))
    x = torch.full_like(many.x, torch.nan)
    x[rows] = one.x
    torch.set_num_threads(3)
    found, _ = replace(many, x=x, weight=one.weight).run()
    assert torch.equal(found[rows], expected)


def test_no_states(path: str) -> None:
    given = scene(np.random.default_rng(4), pack(Units.of([unit(trunk(5, 3))])).on(CPU), 1)
    found = given.by_cpu(None)
    assert torch.equal(found, given.run()[0])
