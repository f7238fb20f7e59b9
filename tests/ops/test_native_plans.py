"""Rounds packed and planned by compiled code are those of the plain code, to the last number."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.random_units import PAGE, random_units
from fixtures.triton_device import DEVICE  # before anything that imports triton
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import attention_lists
from oracles.lists import PLAIN, lists_of

from ramet.engine.host import CompiledHost, host_for
from ramet.errors import InvalidRequest
from ramet.ops import choose, native
from ramet.ops.attention import lists as attention
from ramet.ops.native import plan as compiled
from ramet.ops.native.pack import pack
from ramet.round import Round
from ramet.round import pack as plain_pack
from ramet.tree import WHOLE, Read, Segment, Tree
from ramet.units import Unit, Units

NONE = np.zeros(0, np.int32)
HEADS = [(1, 1, 16), (3, 1, 64), (8, 2, 256), (16, 4, 256), (32, 8, 128), (8, 1, 512), (9, 3, 64), (71, 1, 64)]


@pytest.fixture(scope="module")
def library() -> native.Library:
    found = native.library()
    if found is None:
        pytest.skip(f"no compiled code here: {native.status()[1]}")
    return found


def branches(n_state: int, n: int, n_each: int) -> Unit:
    below = (Segment(np.zeros(n_each, np.int32), 0, 1, [Read([1, 2])]) for _ in range(n))
    return Unit(Tree.of([Segment(np.zeros(n_state, np.int32)), *below]))


def live(rng: np.random.Generator, n_context: int) -> Unit:
    """Two blocks of a reply, the later of which sees the other, and pages before them; mostly no more rows than a tile
    has."""
    lengths = rng.integers(1, (8, 17, 40)[int(rng.integers(3))], 2)
    segments = [Segment(np.zeros(n, np.int32), i - 1, WHOLE, [Read([1], int(n) - 1)]) for i, n in enumerate(lengths)]
    return Unit(Tree.of(segments), rng.integers(0, 500, -(-n_context // PAGE)).astype(np.int32), n_context)


def rounds(rng: np.random.Generator) -> Iterator[list[Unit]]:
    for n, length, context in (
        (1, 1, 2), (1, 40, 200), (3, 40, 200), (9, 9, 70), (2, 400, 3000), (1, 5, 20000), (2, 90, 20000),
    ):  # fmt: skip
        for _ in range(4):
            yield random_units(rng, n, length, context)
    yield [branches(1, 1, 1)]
    yield [branches(200, 64, 12)]
    yield [branches(3000, 5, 60), branches(70, 30, 33)]
    yield [live(rng, n_context) for n_context in (0, 70, 512, 9000)]
    yield [live(rng, int(rng.integers(1, 1000))) for _ in range(60)]


def how(rng: np.random.Generator) -> Iterator[tuple[str, dict[str, Any]]]:
    """Which lists: of attention several kinds in one call, that share what they have in common."""
    yield "head", {}
    yield "conv", {"width": int(rng.integers(1, 6))}
    yield "gated_delta", {}
    processors = int(rng.choice([1, 4, 24, 132]))
    for _ in range(6):
        n_heads, n_kv_heads, head_dim = HEADS[int(rng.integers(len(HEADS)))]
        yield "attention", {
            "n_heads": n_heads, "n_kv_heads": n_kv_heads, "head_dim": head_dim, "processors": processors,
            "window": int(rng.choice([0, 0, 1, 24, 512])), "read": bool(rng.integers(2)),
            "invariant": bool(rng.integers(2)),
        }  # fmt: skip


def assert_same_lists(library: native.Library, packed: Round, asked: list[tuple[str, dict[str, Any]]]) -> None:
    found = compiled.Lists(library, [compiled.task(op, args) for op, args in asked])(packed)
    expected = {name: value for op, args in asked for name, value in PLAIN[op](packed, **args).items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == np.int32
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def assert_same_round(library: native.Library, units: Units, multiple: int = 1) -> Round:
    found, expected = pack(library, units, multiple), plain_pack(units, multiple)
    assert found.spans == expected.spans
    np.testing.assert_array_equal(found.data, expected.data)
    np.testing.assert_array_equal(found.unit_reads, expected.unit_reads)
    return found


@pytest.mark.parametrize("multiple", [1, 16])
@pytest.mark.parametrize("seed", range(6))
def test_packing(library: native.Library, seed: int, multiple: int) -> None:
    for units in rounds(np.random.default_rng(seed)):
        assert_same_round(library, Units.of(units), multiple)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=4), st.integers(1, 32), st.data())
def test_packing_parts(
    library: native.Library, sizes: list[tuple[int, bool]], multiple: int, data: st.DataObject
) -> None:
    """Parts of several units each, of which some have positions, for some rows or all: joined, they are packed as they
    are one by one, but for the positions."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    units, parts = [], []
    for n, has_positions in sizes:
        units += (own := random_units(rng, n, 20, 90))
        part = Units.of(own)
        if has_positions:
            part = replace(part, positions=rng.integers(-1, 300, part.n_tokens).astype(np.int32))
        parts.append(part)
    joined = Units.joined(parts)
    assert len(joined) == len(units)
    found, plain = assert_same_round(library, joined, multiple), pack(library, Units.of(units), multiple)
    given = np.append(joined.positions, np.full(found.n_tokens - joined.n_tokens, -1))
    np.testing.assert_array_equal(found["positions"], np.where(given < 0, plain["positions"], given))
    for name in found.spans.keys() - {"positions"}:
        np.testing.assert_array_equal(found[name], plain[name], err_msg=name)
    np.testing.assert_array_equal(found.unit_reads, plain.unit_reads)


def test_arrays_of_other_types_are_cast(library: native.Library) -> None:
    units = Units.of(random_units(np.random.default_rng(3), 5, 20, 90))
    wide = Units(*(x.astype(np.int64) for x in units.arrays))
    np.testing.assert_array_equal(assert_same_round(library, wide).data, pack(library, units).data)


@pytest.mark.parametrize("seed", range(6))
def test_lists(library: native.Library, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for units in rounds(rng):
        assert_same_lists(library, plain_pack(Units.of(units)), list(how(rng)))


@pytest.mark.parametrize("invariant", [False, True])
@pytest.mark.parametrize("window", [0, 700])
def test_tiles_in_pieces(library: native.Library, invariant: bool, window: int) -> None:
    """The longest tiles of a few rows over many keys are parted; with more rows none are."""
    rng = np.random.default_rng(5)
    shape: dict[str, Any] = {"n_heads": 8, "n_kv_heads": 2, "head_dim": 256, "processors": 132}
    shape |= {"window": window, "invariant": invariant}
    long, short = [*random_units(rng, 1, 9, 2), _behind(9000, 5)], [branches(40, 300, 3)]
    for units, read in itertools.product((long, short), (False, True)):
        packed, asked = plain_pack(Units.of(units)), [("attention", shape | {"read": read})]
        joins = next(v for k, v in attention_lists.plan(packed, **asked[0][1]).items() if k.endswith("joins"))
        assert window > 0 or (int(joins[0]) > 0) == (units is long)
        assert_same_lists(library, packed, asked)


@pytest.mark.parametrize(("n_context", "n_rows", "n_wide"), [(300, 1200, 0), (6000, 1200, 111), (6000, 300, 0)])
def test_tiles_are_wide_where_rows_and_keys_fill_a_card(
    library: native.Library, n_context: int, n_rows: int, n_wide: int
) -> None:
    """In all of these some are parted, so that one turn of the machine takes all."""
    shape: dict[str, Any] = {"n_heads": 8, "n_kv_heads": 2, "head_dim": 256, "processors": 132, "window": 0}
    packed, asked = (
        plain_pack(Units.of([_behind(n_context, n_rows)])),
        [("attention", shape | {"read": False, "invariant": False})],
    )
    lists = attention_lists.plan(packed, **asked[0][1])
    counts = {name.rsplit("/", 1)[1]: int(x[0]) for name, x in lists.items() if "items" in name or "joins" in name}
    assert counts["joins"] > 0
    assert counts.get("items128", 0) == n_wide
    assert 2 * counts["items64"] <= 264
    assert_same_lists(library, packed, asked)


@pytest.mark.parametrize(("n_rows", "n_joins"), [(12, 1), (16, 0)])
def test_no_more_pieces_than_there_is_room_for_sums(library: native.Library, n_rows: int, n_joins: int) -> None:
    shape = {"n_heads": 8, "n_kv_heads": 1, "head_dim": 128, "window": 0, "read": False}
    packed = plain_pack(Units.of([_behind(30000, n_rows), branches(40, 3, 20)]))
    asked = [("attention", shape | {"invariant": True, "processors": 4})]
    joins = next(v for k, v in attention_lists.plan(packed, **asked[0][1]).items() if k.endswith("joins"))
    assert int(joins[0]) == n_joins
    assert_same_lists(library, packed, asked)


def _behind(n_context: int, n_rows: int) -> Unit:
    tree = Tree.of([Segment(np.zeros(n_rows, np.int32), reads=[Read([1])])])
    return Unit(tree, np.arange(-(-n_context // PAGE), dtype=np.int32), n_context, forks=np.array([0, 4000], np.int32))


def test_spans_of_other_lengths(library: native.Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plain code's constants are the compiled code's."""
    monkeypatch.setattr(attention, "MIN_BLOCKS", 2)
    monkeypatch.setattr(attention, "SPAN", 192)
    rng = np.random.default_rng(9)
    for units in rounds(rng):
        assert_same_lists(library, plain_pack(Units.of(units)), [x for x in how(rng) if x[0] == "attention"])


def test_lists_of_planners(library: native.Library) -> None:
    planning = choose(DEVICE, dict.fromkeys(PLAIN, "triton")).planning
    heads = {"n_heads": 2, "n_kv_heads": 1, "head_dim": 16, "window": 0}
    kinds = planning.head() | planning.recurrent(4) | planning.attention(**heads, read=True)
    planners = list(kinds.values())
    packed = pack(library, Units.of([branches(30, 3, 5)]))
    found, expected = CompiledHost(library).lists(planners)(packed), lists_of(planners, packed)
    assert {k: v.tolist() for k, v in found.items()} == {k: v.tolist() for k, v in expected.items()}
    assert {name.split("/")[0] for p in planners if not p.inside for name in p.task.names} == {"head"}


def test_without_a_compiler_nothing_makes_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.engine.host.library", lambda: None)
    host, packed = host_for(torch.device("cpu")), plain_pack(Units.of([branches(30, 3, 5)]))
    assert host.lists([])(packed) == {}
    planning = choose(DEVICE, dict.fromkeys(PLAIN, "triton")).planning
    with pytest.raises(InvalidRequest, match="work lists are made by ramet's C"):
        host.lists([*planning.head().values()])
