"""The gated delta rule: the reference against transformers, the compiled kernel and the plain path against it."""

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
from ramet.ops import GatedDeltaOp, OpShape, native
from ramet.ops.gated_delta import reference
from ramet.ops.gated_delta.reference import CHUNK
from ramet.round import Stream, pack
from ramet.tree import Read, Segment, Tree
from ramet.units import Units

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
HEADS = (2, 4, 32, 48)  # key heads, value heads, their sizes
ROWS = ("q", "k", "v", "a", "b", "gate")
EPS = 1e-6
cpu = CpuVariants("gated_delta")


@dataclass(frozen=True)
class Scene:
    """A stream with its tensors; what no row may see is NaN: slots that nothing begins from."""

    stream: Stream
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor
    rate: torch.Tensor
    dt_bias: torch.Tensor
    gate: torch.Tensor
    weight: torch.Tensor
    state: torch.Tensor

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows returned, and all states afterwards."""
        states = Recurrent(self.state[:, :0], self.state.clone())
        return self.by(self.op, states), states.state

    @property
    def op(self) -> GatedDeltaOp:
        (n_key_heads, key_dim), (n_value_heads, value_dim) = self.k.shape[1:], self.v.shape[1:]
        shape = OpShape(
            self.q.dtype, n_key_heads=n_key_heads, n_value_heads=n_value_heads, key_dim=key_dim, value_dim=value_dim
        )
        found: GatedDeltaOp = cpu.of(shape).gated_delta
        return found

    def by(self, op: GatedDeltaOp, states: Recurrent | None) -> torch.Tensor:
        return op(
            self.q, self.k, self.v, self.a, self.b, self.rate, self.dt_bias, self.stream, states, gate=self.gate,
            weight=self.weight, eps=EPS,
        )  # fmt: skip

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        states = Recurrent(self.state[:, :0], self.state.double())
        wide = replace(self, **{name: getattr(self, name).double() for name in ROWS})
        return wide.by(reference.gated_delta, states), states.state


def scene(
    rng: np.random.Generator, stream: Stream, n_slots: int, *, heads: tuple[int, int, int, int] = HEADS,
    dtype: torch.dtype = torch.float32,
) -> Scene:  # fmt: skip
    """q, k, v and gate are slices of one matrix, a and b of another; decays of 0.2 to nearly 1 a row."""
    Hk, Hv, Dk, Dv = heads
    T, widths = len(stream.tokens), [Hk * Dk, Hk * Dk, Hv * Dv, Hv * Dv]
    merged = normal(rng, T, sum(widths) + 24).to(dtype)[:, : sum(widths)].split(widths, 1)
    q, k, v, gate = (x.unflatten(1, (h, -1)) for x, h in zip(merged, (Hk, Hk, Hv, Hv), strict=True))
    a, b = normal(rng, T, 2 * Hv).to(dtype).split(Hv, 1)
    rate, dt_bias = -4 * torch.from_numpy(rng.random(Hv, np.float32)), normal(rng, Hv) - 3
    state = torch.full((n_slots, Hv, Dk, Dv), torch.nan)
    begun = stream.piece_from[stream.piece_from >= 0].long()
    state[begun] = normal(rng, len(begun), Hv, Dk, Dv)
    weight = torch.from_numpy(rng.random(Dv, np.float32)) + 0.5
    return Scene(stream, q, k, v, a, b, rate, dt_bias, gate, weight, state)


def check(given: Scene) -> None:
    found, state = given.run()
    expected, expected_state = given.expected()
    assert found.dtype == given.v.dtype
    assert found.shape == expected.shape
    tolerance = TOLERANCE[given.q.dtype]
    assert float((found.double() - expected).abs().max() / expected.abs().max()) < tolerance
    written = given.stream.piece_to[given.stream.piece_to >= 0].long()
    if len(written):
        size = expected_state[written].abs().max()
        assert float((state[written].double() - expected_state[written]).abs().max() / size) < tolerance
    others = torch.ones(len(state), dtype=torch.bool)
    others[written] = False
    assert torch.equal(state[others].nan_to_num(7777.0), given.state[others].nan_to_num(7777.0))


path, compiled = kernel_paths(cpu)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """`torch.empty` is NaN, and so is what the kernel's own working memory holds from the call before."""
    before = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if native.library() is not None:
        stream = pack(Units.of([unit(trunk(2 * CHUNK, CHUNK), 0)])).on(CPU)
        spoilt = scene(np.random.default_rng(0), stream, 1, heads=(1, 2, 128, 128))
        for name in (*ROWS, "state"):
            getattr(spoilt, name)[:] = torch.nan
        assert not bool(spoilt.run()[0].isfinite().any())
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


@pytest.mark.parametrize("n", [1, 2, 63, 65, 130])
@pytest.mark.parametrize("begun", [-1, 0])
@pytest.mark.parametrize("rule", ["torch_recurrent_gated_delta_rule", "torch_chunk_gated_delta_rule"])
def test_the_reference_is_that_of_transformers(n: int, begun: int, rule: str) -> None:
    given = scene(np.random.default_rng(n), pack(Units.of([unit(trunk(n), begun, [(n - 1, 1)])])).on(CPU), 2)
    states = Recurrent(given.state[:, :0], given.state.clone())
    found = given.by(reference.gated_delta, states)
    g = given.rate * torch.nn.functional.softplus(given.a + given.dt_bias)
    group = given.v.shape[1] // given.k.shape[1]  # older releases want a key head for each value head
    q, k = (x.repeat_interleave(group, 1)[None] for x in (given.q, given.k))
    expected, final = getattr(modeling_qwen3_5, rule)(
        q, k, given.v[None], g=g[None], beta=given.b.sigmoid()[None],
        initial_state=given.state[:1] if begun == 0 else None, output_final_state=True, use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    norm = modeling_qwen3_5.Qwen3_5RMSNormGated(given.v.shape[2], eps=EPS)
    norm.weight.data = given.weight
    torch.testing.assert_close(found, norm(expected[0], given.gate), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states.state[1], final[0], rtol=1e-4, atol=1e-5)


def test_a_branch_continues_what_is_above_it() -> None:
    """Each path of a random tree, alone in one sequence."""
    rng = np.random.default_rng(1)
    stream, n_slots = random_stream(rng)
    given = scene(rng, stream, n_slots)
    found, _ = given.expected()
    for s in range(len(stream.starts)):
        segments = [s]
        while int(stream.parents[segments[0]]) >= 0:
            segments.insert(0, int(stream.parents[segments[0]]))
        rows = torch.cat([torch.arange(int(stream.lengths[i])) + int(stream.starts[i]) for i in segments])
        first = int(torch.searchsorted(stream.piece_starts, stream.starts[segments[0]]))
        alone = pack(Units.of([unit(trunk(len(rows)), int(stream.piece_from[first]))])).on(CPU)
        inputs = {name: getattr(given, name)[rows] for name in ROWS}
        expected, _ = replace(given, stream=alone, **inputs).expected()
        torch.testing.assert_close(found[rows], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(6))
def test_random_trees(path: str, dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stream, n_slots = random_stream(rng, n_trees=2 + seed % 3, max_length=(3, 40, 150)[seed % 3])
    check(scene(rng, stream, n_slots, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_length_up_to_two_chunks(path: str, dtype: torch.dtype) -> None:
    lengths = range(1, 2 * CHUNK + 3)
    stream = pack(Units.of([unit(trunk(5, *lengths), leaves=[(4, 0)])])).on(CPU)
    check(scene(np.random.default_rng(2), stream, 1, heads=(1, 2, 16, 32), dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(1, 1, 16, 128), (2, 4, 128, 16), (3, 3, 48, 80), (1, 6, 128, 128), (2, 2, 24, 20)])
def test_head_sizes(path: str, dtype: torch.dtype, heads: tuple[int, int, int, int]) -> None:
    stream = pack(Units.of([unit(trunk(70, 30, 9), 0, [(99, 1)])])).on(CPU)
    check(scene(np.random.default_rng(3), stream, 2, heads=heads, dtype=dtype))


def test_chains_of_single_rows(path: str) -> None:
    cuts = [(i, i + 1) for i in range(13)]
    stream = pack(Units.of([unit(chain(1, 1, 1, 1, 9), 0, cuts), unit(chain(1, 1, 2))])).on(CPU)
    check(scene(np.random.default_rng(4), stream, 15))


@pytest.mark.parametrize("bias", [-30.0, 60.0])
def test_decays_near_one_and_near_zero(path: str, bias: float) -> None:
    """Within one chunk too: behind a row that forgets everything, the next ones remember each other."""
    given = scene(np.random.default_rng(5), pack(Units.of([unit(trunk(150, 40), 0, [(149, 1)])])).on(CPU), 2)
    check(replace(given, dt_bias=torch.full_like(given.dt_bias, bias)))
    mixed = given.a.clone()
    mixed[::7] += 900
    check(replace(given, a=mixed))


def test_repeated_keys(path: str) -> None:
    """The system is far from the identity: all keys alike, beta near 1, no decay."""
    given = scene(np.random.default_rng(6), pack(Units.of([unit(trunk(150, 40))])).on(CPU), 1)
    given.k[:] = given.k[:1] + 0.01 * given.k
    check(replace(given, b=given.b + 12, dt_bias=given.dt_bias - 30))


def test_rows_of_zeros(path: str) -> None:
    given = scene(np.random.default_rng(7), pack(Units.of([unit(trunk(80, 20))])).on(CPU), 1)
    given.q[::3], given.k[::5], given.v[::7] = 0.0, 0.0, 0.0
    check(given)


def test_heads_that_lie_apart(path: str) -> None:
    given = scene(np.random.default_rng(8), pack(Units.of([unit(trunk(80, 20))])).on(CPU), 1)
    q, k, gate = (x.mT.contiguous().mT for x in (given.q, given.k, given.gate))
    check(replace(given, q=q, k=k, gate=gate, a=given.a.t().contiguous().t()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_threads(compiled: None, dtype: torch.dtype) -> None:
    stream = pack(Units.of([unit(trunk(200, *range(30, 60)), 0, [(170, 1)])])).on(CPU)
    given = scene(np.random.default_rng(9), stream, 2, dtype=dtype)
    expected = given.run()
    for n in (2, 3):
        torch.set_num_threads(n)
        found = given.run()
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1][1], expected[1][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_what_shares_the_round(compiled: None, dtype: torch.dtype) -> None:
    """A trunk with one branch, and the same among siblings, children and other units of NaN."""
    rng = np.random.default_rng(10)
    one = scene(rng, pack(Units.of([unit(trunk(203, 61), 0)])).on(CPU), 1, dtype=dtype)
    alone, _ = one.run()
    below = ((9, 0), (61, 0), (5, 2))  # rows and parents
    trunk_of = Segment(np.zeros(203, np.int32), reads=[Read([1])])
    shared = Tree.of([trunk_of, *(Segment(np.zeros(n, np.int32), p) for n, p in below)])
    units = [unit(trunk(40, 3)), unit(shared, 0, [(202, 2), (272, 3)]), unit(chain(30, 9), 1)]
    many = scene(rng, pack(Units.of(units), 16).on(CPU), 4, dtype=dtype)
    rows = 43 + torch.cat((torch.arange(203), torch.arange(212, 273)))
    inputs = {}
    for name in ROWS:
        x = torch.full_like(getattr(many, name), torch.nan)
        x[rows] = getattr(one, name)
        inputs[name] = x
    state = torch.full_like(many.state, torch.nan)
    state[0] = one.state[0]
    found, kept = replace(many, state=state, rate=one.rate, dt_bias=one.dt_bias, weight=one.weight, **inputs).run()
    assert bool(alone.isfinite().all())
    assert torch.equal(found[rows], alone)
    assert bool(kept[2:].isfinite().all())
    assert not bool(found[:43].isfinite().any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [HEADS, (1, 1, 128, 128)])
@pytest.mark.parametrize("cuts", [(CHUNK,), (3 * CHUNK,), (CHUNK, 2 * CHUNK, 3 * CHUNK)])
def test_bits_of_a_piece_cut_at_multiples_of_the_chunk(
    compiled: None, dtype: torch.dtype, heads: tuple[int, int, int, int], cuts: tuple[int, ...]
) -> None:
    """Cut within one round, and by rounds of which each begins from the slot that the one before wrote."""
    n = 3 * CHUNK + 21
    rng, final = np.random.default_rng(11), (n - 1, 9)
    whole = scene(rng, pack(Units.of([unit(trunk(n), 0, [final])])).on(CPU), 10, heads=heads, dtype=dtype)
    expected, expected_state = whole.run()
    leaves = [*((c - 1, i + 1) for i, c in enumerate(cuts)), final]
    found, state = replace(whole, stream=pack(Units.of([unit(trunk(n), 0, leaves)])).on(CPU)).run()
    assert torch.equal(found, expected)
    assert torch.equal(state[9], expected_state[9])
    state, at, begun = whole.state, 0, 0
    for row, slot in leaves:
        part = {name: getattr(whole, name)[at : row + 1] for name in ROWS}
        stream = pack(Units.of([unit(trunk(row + 1 - at), begun, [(row - at, slot)])])).on(CPU)
        found, state = replace(whole, stream=stream, state=state, **part).run()
        assert torch.equal(found, expected[at : row + 1])
        at, begun = row + 1, slot
    assert torch.equal(state[9], expected_state[9])


def test_nan_reaches_those_behind_it_and_nobody_else(path: str) -> None:
    """In rows as in states."""
    given = scene(
        np.random.default_rng(12), pack(Units.of([unit(trunk(140, 20, 9)), unit(trunk(30, 8), 0)])).on(CPU), 1
    )
    given.v[145] = torch.nan
    given.state[0] = torch.nan
    bad = given.run()[0].isnan().flatten(1)
    assert not bool(bad[:140].any())
    assert bool(bad[145:160].all())
    assert not bool(bad[160:169].any())
    assert bool(bad[169:].all())


def test_a_bad_gate_reaches_its_row(path: str) -> None:
    given = scene(np.random.default_rng(12), pack(Units.of([unit(trunk(140, 20, 9))])).on(CPU), 1, dtype=torch.bfloat16)
    expected, _ = given.run()
    given.gate[145, 1, 7] = torch.nan
    found, _ = given.run()
    bad = found.isnan()
    assert bool(bad[145, 1, 7])
    assert int(bad.sum()) == 1
    assert torch.equal(found[~bad], expected[~bad])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_gates(path: str, dtype: torch.dtype) -> None:
    given = scene(np.random.default_rng(15), pack(Units.of([unit(trunk(80, 20))])).on(CPU), 1, dtype=dtype)
    check(replace(given, gate=given.gate * 1e4))


def test_other_dtypes_take_the_plain_path(compiled: None) -> None:
    given = scene(np.random.default_rng(13), pack(Units.of([unit(trunk(80, 20))])).on(CPU), 1)
    half = {name: getattr(given, name).half() for name in ROWS}
    found, _ = replace(given, **half).run()
    assert found.dtype == torch.float16
    expected, _ = given.expected()
    assert float((found.double() - expected).abs().max() / expected.abs().max()) < 5e-3


def test_no_states(path: str) -> None:
    given = scene(np.random.default_rng(14), pack(Units.of([unit(trunk(80, 20))])).on(CPU), 1)
    assert torch.equal(given.by(given.op, None), given.run()[0])
