"""A round in a buffer of fixed places gives a pass the same arrays, whatever lay there before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures.cpu_variants import skip_without_kernels
from fixtures.random_trees import random_tree
from fixtures.random_units import random_units
from fixtures.triton_device import DEVICE  # before anything that imports triton
from oracles.staging import PlainStaging, fill, holds, loose, places

from ramet.engine.graphs import capacities, ladder
from ramet.engine.host import host_for
from ramet.engine.staging import Layout, outside
from ramet.ops import choose
from ramet.round import Capacity, pack
from ramet.tree import Segment, Tree
from ramet.units import Unit, Units


def test_the_ladder_wastes_little_and_holds_every_round() -> None:
    rungs = ladder(16384)
    assert rungs[-1] == 16384
    assert ladder(5000)[-1] >= 5000
    steps = np.diff([0, *rungs])
    assert (steps > 0).all()
    assert all(step <= min(max(32, rung / 16), 256) for step, rung in zip(steps, rungs, strict=True))
    for rows in rungs:
        assert max(c.reads for c in capacities(rows)) == rows
        assert min(capacities(rows)).reads >= min(rows, max(64, rows // 8))


def test_what_lists_need_of_states_is_all_that_is_needed() -> None:
    """Segments below others leave states where layers are recurrent alone."""
    chain = Unit(Tree.of([Segment([1, 2]), Segment([3], 0)]))
    needs = pack(Units.of([chain] * 9)).needs
    assert needs == Capacity(27, 0, 9)
    assert holds(Layout(Capacity(32, 4, 2), {}), needs, {})
    assert not holds(Layout(Capacity(32, 4, 2), {"op/forks": 2}), needs, {"op/forks": np.zeros(9, np.int32)})
    assert not holds(Layout(Capacity(32, 4, 2), {}), replace(needs, reads=5), {})


@pytest.mark.parametrize("seed", range(6))
def test_the_arrays_of_a_round_lie_in_the_buffer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    units = [Unit(random_tree(rng, vocab_size=99, max_length=30)) for _ in range(3)]
    packed = pack(Units.of(units))
    needs = packed.needs
    rooms = {"op/rows": 11, "op/list": 11, "op/missing": 2, "op/nothing": 0}
    layout = Layout(Capacity(needs.rows + 7, needs.reads + 3, needs.forks), rooms, ["op/rows"])
    lists = np.arange(1, 6, dtype=np.int32)
    work, heads = {"op/rows": lists, "op/list": lists}, {"head/list": np.arange(3, dtype=np.int32)}
    assert holds(layout, needs, work)
    assert not holds(layout, needs, {"op/list": np.zeros(12, np.int32)})
    assert not holds(layout, replace(needs, rows=needs.rows + 8), work)
    behind = loose(packed, heads)
    spans, end = places(layout, behind)
    assert list(spans.values())[-1][1] <= end
    buffer = rng.integers(0, 1 << 30, end + 9).astype(np.int32)
    after = buffer[end:].copy()
    fill(layout, buffer, packed, work, behind, spans)
    assert (buffer[end:] == after).all()
    data, rows = torch.from_numpy(buffer), torch.arange(999, dtype=torch.int32)
    inner, outer = layout.stream(data, rows), outside(data, spans)

    def check(found: torch.Tensor, name: str, padding: int, length: int) -> None:
        want = packed[name]
        assert len(found) == length
        assert found[: len(want)].tolist() == want.tolist()
        assert (found[len(want) :] == padding).all()

    for name in ("tokens", "positions", "kept_rows"):
        check(getattr(inner, name), name, 0, needs.rows + 7)
    check(inner.kept_slots, "kept_slots", -1, needs.rows + 7)
    check(inner.read.rows, "read_rows", 0, needs.reads + 3)
    assert inner.every.rows.tolist() == list(range(needs.rows + 7))
    assert inner.context_pages[: len(packed["context_pages"])].tolist() == packed["context_pages"].tolist()
    assert inner.work["op/rows"].tolist() == [*lists, *[0] * 6]
    assert inner.work["op/list"][:5].tolist() == [*lists]
    assert int(inner.work["op/missing"][0]) == len(inner.work["op/nothing"]) == 0
    for name in ("read_index", "columns", "offsets", "normalize"):
        check(getattr(outer, name), name, 0, len(packed[name]))
    assert outer.work["head/list"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("seed", range(8))
def test_the_same_by_compiled_code(seed: int) -> None:
    """In the same layout, to the last place of the buffer; or in none."""
    skip_without_kernels()
    rng = np.random.default_rng(seed)
    planning = choose(DEVICE, dict.fromkeys(("attention", "gated_delta", "conv", "head"), "triton")).planning
    planning = replace(planning, processors=132)
    heads = {"n_heads": 32, "n_kv_heads": 8, "head_dim": 128}
    kinds = planning.attention(**heads, window=0, read=False) | planning.attention(**heads, window=24, read=True)
    planners = list((kinds | planning.head() | (planning.recurrent(4) if seed % 2 else {})).values())
    inside = [p for p in planners if p.inside]
    by_row = [name for p in inside for name in p.by_row]
    layouts = [
        Layout(capacity, {name: n for p in inside for name, n in p.room(capacity).items()}, by_row)
        for rows in ladder(3000)
        for capacity in capacities(rows)
    ]
    assert layouts[0].rooms.keys() < layouts[-1].rooms.keys()  # some lists are there in large rounds alone
    plain, compiled = PlainStaging(planners, layouts), host_for(DEVICE).staging(planners, layouts)
    used = set[Layout]()
    for n in (0, 1, 2, 3, 5, 9, 20, 40, 80, 160, 300):
        packed = pack(Units.of(random_units(rng, n, 24, 60)))
        before = rng.integers(0, 1 << 30, layouts[-1].size + 2000).astype(np.int32)
        held, other = before.copy(), before.copy()
        expected, found = plain(packed, held), compiled(packed, other)
        if expected is None:
            assert found is None
            continue
        assert found is not None
        used.add(found.layout)
        assert (found.layout, found.used, found.spans) == (expected.layout, expected.used, expected.spans)
        np.testing.assert_array_equal(other, held)
        assert compiled(packed, other[: found.used - 4]) is None
    assert len(used) > 4
