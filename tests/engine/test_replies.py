"""Replies beside each other, beside decisions, and where pages, rounds or callers fail."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.tiny_engine import tiny_engine
from fixtures.waiting import GUARD_S, wait_until
from oracles import block_models
from oracles.answers import assert_close

from ramet.engine import Engine
from ramet.engine.load import with_blocks
from ramet.engine.runner import Runner
from ramet.engine.settings import EngineSettings
from ramet.errors import EngineFault, InvalidRequest, RequestTooLong
from ramet.generation import Generation, GenerationRequest
from ramet.request import DecisionRequest
from tests.engine.test_replies_exact import BLOCK, N_TOKENS, asked, loaded, prompts

ASKED = DecisionRequest.parse(
    {"state": "it broke", "questions": {"a": {"type": "noul", "instructions": "Is it broken?"}}}
)


def assert_idle(engine: Engine) -> None:
    """Nothing is held but by the index."""
    wait_until(lambda: not any(engine.stats()[f] for f in ("open_requests", "replies_live", "replies_waiting")))
    stats = engine.stats()
    assert stats["pages_free"] + stats["pages_indexed"] == stats["pages"]


def together(engine: Engine, requests: list[GenerationRequest]) -> list[Generation]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(engine.writer.generate, requests))


def assert_sizes_were_run(engine: Engine, replies: list[Generation]) -> None:
    """Each step of each reply is counted with the rows that it ran, whatever size was chosen."""
    assert_idle(engine)
    chunks, steps = engine.histograms()["chunk_size"], engine.histograms()["step_replies"]
    assert sum(chunks.values()) == sum(reply.n_steps for reply in replies)
    assert sum(n_rows * n for n_rows, n in chunks.items()) == sum(reply.n_rows for reply in replies)
    assert sum(n_replies * n for n_replies, n in steps.items()) == sum(reply.n_steps for reply in replies)
    rounds = engine.histograms()["round_requests"]
    assert sum(rounds.values()) == engine.stats()["rounds_total"]
    assert max(steps) <= max(rounds) <= len(replies)


def test_sizes_are_those_that_were_run() -> None:
    with loaded(chunk_size=str(BLOCK)) as engine:
        assert_sizes_were_run(engine, [engine.writer.generate(asked([1] * BLOCK, max_tokens=2))])


@pytest.mark.parametrize("name", ["sdar", "qwen3", "qwen3_5"])
def test_when_pages_run_out_the_newest_waits_and_goes_on(name: str) -> None:
    source = block_models.saved(name)[0] if name == "sdar" else None
    size = 2**16 if name == "sdar" else 2**18 if name == "qwen3_5" else 2**16
    given = {"chunk_size": "4", "block_size": BLOCK} if name == "sdar" else {}
    with tiny_engine(name, source, cache_bytes=size, **given) as engine:
        n = int(engine.stats()["pages"]) * engine.cache.pages.page_size // 4
        requests = [asked(p, max_tokens=n, temperature=0.0, ignore_eos=True) for p in prompts(engine, [9] * 6)]
        if name != "sdar":
            requests = [GenerationRequest(r.prompt, n, temperature=0.0, ignore_eos=True) for r in requests]
        found = together(engine, requests)
        assert [len(reply.tokens) for reply in found] == [n] * 6
        assert engine.stats()["preemptions_total"] > 0 or name == "qwen3_5"
        assert_idle(engine)
        if name != "sdar":  # whose rows are computed with other masks beside them when it goes on
            assert [engine.writer.generate(each).tokens for each in requests] == [each.tokens for each in found]


def test_prompts_that_pages_cannot_hold_together_go_one_after_the_other() -> None:
    with loaded(cache_bytes=2**16, max_round_tokens=32, chunk_size="4") as engine:
        n = int(engine.stats()["pages"]) * engine.cache.pages.page_size
        requests = [asked(p, max_tokens=8, ignore_eos=True) for p in prompts(engine, [n // 2] * 3 + [n - 24, 9])]
        assert [len(reply.tokens) for reply in together(engine, requests)] == [8] * 5
        assert_idle(engine)


def test_decisions_share_rounds_with_replies() -> None:
    with loaded(chunk_size="4") as engine:
        alone = engine.decide(ASKED)
        begun, asked_beside = threading.Event(), threading.Event()
        launch = engine.runner.launch

        def noticed(batch: Any) -> Any:
            if batch.step is not None:
                begun.set()
                asked_beside.wait(GUARD_S)
                if batch.units:
                    shared.append(len(batch.step.jobs))
            return launch(batch)

        shared: list[int] = []
        engine.runner.launch = noticed  # type: ignore[method-assign]
        requests = [asked(p, max_tokens=200, ignore_eos=True) for p in prompts(engine, [9] * 4)]
        with ThreadPoolExecutor(5) as pool:
            replies = [pool.submit(engine.writer.generate, each) for each in requests]
            begun.wait(GUARD_S)
            n_open = engine.stats()["open_requests"]
            decision = pool.submit(engine.decide, ASKED)
            wait_until(lambda: engine.stats()["open_requests"] > n_open)
            asked_beside.set()
            beside = decision.result()
            assert all(len(reply.result().tokens) == 200 for reply in replies)
        assert max(shared, default=0) > 0
        assert engine.stats()["failed_rounds_total"] == 0
        assert_close(beside.answers, alone.answers)


@pytest.mark.parametrize("name", ["sdar", "qwen3", "qwen3_5"])
def test_prompts_share_rounds_with_running_replies(name: str) -> None:
    """A round has both, and none of them fails: one that did would run again, each of its replies alone."""
    source = block_models.saved(name)[0] if name == "sdar" else None
    given = {"chunk_size": "4", "block_size": BLOCK} if name == "sdar" else {}
    with tiny_engine(name, source, **given) as engine:
        launch, both = engine.runner.launch, list[Any]()

        def noticed(batch: Any) -> Any:
            both.extend([batch] if batch.step is not None and batch.units else [])
            return launch(batch)

        engine.runner.launch = noticed  # type: ignore[method-assign]
        requests = [
            GenerationRequest(tuple(p), 200, temperature=0.0, ignore_eos=True) for p in prompts(engine, [9] * 12)
        ]
        first = engine.writer.start(requests[0], lambda _: None)[0]
        for request in requests[1:]:
            n_rounds = engine.stats()["rounds_total"]
            wait_until(lambda before=n_rounds: first.done() or engine.stats()["rounds_total"] > before)  # type: ignore[misc]
            engine.writer.start(request, lambda _: None)
        assert_idle(engine)
        assert both
        assert engine.stats()["failed_rounds_total"] == 0


def test_who_leaves_in_the_middle_of_a_block_leaves_nothing_behind() -> None:
    async def one(engine: Engine, request: GenerationRequest, n_pieces: int) -> None:
        async with aclosing(engine.writer.stream(request)) as pieces:
            async for _ in pieces:
                n_pieces -= 1
                if not n_pieces:
                    return

    async def all_of(engine: Engine) -> None:
        requests = [asked(p, max_tokens=300, ignore_eos=True) for p in prompts(engine, [9, 20, 31, 5])]
        await asyncio.gather(*(one(engine, each, n) for n, each in enumerate(requests, 1)))

    with loaded(chunk_size="3") as engine:
        asyncio.run(all_of(engine))
        assert_idle(engine)
        assert engine.stats()["cancelled_total"] == 4


def test_pieces_are_the_whole_reply_step_by_step() -> None:
    async def streamed(engine: Engine, request: GenerationRequest) -> list[Any]:
        return [piece async for piece in engine.writer.stream(request)]

    with loaded(chunk_size="3") as engine:
        (prompt,) = prompts(engine, [13])
        whole = engine.writer.generate(asked(prompt))
        pieces = asyncio.run(streamed(engine, asked(prompt)))
        assert tuple(position for piece in pieces for position in piece.positions) == whole.positions
        assert sum(piece.n_steps for piece in pieces) == whole.n_steps
        assert sum(piece.n_rows for piece in pieces) == whole.n_rows
        assert [piece.finish for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert len(pieces) > N_TOKENS // BLOCK  # in the midst of blocks, not at their ends alone


def test_an_engine_writes_as_its_writer_does_and_a_stream_that_is_closed_ends_its_work() -> None:
    async def streamed(engine: Engine, request: GenerationRequest) -> list[Any]:
        return [piece async for piece in engine.stream(request)]

    async def closed(engine: Engine, request: GenerationRequest) -> None:
        pieces = engine.stream(request)
        await anext(pieces)
        await pieces.aclose()
        assert engine.stats()["cancelled_total"] == 1

    with loaded(chunk_size="3") as engine:
        (prompt,) = prompts(engine, [13])
        whole = engine.generate(asked(prompt))
        assert whole.tokens == engine.writer.generate(asked(prompt)).tokens
        pieces = asyncio.run(streamed(engine, asked(prompt)))
        assert tuple(position for piece in pieces for position in piece.positions) == whole.positions
        asyncio.run(closed(engine, asked(prompt, max_tokens=300, ignore_eos=True)))
        assert_idle(engine)


@pytest.mark.parametrize("culprit", [None, 1])
def test_a_failed_round_loses_nobody_but_the_one_that_fails_alone(culprit: int | None) -> None:
    with loaded(chunk_size="4") as engine:
        given = prompts(engine, [9, 20, 31, 5])
        expected = [engine.writer.generate(asked(p)).tokens for p in given]
        engine.cache.pages.index.clear()
        launch, failures = Runner.launch, []

        def failing(self: Runner, batch: Any) -> Any:
            step = batch.step
            replies = [] if step is None else [job.reply for job in step.jobs]
            bad = culprit is not None and any(len(r.prompt) == len(given[culprit]) for r in replies)
            if bad or (len(replies) > 1 and not failures):
                failures.append(len(replies))
                raise RuntimeError("no")
            return launch(self, batch)

        engine.runner.launch = failing.__get__(engine.runner)  # type: ignore[method-assign]

        def outcome(prompt: list[int]) -> Any:
            try:
                return engine.writer.generate(asked(prompt)).tokens
            except EngineFault as fault:
                return fault

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(outcome, given))
        assert failures
        for i, tokens in enumerate(found):
            if i == culprit:
                assert isinstance(tokens, EngineFault)
            else:
                assert tokens == expected[i]
        assert_idle(engine)


def test_what_a_failed_round_took_is_not_the_next_ones_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that leaps a thousand seconds ahead as a round fails."""
    ahead = [0.0]
    with loaded(chunk_size="4") as engine:
        launch, observed = engine.runner.launch, list[float]()

        def failing(batch: Any) -> Any:
            if len(batch.all_jobs) > 1 and not ahead[0]:
                ahead[0] = 1000.0
                raise RuntimeError("no")
            return launch(batch)

        clock = SimpleNamespace(perf_counter=lambda: time.perf_counter() + ahead[0])
        monkeypatch.setattr("ramet.engine.loop.time", clock)
        engine.runner.launch = failing  # type: ignore[method-assign]
        engine.sizing.observe = lambda _, took, between: observed.append(took + between)  # type: ignore[method-assign]
        assert together(engine, [asked(p) for p in prompts(engine, [9] * 4)])
        assert ahead[0]
        assert 0 < max(observed) < 900


@pytest.mark.parametrize("how", [{"chunk_size": "4"}, {"mode": "block"}])
@pytest.mark.parametrize("place", [0, BLOCK - 1, 3])
def test_an_ending_id_anywhere_in_a_block_is_the_last(place: int, how: dict[str, Any]) -> None:
    def replied(source: Path, **more: Any) -> Generation:
        with tiny_engine("sdar", source, block_size=BLOCK, **how) as engine:
            (prompt,) = prompts(engine, [BLOCK])
            found = engine.writer.generate(asked(prompt, max_tokens=8 * BLOCK, **more))
            assert_idle(engine)
            return found

    tokens = replied(block_models.saved("sdar")[0], ignore_eos=True).tokens
    at = next(i for i in range(place, 8 * BLOCK, BLOCK) if tokens[i] not in tokens[:i])
    found = replied(block_models.saved("sdar", eos_token_id=tokens[at])[0])
    assert (found.finish, found.tokens) == ("stop", tokens[: at + 1])


def test_sizes_that_follow_what_rounds_take(tmp_path: Path) -> None:
    with loaded(chunk_size="auto", latency_cache=tmp_path) as engine:
        assert "latency" not in engine.describe()
        found = together(engine, [asked(p, max_tokens=40) for p in prompts(engine, [9] * 8)])
        assert all(reply.finish for reply in found)
        assert_sizes_were_run(engine, found)
        assert "latency" in engine.describe()
        engine.measure()  # nothing is left to do
        assert_idle(engine)
    with loaded(chunk_size="auto", chunk_tiers="1:8,4:2") as engine:
        assert together(engine, [asked(p) for p in prompts(engine, [9] * 8)])


def test_chunks_of_a_size_of_their_own_are_other_rows_to_the_rest() -> None:
    noted: list[tuple[int, int]] = []

    class Noted:
        def choose(self, demands: Any, n_other: int = 0) -> int:
            noted.append((sum(len(demand.uncached) for demand in demands), n_other))
            return BLOCK

    with loaded(chunk_size="auto") as engine:
        assert engine.decoding is not None
        engine.decoding.choice.sizes = Noted()
        engine.sizing.is_due = False
        own = asked([1] * BLOCK, max_tokens=200, chunk_size=3, ignore_eos=True)
        engine.writer.generate(own)
        assert not noted, "nobody's was to be chosen"
        together(engine, [own, replace(own, chunk_size=None)])
        assert (1, 3) in noted
        assert {n for n, _ in noted} == {1}


def test_where_nothing_can_be_measured_chunks_are_blocks(caplog: pytest.LogCaptureFixture) -> None:
    with loaded(chunk_size="auto", block_size=4, max_round_tokens=16) as engine:
        assert_sizes_were_run(engine, together(engine, [asked(p, max_tokens=9) for p in prompts(engine, [5, 6])]))
        assert max(engine.histograms()["chunk_size"]) <= 2 * 4, "a block, and one that is kept beside it"
    assert "whole blocks" in caplog.text


def test_a_prompts_id_that_is_none_is_named_with_the_bound() -> None:
    with loaded() as engine:
        n = engine.writer.vocab_size
        for wrong in (n, -1, 1 << 40):
            with pytest.raises(InvalidRequest, match=f"^prompt: ids run from 0 to {n - 1}; {wrong} is none"):
                engine.writer.generate(asked([1, wrong]))


def test_a_chunk_has_no_size_of_its_own_where_blocks_run_whole() -> None:
    with loaded(mode="block", chunk_size="auto") as engine:
        with pytest.raises(InvalidRequest, match="whole blocks run") as caught:
            engine.writer.generate(asked([1], chunk_size=4))
        assert caught.value.field == "chunk_size"


@pytest.mark.parametrize(
    ("settings", "effect"),
    [
        ({}, True),
        ({"chunk_size": "8"}, True),
        ({"batch_invariant": True}, True),
        ({"chunk_tiers": "1:8,4:2"}, True),
        ({"chunk_size": "7"}, False),
        ({"chunk_size": "2"}, False),
        ({"chunk_tiers": "1:7,4:2"}, False),
    ],
)
def test_chunks_reach_ahead_where_they_are_as_large_as_blocks(settings: dict[str, Any], effect: bool) -> None:
    with_blocks(EngineSettings(**settings), 8)
    asked_ahead = EngineSettings(ahead=True, **settings)
    if effect:
        assert with_blocks(asked_ahead, 8).ahead
        return
    with pytest.raises(InvalidRequest, match=r"has no effect: chunks of 8 rows, .* to 8, or leave it away") as caught:
        with_blocks(asked_ahead, 8)
    assert caught.value.field == "ahead"


def test_what_cannot_be_is_refused_before_any_work() -> None:
    with loaded(max_model_len=64) as engine:
        for request, field in [
            (asked([]), "prompt"),
            (asked([10**6]), "prompt"),
            (asked([1], n_best=3), "logprobs"),
            (asked([1], pinned=(1,)), "pinned"),
            (asked([1], chunk_size=9), "chunk_size"),
            (asked([1], confidence_threshold=2.0), "confidence_threshold"),
            (asked([1], denoising_steps=9), "denoising_steps"),
            (asked([1], entropy_bound=0.5), "entropy_bound"),
            (asked([1], entropy_bound=0.5, unmasking_strategy="sequential"), "entropy_bound"),
            (asked([1], denoising_steps=2, unmasking_strategy="entropy_bounded"), "denoising_steps"),
            (asked([1], confidence_threshold=0.5, unmasking_strategy="sequential"), "confidence_threshold"),
            (asked([1, True]), "prompt"),
        ]:
            with pytest.raises(InvalidRequest) as caught:
                engine.writer.generate(request)
            assert caught.value.field == field
        for request in (asked([1] * 65), asked([1] * 60, max_tokens=5)):
            with pytest.raises(RequestTooLong):
                engine.writer.generate(request)
        assert len(engine.writer.generate(asked([1] * 60, max_tokens=None, ignore_eos=True)).tokens) == 4
        assert engine.stats()["rounds_total"] > 0
    for settings, field in [({"chunk_size": "9"}, "chunk_size"), ({"max_round_tokens": 31}, "max_round_tokens")]:
        with pytest.raises(InvalidRequest) as caught:
            loaded(**settings)
        assert caught.value.field == field
    with pytest.raises(InvalidRequest, match="no blocks of masks"):
        tiny_engine("qwen3", mode="block")
