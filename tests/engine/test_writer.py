"""Writer: whole replies of an engine, canvas by canvas, beside other work."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from numpy.random import default_rng
from oracles import diffusion_gemma as oracle

from ramet.engine.engine import Engine
from ramet.errors import InvalidRequest, RequestTooLong
from ramet.generation import Generation, GenerationRequest, Piece

SETTINGS = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 22, "batch_invariant": True}
PROMPT = tuple(default_rng(0).integers(0, 40, 30).tolist())


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine.load(oracle.saved("plain"), max_denoising_steps=4, **SETTINGS) as made:
        yield made


async def streamed(engine: Engine, request: GenerationRequest) -> list[Piece]:
    return [piece async for piece in engine.writer.stream(request)]


def asked(**more: object) -> GenerationRequest:
    return GenerationRequest(PROMPT, **{"max_tokens": 40, "ignore_eos": True} | more)  # type: ignore[arg-type]


def test_a_reply_whole_awaited_and_streamed(engine: Engine) -> None:
    whole = engine.writer.generate(asked(n_best=2))
    assert (len(whole.tokens), whole.finish, whole.n_canvases) == (40, "length", 3)
    assert whole.n_canvases <= whole.n_steps <= 12
    pieces = asyncio.run(streamed(engine, asked(n_best=2)))
    assert [len(piece.positions) for piece in pieces] == [16, 16, 8]
    again = asyncio.run(engine.writer.generate_async(asked(n_best=2)))
    joined = Generation.of(pieces, n_prompt=30, n_cached=again.n_cached)
    assert joined == again
    assert again.positions == whole.positions
    assert (whole.n_cached, again.n_cached) == (0, 16)


def test_replies_do_not_depend_on_their_neighbours(engine: Engine) -> None:
    requests = [asked(seed=seed, max_tokens=n) for seed, n in enumerate([1, 16, 17, 40, 5, 33])]
    alone = [engine.writer.generate(request).tokens for request in requests]

    async def together() -> Sequence[Generation]:
        return await asyncio.gather(*map(engine.writer.generate_async, [*requests, *requests]))

    assert [found.tokens for found in asyncio.run(together())] == alone * 2
    assert engine.writer.generate(asked(seed=0)).tokens != engine.writer.generate(asked(seed=1)).tokens


def test_without_prefix_caching_nothing_is_found_again() -> None:
    with Engine.load(oracle.saved("plain"), max_denoising_steps=2, prefix_caching=False, **SETTINGS) as engine:
        first, second = (engine.writer.generate(asked()) for _ in range(2))
        assert (first.n_cached, second.n_cached) == (0, 0)
        assert first.tokens == second.tokens


def test_whoever_leaves_frees_the_pages(engine: Engine) -> None:
    async def leave() -> None:
        stream = engine.writer.stream(asked(max_tokens=400))
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]

    asyncio.run(leave())
    assert not engine.stats()["open_requests"]
    assert len(engine.writer.generate(asked()).tokens) == 40
    assert engine.stats()["pages_free"] + engine.stats()["pages_indexed"] == engine.stats()["pages"]


def test_errors_come_before_any_work(engine: Engine) -> None:
    rounds = engine.stats()["rounds_total"]
    with pytest.raises(InvalidRequest) as caught:
        engine.writer.generate(asked(canvas_length=17))
    assert caught.value.field == "canvas_length"
    with pytest.raises(RequestTooLong, match="shorten the reply") as long:
        asyncio.run(streamed(engine, asked(max_tokens=2019)))
    assert long.value.field == "max_tokens"
    with pytest.raises(RequestTooLong, match="shorten the prompt") as long:
        engine.writer.generate(GenerationRequest(PROMPT * 100))
    assert long.value.field == "prompt"
    assert engine.stats()["rounds_total"] == rounds


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"max_request_tokens": 60}, "max_request_tokens"), ({"max_round_tokens": 64, "cache_bytes": 1 << 16}, "pages")],
)
def test_a_reply_that_could_not_be_finished_is_not_begun(settings: dict[str, int], message: str) -> None:
    with Engine.load(oracle.saved("plain"), max_denoising_steps=1, **SETTINGS | settings) as engine:
        with pytest.raises(RequestTooLong, match=message):
            engine.writer.generate(asked(max_tokens=100))
        assert engine.stats()["rounds_total"] == 0
        assert len(engine.writer.generate(asked(max_tokens=16)).tokens) == 16


def test_whoever_goes_with_the_last_piece_cancels_nothing(engine: Engine) -> None:
    async def first_of(n: int) -> None:
        for seed in range(n):
            async with aclosing(engine.writer.stream(asked(max_tokens=16, seed=seed))) as pieces:
                assert (await anext(pieces)).finish == "length"

    before = engine.stats()["cancelled_total"]
    asyncio.run(first_of(20))
    assert engine.stats()["cancelled_total"] == before


@pytest.mark.parametrize(
    ("more", "field"),
    [({"prompt": (5,) * 2049}, "prompt"), ({"seed_canvas": (5,) * 100_000}, "seed_canvas"),
     ({"seed_canvas": (5,) * 16, "pinned": (3,) * 17}, "pinned")],
)  # fmt: skip
def test_reads_with_more_than_there_is_room_for(engine: Engine, more: dict[str, Any], field: str) -> None:
    request = GenerationRequest(**{"prompt": PROMPT, "read_only": True} | more)
    with pytest.raises(RequestTooLong if field == "prompt" else InvalidRequest) as caught:
        engine.writer.generate(request)
    assert caught.value.field == field


def test_in_two_steps_the_first_step_alone_waits_for_the_prompt() -> None:
    settings = SETTINGS | {"max_denoising_steps": 4, "single_pass_reads": False}
    with Engine.load(oracle.saved("plain"), **settings) as engine:
        reply = engine.writer.generate(asked(max_tokens=16))
        assert engine.stats()["rounds_total"] == 1 + reply.n_steps


def test_an_open_length_ends_where_a_further_canvas_has_no_room() -> None:
    with Engine.load(oracle.saved("plain"), max_denoising_steps=1, max_model_len=50, **SETTINGS) as engine:
        assert len(engine.writer.generate(asked(max_tokens=None)).tokens) == 16
        assert len(engine.writer.generate(asked(read_only=True)).tokens) == 16


@pytest.mark.parametrize(
    ("settings", "field", "message"),
    [({"canvas_length": 17}, "canvas_length", "16 rows"),
     ({"max_round_tokens": 31}, "max_round_tokens", "at least 32"),
     ({"max_model_len": 2049}, "max_model_len", "2048 positions")],
)  # fmt: skip
def test_limits_are_those_of_the_model(settings: dict[str, int], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        Engine.load(oracle.saved("plain"), **SETTINGS | settings)
    assert caught.value.field == field
