"""Steps laid as units by compiled code: the same as plainly, array by array."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from ramet.cache.pages import Pages, Path
from ramet.cache.tables import Tables
from ramet.denoise.draws import Draws
from ramet.denoise.next_tokens import NextTokens
from ramet.denoise.noise import Noise
from ramet.denoise.running import Beginning, Chunks, RunningReplies
from ramet.denoise.running_blocks import RunningBlocks
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.host import CompiledHost
from ramet.engine.laying import plain_lay
from ramet.ops.native.loader import library
from ramet.tree import IntArray
from ramet.units import Units

BLOCK, MASK, PAGE = 8, 99, 16
LIBRARY = library()
if LIBRARY is None:
    pytest.skip("nothing is compiled here", allow_module_level=True)
lay = CompiledHost(LIBRARY).lay


def begun(live: RunningReplies, tables: Tables, n_prompt: int) -> int:
    """A reply behind a prompt; the place that it has."""
    start = n_prompt // BLOCK * BLOCK if isinstance(live, RunningBlocks) else n_prompt - 1
    tokens = np.arange(start, n_prompt, dtype=np.int32)
    place = live.add(
        Beginning(
            start, tokens, np.ones(len(tokens), np.bool_), n_prompt, n_prompt, 500, frozenset(),
            UnmaskPolicy(block=BLOCK), Draws(0.0, 0, 1.0, Noise(n_prompt)),
        )
    )  # fmt: skip
    path = Path()
    assert tables.pages.append(path, -(-start // PAGE))
    path.length = start
    tables.add(place, path)
    return place


def same(found: Units | None, expected: Units | None) -> None:
    assert found is not None
    assert expected is not None
    for each in fields(Units):
        np.testing.assert_array_equal(getattr(found, each.name), getattr(expected, each.name), each.name)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("kind", ["blocks", "ahead", "whole", "next"])
def test_the_same_units_step_by_step(kind: str, recurrent: bool) -> None:
    rng = np.random.default_rng(0)
    live: RunningReplies = NextTokens()
    if kind != "next":
        live = RunningBlocks(BLOCK, MASK, "block" if kind == "whole" else "chunk", ahead=kind == "ahead")
    tables = Tables(Pages(400, PAGE))
    places = np.array([begun(live, tables, n) for n in range(1, 21)], np.int32)
    for step in range(60):
        some = rng.permutation(places)[: int(rng.integers(1, len(places) + 1))]
        chunks = live.chunks(some, rng.integers(2, BLOCK + 1, len(some)).astype(np.int32))
        states: tuple[IntArray, IntArray] | tuple[()] = ()
        if recurrent:
            states = (np.arange(len(some), dtype=np.int32) - 1, np.arange(len(some), dtype=np.int32) + step)
        same(lay(tables, chunks, *states), plain_lay(tables, chunks, *states))
        tables.advance(some, chunks.n_kept)
        n = len(chunks.reads)
        live.take(chunks, rng.integers(0, MASK, n).astype(np.int32), rng.random(n, np.float32), np.zeros(n, np.float32))


def test_nothing_where_pages_have_run_out() -> None:
    live, tables = NextTokens(), Tables(Pages(1, PAGE))
    place = begun(live, tables, PAGE)
    chunks = live.chunks(np.array([place], np.int32), np.array([2], np.int32))
    assert lay(tables, chunks) is not None
    tables.advance(chunks.places, chunks.n_kept)
    assert lay(tables, one(live, place)) is None


def one(live: RunningReplies, place: int) -> Chunks:
    return live.chunks(np.array([place], np.int32), np.array([2], np.int32))
