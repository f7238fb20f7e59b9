"""The gated delta rule in Triton against its reference: on a GPU, or interpreted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fixtures.random_states import chain, normal, random_units, trunk, unit
from fixtures.triton_device import DEVICE
from oracles import delta_lists

from ramet.cache.state import Recurrent
from ramet.ops import GatedDeltaOp
from ramet.ops.gated_delta import reference
from ramet.ops.gated_delta import triton as ours
from ramet.ops.gated_delta.reference import CHUNK
from ramet.round import Capacity, Round, Stream, pack
from ramet.tree import Read, Segment, Tree
from ramet.units import Unit, Units

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of overflow where kernels are interpreted
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
DTYPES = [torch.float32, torch.bfloat16]
HEADS = (1, 2, 32, 48)  # key heads, value heads, their sizes
ROWS = ("q", "k", "v", "a", "b", "gate")
EPS = 1e-6


@dataclass(frozen=True)
class Scene:
    """A round with its tensors; what no row may see is NaN: slots that nothing begins from, rows behind the last."""

    packed: Round
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
    capacity: Capacity | None = None

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows returned, and all states afterwards."""
        states = Recurrent(self.state[:, :0], self.state.clone())
        rows = self.by(ours.gated_delta, planned(self.packed, self.capacity), states)
        assert rows.dtype == self.v.dtype
        assert rows.shape == self.v.shape
        return rows[: self.packed.n_tokens], states.state

    def by(self, op: GatedDeltaOp, stream: Stream, states: Recurrent | None) -> torch.Tensor:
        return op(
            self.q, self.k, self.v, self.a, self.b, self.rate, self.dt_bias, stream, states, gate=self.gate,
            weight=self.weight, eps=EPS,
        )  # fmt: skip

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        states, n = Recurrent(self.state[:, :0].cpu(), self.state.cpu().double()), self.packed.n_tokens
        inputs = {name: getattr(self, name)[:n].cpu().double() for name in ROWS}
        inputs |= {name: getattr(self, name).cpu() for name in ("rate", "dt_bias", "weight")}
        stream = self.packed.on(torch.device("cpu"))
        return replace(self, **inputs).by(reference.gated_delta, stream, states), states.state


def planned(packed: Round, capacity: Capacity | None = None) -> Stream:
    """The stream with its lists: of their own length, or filled up with zeros to what a capacity may need."""
    work = delta_lists.plan(packed)
    if capacity is not None:
        room = ours.room(capacity)
        assert set(room) == set(work)
        work = {name: np.pad(value, (0, room[name] - len(value))) for name, value in work.items()}
    return packed.with_work(work).on(DEVICE)


def scene(
    rng: np.random.Generator, units: Sequence[Unit], n_slots: int = 1, *, heads: tuple[int, int, int, int] = HEADS,
    dtype: torch.dtype = torch.float32, more_rows: int = 0,
) -> Scene:  # fmt: skip
    """q, k, v and gate are slices of one matrix, a and b of another; decays of 0.2 to nearly 1 a row."""
    packed = pack(Units.of(units))
    Hk, Hv, Dk, Dv = heads
    T, widths = packed.n_tokens, [Hk * Dk, Hk * Dk, Hv * Dv, Hv * Dv]
    merged, gates = normal(rng, T + more_rows, sum(widths) + 24), normal(rng, T + more_rows, 2 * Hv)
    merged[T:], gates[T:] = torch.nan, torch.nan
    merged, gates = merged.to(DEVICE, dtype), gates.to(DEVICE, dtype)
    parts = merged[:, :-24].split(widths, 1)
    q, k, v, gate = (x.unflatten(1, (h, -1)) for x, h in zip(parts, (Hk, Hk, Hv, Hv), strict=True))
    a, b = gates.split(Hv, 1)
    rate, dt_bias = -4 * torch.from_numpy(rng.random(Hv, np.float32)), normal(rng, Hv) - 3
    state = torch.full((n_slots, Hv, Dk, Dv), torch.nan)
    begun = packed["piece_from"][packed["piece_from"] >= 0]
    state[begun] = normal(rng, len(begun), Hv, Dk, Dv)
    capacity = Capacity(T + more_rows, T, T) if more_rows else None
    weight = torch.from_numpy(rng.random(Dv, np.float32)) + 0.5
    rate, dt_bias, weight, state = (x.to(DEVICE) for x in (rate, dt_bias, weight, state))
    return Scene(packed, q, k, v, a, b, rate, dt_bias, gate, weight, state, capacity)


def check(given: Scene, tolerance: float | None = None) -> None:
    found, state = (x.cpu() for x in given.run())
    expected, expected_state = given.expected()
    tolerance = tolerance or TOLERANCE[given.q.dtype]
    assert float((found.double() - expected).abs().max() / expected.abs().max()) < tolerance
    written = given.packed["piece_to"][given.packed["piece_to"] >= 0]
    if len(written):
        size = expected_state[written].abs().max()
        assert float((state[written].double() - expected_state[written]).abs().max() / size) < tolerance
    others = np.ones(len(state), bool)
    others[written] = False
    assert torch.equal(state[others].nan_to_num(7777.0), given.state.cpu()[others].nan_to_num(7777.0))


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """`torch.empty` is NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 16, 17, 33, 64, 65, 130])
def test_lengths(dtype: torch.dtype, n: int) -> None:
    """A piece alone that is kept, and as a branch of another of its length."""
    check(scene(np.random.default_rng(n), [unit(trunk(n), 0, [(n - 1, 1)]), unit(trunk(n, n))], 2, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(4))
def test_random_trees(dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    units, n_slots = random_units(rng, n_trees=(5, 3, 2, 1)[seed], max_length=(3, 20, 40, 90)[seed])
    check(scene(rng, units, n_slots, dtype=dtype, more_rows=(0, 37)[seed % 2]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_short_branches_share_tiles(dtype: torch.dtype) -> None:
    """Those of one state alone, and of one span."""
    trees = trunk(20, 12, 16, 1, 17, 9, 32, 3, 31, 33, 16, 7), trunk(20, 2, 30, 5), trunk(3), trunk(4)
    units = [unit(tree, (0, -1, -1, -1)[i]) for i, tree in enumerate(trees)]
    given = scene(np.random.default_rng(0), units, dtype=dtype)
    # Trunks; below the first four to a tile, two to a tile, alone; below the second four and two; two roots in one.
    assert delta_lists.plan(given.packed)["delta/tiles"][0] == 2 + 2 + 2 + 1 + 1 + 1 + 1
    check(given)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(1, 1, 16, 128), (2, 4, 128, 16), (1, 1, 48, 80), (1, 3, 128, 128)])
def test_head_sizes(dtype: torch.dtype, heads: tuple[int, int, int, int]) -> None:
    units = [unit(trunk(70, 30, 9), 0, [(99, 1)])]
    check(scene(np.random.default_rng(3), units, 2, heads=heads, dtype=dtype))


def test_chains_of_single_rows() -> None:
    """Deeper than ten, from one kept state to the next."""
    units = [unit(chain(1, 1, 1, 1, 9), 0, [(i, i + 1) for i in range(13)]), unit(chain(1, 1, 2))]
    check(scene(np.random.default_rng(4), units, 15))


@pytest.mark.parametrize("bias", [-30.0, 60.0])
def test_decays_near_one_and_near_zero(bias: float) -> None:
    """Within one chunk too: behind a row that forgets everything, the next ones remember each other."""
    given = scene(np.random.default_rng(5), [unit(trunk(90, 40), 0, [(89, 1)])], 2)
    check(replace(given, dt_bias=torch.full_like(given.dt_bias, bias)))
    mixed = given.a.clone()
    mixed[::7] += 900
    check(replace(given, a=mixed))


@pytest.mark.parametrize("dtype", DTYPES)
def test_repeated_keys(dtype: torch.dtype) -> None:
    """The system is far from the identity: all keys alike, beta near 1, no decay."""
    given = scene(np.random.default_rng(6), [unit(trunk(150, 40))], dtype=dtype)
    given.k[:] = given.k[:1] + 0.01 * given.k
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[dtype]
    check(replace(given, b=given.b + 12, dt_bias=given.dt_bias - 30), tolerance)


def test_rows_of_zeros() -> None:
    given = scene(np.random.default_rng(7), [unit(trunk(80, 20))])
    given.q[::3], given.k[::5], given.v[::7] = 0.0, 0.0, 0.0
    check(given)


def test_heads_that_lie_apart() -> None:
    given = scene(np.random.default_rng(8), [unit(trunk(40, 20))], heads=(2, 2, 16, 32))
    q, k, gate = (x.mT.contiguous().mT for x in (given.q, given.k, given.gate))
    check(replace(given, q=q, k=k, gate=gate, a=given.a.t().contiguous().t()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_gates(dtype: torch.dtype) -> None:
    given = scene(np.random.default_rng(17), [unit(trunk(40, 20))], dtype=dtype)
    check(replace(given, gate=given.gate * 1e4))


def some(given: Scene, one: Scene, rows: torch.Tensor) -> Scene:
    """With the inputs of `one` in some rows, its first state in slot 0, and NaN everywhere else."""
    inputs = {}
    for name in ROWS:
        inputs[name] = torch.full_like(getattr(given, name), torch.nan)
        inputs[name][rows.to(DEVICE)] = getattr(one, name)
    state = torch.full_like(given.state, torch.nan)
    state[0] = one.state[0]
    return replace(given, state=state, rate=one.rate, dt_bias=one.dt_bias, weight=one.weight, **inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [9, 27])
def test_bits_do_not_depend_on_what_shares_the_round(dtype: torch.dtype, n: int) -> None:
    """A trunk with one branch, and the same among siblings of NaN (in one tile where they are short), with a child,
    kept or not, beside other units of NaN."""
    rng = np.random.default_rng(10)
    one = scene(rng, [unit(trunk(73, n), 0)], heads=(1, 1, 32, 48), dtype=dtype)
    alone, _ = one.run()
    assert bool(alone.isfinite().all())
    others = trunk(73, 9, 20, 61, n, 12, 19)
    child = Tree.of([*(Segment(np.zeros(m, np.int32), p, reads=[Read([1])]) for m, p in ((73, -1), (n, 0), (5, 1)))])
    for tree, before, leaves in ((others, 90, []), (child, 0, []), (child, 0, [(72, 2), (72 + n, 3)])):
        units = [unit(trunk(40, 3)), unit(tree, 0, leaves), unit(chain(30, 9), 1)]
        many = scene(rng, units, 4, heads=(1, 1, 32, 48), dtype=dtype)
        rows = 43 + torch.cat((torch.arange(73), 73 + before + torch.arange(n)))
        found, kept = some(many, one, rows).run()
        assert torch.equal(found[rows.to(DEVICE)], alone)
        assert not bool(found[:43].isfinite().any())
        assert bool(kept[[slot for _, slot in leaves]].isfinite().all())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cuts", [(3 * CHUNK,), (CHUNK, 2 * CHUNK, 3 * CHUNK)])
def test_bits_of_a_piece_cut_at_multiples_of_the_chunk(dtype: torch.dtype, cuts: tuple[int, ...]) -> None:
    """Cut within one round, and by rounds of which each begins from the slot that the one before wrote."""
    n = 3 * CHUNK + 21
    rng, final = np.random.default_rng(11), (n - 1, 9)
    whole = scene(rng, [unit(trunk(n), 0, [final])], 10, heads=(1, 1, 32, 48), dtype=dtype)
    expected, expected_state = whole.run()
    leaves = [*((c - 1, i + 1) for i, c in enumerate(cuts)), final]
    found, state = replace(whole, packed=pack(Units.of([unit(trunk(n), 0, leaves)]))).run()
    assert torch.equal(found, expected)
    assert torch.equal(state[9], expected_state[9])
    found, _ = replace(whole, packed=pack(Units.of([unit(trunk(n), 0)]))).run()
    assert torch.equal(found, expected)
    state, at, begun = whole.state, 0, 0
    for row, slot in leaves:
        part = {name: getattr(whole, name)[at : row + 1] for name in ROWS}
        packed = pack(Units.of([unit(trunk(row + 1 - at), begun, [(row - at, slot)])]))
        found, state = replace(whole, packed=packed, state=state, **part).run()
        assert torch.equal(found, expected[at : row + 1])
        at, begun = row + 1, slot
    assert torch.equal(state[9], expected_state[9])


@pytest.mark.parametrize(("name", "bad"), [*((x, torch.nan) for x in ROWS), ("k", torch.inf), ("a", torch.inf)])
def test_a_bad_row_reaches_those_behind_it_and_nobody_else(name: str, bad: float) -> None:
    """Four branches in one tile; an infinite a is a decay of zero; the output's gate is its row's alone."""
    units, heads = [unit(trunk(30, 9, 12, 3, 16)), unit(trunk(8))], (1, 1, 32, 48)
    given = scene(np.random.default_rng(12), units, heads=heads, dtype=torch.bfloat16)
    expected, _ = given.run()
    getattr(given, name)[42] = bad  # the fourth of twelve
    found, _ = given.run()
    fine = torch.ones(len(found), dtype=torch.bool)
    fine[42 if name == "gate" else slice(39, 51)] = False
    assert torch.equal(found[fine], expected[fine])
    if name in "ab" and bad == torch.inf:
        assert bool(found.isfinite().all())
    else:
        reached = found[42:51].isfinite().flatten(1)
        assert not bool((reached[0] if name in ("q", "b", "gate") else reached).any())


def test_a_bad_state_reaches_its_own() -> None:
    given = scene(np.random.default_rng(13), [unit(trunk(70, 9)), unit(trunk(30, 8, 70), 0)])
    given.state[0] = torch.nan
    found, _ = given.run()
    assert bool(found[:79].isfinite().all())
    assert not bool(found[79:].isfinite().any())


def test_no_states() -> None:
    given = scene(np.random.default_rng(14), [unit(trunk(80, 20))])
    assert torch.equal(given.by(ours.gated_delta, planned(given.packed), None), given.run()[0])


def test_padding_alone() -> None:
    """What a pass is recorded with: nothing to do, nothing written."""
    given = scene(np.random.default_rng(15), [unit(trunk(5))])
    work = {name: np.zeros(n, np.int32) for name, n in ours.room(Capacity(5, 5, 5)).items()}
    states, stream = Recurrent(given.state[:, :0], given.state.clone()), given.packed.with_work(work).on(DEVICE)
    given.by(ours.gated_delta, stream, states)
    assert bool(states.state.isnan().all())


@pytest.mark.parametrize("seed", range(20))
def test_lists(seed: int) -> None:
    """Every row is in one tile, parents are before their children, and the lists fit their room."""
    rng = np.random.default_rng(seed)
    units, _ = random_units(rng, n_trees=5, max_length=(3, 40, 200)[seed % 3])
    packed = pack(Units.of(units))
    work, T = delta_lists.plan(packed), packed.n_tokens
    room = ours.room(packed.needs)
    assert all(len(work[name]) <= room[name] for name in room)
    seen: list[int] = []
    tiles = work["delta/tiles"]
    chunks: list[int] = []
    for *starts, word, chunk, _ in tiles[1:].reshape(tiles[0], -1).tolist():
        chunks += [chunk] * (chunk >= 0)
        for block, start in enumerate(starts):
            left = (word >> 3) - 16 * block if word & 3 == 2 else (word >> 3 + 5 * block) & 31
            seen += range(start, start + max(0, min(16, left)))
    assert sorted(seen) == list(range(T))
    assert sorted(chunks) == list(range(len(work["delta/chunks"])))
    done: set[int] = set()
    walk = work["delta/walk"]
    for _, word, _, begin, end, wait, flag, _ in walk[2:].reshape(walk[0], -1).tolist():
        assert wait < 0 or wait in done
        assert (end != -1) == bool(word & 4)
        assert wait < 0 or begin != -1
        done.add(flag)
    assert done - {-1} == set(range(int(walk[1])))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a CUDA device")
@pytest.mark.parametrize("heads", [(16, 16, 128, 128), (16, 32, 128, 128)])
def test_true_sizes(heads: tuple[int, int, int, int]) -> None:
    """Twice, to the same bits: programs wait for each other in an order that differs."""
    trees = trunk(1000, *[60] * 20), trunk(200, *[12] * 64), chain(*[30] * 5), trunk(400, 60, 60, 60, 60)
    units = [unit(tree, (0, -1, -1, -1)[i], [(150, i + 1)] if i != 2 else []) for i, tree in enumerate(trees)]
    given = scene(np.random.default_rng(16), units, 5, heads=heads, dtype=torch.bfloat16, more_rows=100)
    check(given)
    first, again = given.run(), given.run()
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1].nan_to_num(7.0), again[1].nan_to_num(7.0))
