"""Replies that repeat: one that is alone, whatever was measured; one with a seed, whatever runs beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ramet.denoise.draws import Draws
from ramet.denoise.latency import Latency
from ramet.denoise.noise import Noise
from ramet.denoise.running import Beginning
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine import Engine
from ramet.engine.reply import Reply
from ramet.errors import EngineFault, InvalidRequest
from ramet.generation import Generation, GenerationRequest, Piece
from tests.engine.test_replies_exact import BLOCK, asked, loaded, prompts

DEAR = Latency((2, 4), 1e-9, (1.0, 2.0, 3.0), 0.0, 0.0)  # each row takes seconds
FREE = Latency((2, 4), 1.0, (0.0, 0.0, 0.0), 0.0, 0.0)
N_PAGES = 2**16  # bytes, which hold the beginnings of several replies but not all of them to their ends


def measured(latency: Latency, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Engine:
    """Chooses by the load, as though steps took so long."""
    monkeypatch.setattr("ramet.engine.sizing.latency", lambda *_: latency)
    engine = loaded(chunk_size="auto", **settings)
    engine.sizing.observe = lambda *_: None  # type: ignore[method-assign, union-attr]
    return engine


def together(engine: Engine, requests: Sequence[GenerationRequest]) -> list[Generation]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(engine.writer.generate, requests))


def what(found: Generation) -> tuple[Any, ...]:
    return found.positions, found.finish


def test_one_that_is_alone_repeats_whatever_steps_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a new engine and behind many others."""
    found = list[Generation]()
    for latency in (DEAR, FREE):
        with measured(latency, monkeypatch, latency_cache=tmp_path) as engine:
            (prompt,) = prompts(engine, [13])
            found.append(engine.writer.generate(asked(prompt)))
            assert engine.describe()["chunk_size"] == "auto"
            together(engine, [asked(p, max_tokens=60, ignore_eos=True) for p in prompts(engine, [9] * 8)])
            assert 2 in engine.histograms()["chunk_size"] or latency is FREE, "the load does choose"
            found.append(engine.writer.generate(asked(prompt)))
    with loaded(mode="block", chunk_size="block") as engine:
        tokens = engine.writer.generate(asked(prompt)).tokens
    assert [each.tokens for each in found] == [tokens] * 4
    assert len({each.n_steps for each in found}) == 1
    assert {each.chunk_size for each in found} == {None}, "it went by the load, of which there was none"


@pytest.mark.parametrize("settings", [{}, {"batch_invariant": True}, {"batch_invariant": True, "dtype": "bfloat16"}])
def test_a_seed_repeats_beside_any_others(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit where arithmetic does; tokens in float32 anyhow."""
    with measured(DEAR, monkeypatch, **settings) as engine:
        mine, *others = prompts(engine, [11, 9, 20, 31, 5, 8])
        own = asked(mine, temperature=0.8, seed=42, max_tokens=40, ignore_eos=True)
        alone = engine.writer.generate(own)
        assert alone.chunk_size == BLOCK
        unseeded = [asked(p, temperature=0.8, max_tokens=60, ignore_eos=True) for p in others]
        seeded = [replace(each, seed=n) for n, each in enumerate(unseeded)]
        for beside in (unseeded, seeded, [own], [*unseeded, *seeded]):
            found = together(engine, [own, *beside])[0]
            assert (found.tokens, found.finish, found.n_steps) == (alone.tokens, alone.finish, alone.n_steps)
            assert "batch_invariant" not in settings or what(found) == what(alone)
            assert found.chunk_size == BLOCK


@pytest.mark.parametrize(
    ("settings", "how", "size"),
    [
        ({"chunk_size": "auto"}, {}, None), ({"chunk_size": "auto"}, {"seed": 0}, BLOCK),
        ({"chunk_size": "auto"}, {"chunk_size": 3}, 3), ({"chunk_size": "auto", "chunk_tiers": "1:4"}, {}, None),
        ({"chunk_size": "auto", "chunk_tiers": "1:4,9:2"}, {"seed": -1}, 4), ({"chunk_size": "block"}, {}, BLOCK),
        ({"chunk_size": "block", "chunk_tiers": "1:4"}, {}, None),
        ({"chunk_size": "5"}, {"seed": 1}, 5), ({"chunk_size": "block", "mode": "block"}, {}, BLOCK),
    ],
)  # fmt: skip
def test_the_size_is_told_where_it_holds_at_any_load(
    settings: Any, how: Any, size: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ramet.engine.sizing.latency", lambda *_: DEAR)
    with loaded(**settings) as engine:
        (prompt,) = prompts(engine, [5])
        assert engine.writer.generate(asked(prompt, max_tokens=2, **how)).chunk_size == size


def test_a_size_of_chunks_is_refused_where_there_are_none() -> None:
    with loaded(mode="block", chunk_size="block") as engine:
        (prompt,) = prompts(engine, [5])
        with pytest.raises(InvalidRequest, match="whole blocks run") as caught:
            engine.writer.generate(asked(prompt, chunk_size=3))
        assert caught.value.field == "chunk_size"


@pytest.mark.parametrize("size", [3, BLOCK])
def test_a_seed_repeats_when_pages_run_out(size: int) -> None:
    with loaded(cache_bytes=N_PAGES, chunk_size=str(size), batch_invariant=True) as engine:
        requests = crowd(engine)
        alone = [what(engine.writer.generate(each)) for each in requests]
        assert [what(each) for each in together(engine, requests)] == alone
        assert engine.stats()["preemptions_total"] > 0


def test_a_token_is_told_once_when_pages_run_out() -> None:
    async def streamed(engine: Engine, request: GenerationRequest) -> list[Piece]:
        return [piece async for piece in engine.writer.stream(request)]

    async def all_of(engine: Engine, requests: Sequence[GenerationRequest]) -> list[list[Piece]]:
        return await asyncio.gather(*(streamed(engine, each) for each in requests))

    with loaded(cache_bytes=N_PAGES, chunk_size="3", batch_invariant=True) as engine:
        requests = crowd(engine)
        alone = [engine.writer.generate(each).positions for each in requests]
        found = asyncio.run(all_of(engine, requests))
        assert [tuple(p for piece in pieces for p in piece.positions) for pieces in found] == alone
        assert engine.stats()["preemptions_total"] > 0


@pytest.mark.parametrize("mode", ["chunk", "block"])
def test_the_next_turn_has_the_same_bits_where_the_last_was_written(mode: str) -> None:
    """And where it was not."""
    found = list[Generation]()
    for was_written in (True, False):
        with loaded(mode=mode, chunk_size="block", batch_invariant=True) as engine:
            (prompt,) = prompts(engine, [9])
            if was_written:
                first = engine.writer.generate(asked(prompt, max_tokens=47, ignore_eos=True)).tokens
            found.append(engine.writer.generate(asked([*prompt, *first, 3, 4, 5])))
    assert what(found[0]) == what(found[1])


def crowd(engine: Engine) -> list[GenerationRequest]:
    """Whose pages run out together."""
    n = int(engine.stats()["pages"]) * engine.cache.pages.page_size // 4
    found = [asked(p, max_tokens=n, temperature=0.8, ignore_eos=True) for p in prompts(engine, [9] * 6)]
    return [replace(each, seed=n) for n, each in enumerate(found)]


def test_a_seed_repeats_beside_those_who_leave_and_rounds_that_fail() -> None:
    async def leaving(engine: Engine, request: GenerationRequest) -> None:
        async with aclosing(engine.writer.stream(request)) as pieces:
            async for _ in pieces:
                return

    async def all_of(engine: Engine, own: GenerationRequest, others: Sequence[GenerationRequest]) -> Generation:
        found, *_ = await asyncio.gather(engine.writer.generate_async(own), *(leaving(engine, each) for each in others))
        return found

    with loaded(chunk_size="3", batch_invariant=True) as engine:
        mine, *others = prompts(engine, [11, 9, 20, 31])
        own = asked(mine, temperature=0.8, seed=42, max_tokens=60, ignore_eos=True)
        alone = engine.writer.generate(own)
        failing(engine, lambda n_replies: n_replies > 1, n_times=1)
        beside = [asked(p, max_tokens=200, ignore_eos=True) for p in others]
        assert what(asyncio.run(all_of(engine, own, beside))) == what(alone)
        assert engine.stats()["failed_rounds_total"] == 1


def failing(engine: Engine, which: Callable[[int], bool], n_times: int) -> None:
    """So many rounds of so many replies fail."""
    launch, left = engine.runner.launch, [n_times]

    def launched(batch: Any) -> Any:
        if left[0] and batch.step is not None and which(len(batch.step.jobs)):
            left[0] -= 1
            raise RuntimeError("no")
        return launch(batch)

    engine.runner.launch = launched  # type: ignore[method-assign]


def test_what_is_written_again_and_comes_out_otherwise_is_a_fault() -> None:
    told = list[Piece]()
    known = np.ones(1, np.bool_)
    beginning = Beginning(
        0, np.ones(1, np.int32), known, 1, 1, 9, frozenset(), UnmaskPolicy(block=4), Draws(0, 0, 1, Noise(1))
    )
    reply = Reply(np.ones(1, np.int32), beginning, on_piece=told.append, repeats=True)
    reply.take([5, 6, 7], [0.0] * 3, 0)
    reply.again()
    reply.take([5], [0.0], 0)
    reply.take([6, 7, 8], [0.0] * 3, 0)
    assert (reply.tokens, reply.fault) == ([5, 6, 7, 8], None)
    assert [position.token for piece in told for position in piece.positions] == [5, 6, 7, 8]
    reply.again()
    reply.take([5, 9], [0.0] * 2, 0)
    reply.take([7, 8, 1], [0.0] * 3, 2)
    assert isinstance(reply.fault, EngineFault)
    assert "cache_bytes" in str(reply.fault)
    assert len(told) == 2, "nothing more is told"


@pytest.mark.parametrize("seed", [0, -1, 1 << 31, (1 << 63) - 1, -(1 << 63)])
def test_seeds_are_seeds(seed: int) -> None:
    with loaded() as engine:
        (prompt,) = prompts(engine, [9])
        own = asked(prompt, temperature=1.5, max_tokens=24, ignore_eos=True)
        first, second = (engine.writer.generate(replace(own, seed=seed)).tokens for _ in range(2))
        assert first == second
        assert first != engine.writer.generate(own).tokens
        assert first != engine.writer.generate(replace(own, seed=seed ^ 1)).tokens


@pytest.mark.parametrize("seed", [1 << 63, -(1 << 63) - 1, 1.5, True, "1"])
def test_what_is_no_seed_is_refused_with_the_limit(seed: Any) -> None:
    with loaded() as engine:
        (prompt,) = prompts(engine, [9])
        with pytest.raises(InvalidRequest, match="9223372036854775807") as caught:
            engine.writer.generate(asked(prompt, seed=seed))
        assert caught.value.field == "seed"
