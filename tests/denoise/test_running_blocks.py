"""Many replies in RunningBlocks, plain and compiled: each is what it is alone, position by position, in Blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.blocks import Blocks, Chunk, Mode

from ramet.denoise.draws import Draws
from ramet.denoise.noise import Noise
from ramet.denoise.running import FINISHES, Beginning, Chunks, Emitted
from ramet.denoise.running_blocks import RunningBlocks
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.compiled_blocks import CompiledBlocks
from ramet.ops.native.loader import library
from ramet.tree import BoolArray, FloatArray, IntArray

TINY = np.finfo(np.float32).tiny
LIBRARY = library()
MASK, VOCAB = 11, 12  # the mask's id is among those that prompts have

Made = Callable[..., RunningBlocks]
Outcome = tuple[IntArray, FloatArray, FloatArray]  # of rows that are read: tokens, confidence, entropy


@dataclass
class Reply:
    """One in RunningBlocks at `place`, and alone in Blocks."""

    prompt: IntArray
    n_tokens: int
    stop_ids: frozenset[int]
    unmasking: UnmaskPolicy
    draws: Draws
    alone: Blocks
    place: int = -1
    emitted: list[int] = field(default_factory=list)
    logprobs: dict[int, float] = field(default_factory=dict)  # by position
    streak: tuple[int, int] = (0, 0)  # a block, and rows of it that passed in a row

    def beginning(self) -> Beginning:
        start, n = self.alone.n_prefix, len(self.prompt)
        known = np.ones(n - start, np.bool_)
        end = n + self.n_tokens
        return Beginning(start, self.prompt[start:], known, n, n, end, self.stop_ids, self.unmasking, self.draws)


@dataclass(frozen=True)
class Asks:
    """What a reply asks for, as drawn."""

    prompt: list[int]
    n_tokens: int
    stop_ids: frozenset[int]
    temperature: float
    strategy: str
    steps: int | None
    threshold: float

    def reply(self, block: int, mode: Mode) -> Reply:
        prompt = np.array(self.prompt, np.int32)
        steps = None if self.steps is None else min(self.steps, block)
        unmasking = UnmaskPolicy(block=block, strategy=self.strategy, threshold=self.threshold, steps=steps)
        draws = Draws(self.temperature, len(prompt), 0.5, Noise(len(prompt)))
        alone = Blocks(prompt, block=block, mask=MASK, max_tokens=self.n_tokens, stop_ids=self.stop_ids, mode=mode)
        return Reply(prompt, self.n_tokens, self.stop_ids, unmasking, draws, alone)


MADE: dict[str, Made] = {"plain": RunningBlocks}
if LIBRARY is not None:
    MADE["compiled"] = partial(CompiledBlocks, LIBRARY)
each_kind = pytest.mark.parametrize("made", MADE.values(), ids=MADE)


asks = st.builds(
    Asks,
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=17),
    n_tokens=st.integers(1, 40),
    stop_ids=st.sampled_from([frozenset(), frozenset({3}), frozenset({3, 5, 7})]),
    temperature=st.sampled_from([0.0, 0.0, 1.5]),
    strategy=st.sampled_from(
        ["low_confidence_dynamic"] * 3 + ["low_confidence_static", "sequential", "entropy_bounded"]
    ),
    steps=st.sampled_from([None, None, 1, 2, 3]),
    threshold=st.sampled_from([0.1, 0.5, 0.5, 0.9]),
)


@each_kind
@settings(max_examples=300, deadline=None)
@given(
    many=st.lists(asks, min_size=1, max_size=6),
    block=st.sampled_from([2, 3, 4, 8]),
    mode=st.sampled_from(["chunk", "chunk", "chunk", "block"]),
    ahead=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_each_is_as_if_alone(made: Made, many: list[Asks], block: int, mode: Mode, ahead: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    live = made(block, MASK, mode, ahead)
    waiting, running = [each.reply(block, mode) for each in many], list[Reply]()
    for _ in range(3000):
        while waiting and (not running or rng.random() < 0.3):
            running.append(waiting.pop())
            running[-1].place = live.add(running[-1].beginning())
        for reply in running:
            if rng.random() < 0.05:
                again(live, reply)
        if rng.random() < 0.02 and running:  # cancelled
            live.drop(running.pop(0).place)
        stepped = [reply for reply in running if rng.random() < 0.7]
        if stepped:
            step(live, stepped, rng, ahead=ahead and mode == "chunk")
        running = [reply for reply in running if reply.alone.finish is None]
        if not running and not waiting:
            return
    raise AssertionError("replies do not end")


@each_kind
def test_an_end_behind_max_tokens_is_known_again(made: Made) -> None:
    """Rows behind it stay away when a reply begins again, as they did before."""
    live = made(8, MASK, "chunk", False)
    asked = Asks([0, 0, 0], 1, frozenset({3}), 0.0, "low_confidence_dynamic", None, 0.5)
    reply = asked.reply(8, "chunk")
    reply.place = live.add(reply.beginning())
    places = np.array([reply.place], np.int32)
    chunks = live.chunks(places, np.array([8], np.int32))
    sure, tokens = np.zeros(len(chunks.reads), np.float32), np.ones(len(chunks.reads), np.int32)
    sure[-2], tokens[-2] = 1.0, 3  # position 6
    live.take(chunks, tokens, sure, sure)
    before = live.uncached(places)[0].tolist()
    beginning = live.beginning(reply.place)
    live.drop(reply.place)
    again = np.array([live.add(beginning)], np.int32)
    assert live.uncached(again)[0].tolist() == [7]
    assert before[0] <= 7


@each_kind
@pytest.mark.parametrize("mode", ["chunk", "block"])
@pytest.mark.parametrize("ahead", [False, True])
def test_every_length_of_prompt(made: Made, mode: Mode, ahead: bool) -> None:
    """Of nothing but the mask's id: which rows are masked is no matter of ids."""
    block, rng = 4, np.random.default_rng(0)
    live = made(block, MASK, mode, ahead)
    every = [Asks([MASK] * n, 2 * block + 1, frozenset(), 0, "low_confidence_dynamic", None, 0.7) for n in range(1, 10)]
    running = [each.reply(block, mode) for each in every]
    for reply in running:
        reply.place = live.add(reply.beginning())
    while running:
        step(live, running, rng, ahead=ahead and mode == "chunk")
        running = [reply for reply in running if reply.alone.finish is None]


def again(live: RunningBlocks, reply: Reply) -> None:
    beginning = live.beginning(reply.place)
    live.drop(reply.place)
    reply.place = live.add(beginning)
    reply.alone.rewind()
    reply.streak = 0, 0
    start = reply.alone.n_context
    assert beginning.start == start
    known = np.concatenate((reply.prompt, reply.emitted))
    assert beginning.emitted == len(known)
    assert beginning.known[: len(known) - start].all()
    np.testing.assert_array_equal(beginning.tokens[: len(known) - start], known[start:])


def step(live: RunningBlocks, replies: list[Reply], rng: np.random.Generator, *, ahead: bool) -> None:
    block = replies[0].unmasking.block
    places = np.array([reply.place for reply in replies], np.int32)
    sizes = rng.integers(2, min(live.largest, block + 2) + 1, len(replies)).astype(np.int32)
    uncached, _, whole = live.uncached(places)
    wanted = [reply.alone.n_uncached(ahead=ahead) for reply in replies]
    assert whole.tolist() == [reply.alone.n_whole() for reply in replies]
    chunks = live.chunks(places, sizes)
    alone = [
        reply.alone.chunk(size, ahead=ahead and size == block)
        for reply, size in zip(replies, sizes.tolist(), strict=True)
    ]
    assert (uncached <= wanted).all()
    assert ((uncached == wanted) | (uncached >= block)).all()
    assert (uncached[sizes == block] == chunks.n_rows[sizes == block]).all()
    assert (whole[sizes > block] == chunks.n_rows[sizes > block]).all()
    same_rows(chunks, alone)
    same_sampling(chunks, replies, alone)
    outcome = drawn(len(chunks.reads), rng)
    taken = live.take(chunks, *outcome)
    same_outcome(live, places, taken, replies, alone, outcome)
    for reply in replies:
        if reply.alone.finish is not None:
            live.drop(reply.place)


def drawn(n: int, rng: np.random.Generator) -> Outcome:
    """Confidence in steps of a tenth: some are equal, others at a threshold."""
    tokens = rng.integers(0, MASK, n).astype(np.int32)
    confidence = (rng.integers(0, 11, n) / 10).astype(np.float32)
    return tokens, confidence, rng.random(n, np.float32)


def same_rows(chunks: Chunks, alone: list[Chunk]) -> None:
    numbers = np.concatenate([chunk.positions // chunk.block for chunk in alone])
    assert chunks.n_rows.tolist() == [len(chunk.tokens) for chunk in alone]
    assert chunks.n_kept.tolist() == [chunk.n_kept for chunk in alone]
    assert chunks.n_reads.tolist() == [len(chunk.read) for chunk in alone]
    assert chunks.tokens.tolist() == np.concatenate([chunk.tokens for chunk in alone]).tolist()
    assert chunks.positions.tolist() == np.concatenate([chunk.positions for chunk in alone]).tolist()
    starts = np.cumsum(chunks.n_rows) - chunks.n_rows
    reads = np.concatenate([chunk.read + start for chunk, start in zip(alone, starts, strict=True)])
    assert chunks.reads.tolist() == reads.tolist()
    owners = np.repeat(np.arange(len(alone)), chunks.n_rows)
    runs = np.flatnonzero(np.append(True, (np.diff(numbers) != 0) | (np.diff(owners) != 0)))
    assert chunks.lengths.tolist() == np.diff(runs, append=len(numbers)).tolist()
    assert chunks.n_segments.tolist() == np.bincount(owners[runs]).tolist()
    arrays = (chunks.n_rows, chunks.n_kept, chunks.n_segments, chunks.n_reads, chunks.lengths, chunks.tokens)
    assert all(each.dtype == np.int32 for each in (*arrays, chunks.positions, chunks.reads))


def same_sampling(chunks: Chunks, replies: list[Reply], alone: list[Chunk]) -> None:
    sampling, owners = chunks.sampling, np.repeat(np.arange(len(replies)), chunks.n_reads)
    temperatures = np.array([reply.draws.temperature for reply in replies], np.float32)
    assert sampling.temperatures.tolist() == temperatures[owners].tolist()
    assert sampling.top_k.tolist() == [replies[i].draws.top_k for i in owners]
    assert sampling.top_p.tolist() == [0.5] * len(owners)
    for i, (reply, chunk) in enumerate(zip(replies, alone, strict=True)):
        hot = reply.alone.uniforms(reply.draws.noise, chunk) * np.float32(reply.draws.temperature > 0)
        assert sampling.uniforms[owners == i].tolist() == hot.tolist()


def same_outcome(
    live: RunningBlocks, places: IntArray, taken: Emitted, replies: list[Reply], alone: list[Chunk], outcome: Outcome
) -> None:
    ends, told = np.cumsum([len(chunk.read) for chunk in alone]), np.cumsum(taken.n_emitted)
    passed: dict[UnmaskPolicy, list[tuple[list[bool], int]]] = {}
    groups = live.group(places).tolist()
    for i, (reply, chunk) in enumerate(zip(replies, alone, strict=True)):
        of = slice(ends[i] - len(chunk.read), ends[i])
        tokens, confidence, entropy = (each[of] for each in outcome)
        sure, kept = settled(reply, confidence, entropy)
        expected = reply.alone.take(chunk, tokens, kept)
        found = slice(told[i] - taken.n_emitted[i], told[i])
        assert taken.tokens[found].tolist() == expected
        positions = chunk.positions[chunk.read][kept].tolist()
        reply.logprobs.update(zip(positions, np.log(np.maximum(confidence[kept], TINY)).tolist(), strict=True))
        begin = len(reply.prompt) + len(reply.emitted)
        logprobs = [reply.logprobs[at] for at in range(begin, begin + len(expected))]
        np.testing.assert_allclose(taken.logprobs[found], logprobs, rtol=1e-6)
        assert FINISHES[taken.finish[i]] == reply.alone.finish
        reply.emitted += expected
        assert live.groups[groups[i]] == reply.unmasking
        counts = reply.alone.counts(chunk)
        if counts.any():
            block = int(chunk.positions[chunk.read[counts][0]]) // chunk.block
            streak = reply.streak[1] if reply.streak[0] == block else 0
            passed.setdefault(reply.unmasking, []).append((sure[counts].tolist(), streak))
            reply.streak = block, streak + int(counts.sum()) if sure[counts].all() else 0
    found_passed = {
        unmasking: [
            (rows.tolist(), streak)
            for rows, streak in zip(np.split(some.rows, np.cumsum(some.sizes)[:-1]), some.streaks.tolist(), strict=True)
        ]
        for unmasking, some in taken.passed().items()
    }
    assert found_passed == passed


def settled(reply: Reply, confidence: FloatArray, entropy: FloatArray) -> tuple[BoolArray, BoolArray]:
    if not len(confidence):
        return np.zeros((2, 0), np.bool_)
    sure = reply.unmasking.passed(confidence, entropy, reply.alone.step)
    return sure, reply.unmasking.accepted(sure, confidence, entropy)


def one(n_prompt: int, block: int = 4, **kwargs: object) -> Beginning:
    options = {
        "stop_ids": frozenset(),
        "unmasking": UnmaskPolicy(block=block),
        "draws": Draws(0, 0, 1, Noise(1)),
        "end": 99,
    }
    start = n_prompt // block * block
    tokens = np.arange(start, n_prompt, dtype=np.int32)
    known = np.ones(len(tokens), np.bool_)
    return Beginning(start, tokens, known, n_prompt=n_prompt, emitted=n_prompt, **{**options, **kwargs})


def asked(live: RunningBlocks, place: int, size: int) -> Chunks:
    return live.chunks(np.array([place], np.int32), np.array([size], np.int32))


def took(live: RunningBlocks, chunks: Chunks, tokens: list[int], confidence: list[float]) -> Emitted:
    sure = np.array(confidence, np.float32)
    return live.take(chunks, np.array(tokens, np.int32), sure, np.zeros_like(sure))


@each_kind
def test_logprobs_are_told_as_they_were_drawn_also_by_a_reply_that_goes_on(made: Made) -> None:
    live = made(4, MASK)
    place = live.add(one(4))
    assert took(live, asked(live, place, 4), [1, 2, 3, 4], [0.1, 0.95, 0.2, 0.99]).tokens.tolist() == []
    beginning = live.beginning(place)
    assert (beginning.start, beginning.known.tolist()) == (4, [False, True, False, True])
    other = made(4, MASK)
    place = other.add(beginning)
    chunks = asked(other, place, 4)
    assert (chunks.positions.tolist(), chunks.n_kept.tolist()) == ([5, 7, 4, 6], [2])
    taken = took(other, chunks, [8, 9], [0.92, 0.5])
    assert taken.tokens.tolist() == [8, 2]
    np.testing.assert_allclose(taken.logprobs, np.log([0.92, 0.95]), rtol=1e-6)


@each_kind
def test_a_place_is_used_again_and_nothing_of_before_is_left(made: Made) -> None:
    live = made(4, MASK)
    first = [live.add(one(n, stop_ids=frozenset({3, 4, 5, 6}))) for n in range(1, 20)]
    assert len(set(first)) == 19
    for place in first:
        chunks = asked(live, place, 4)
        took(live, chunks, [1] * len(chunks.reads), [1.0] * len(chunks.reads))
        live.drop(place)
    second = [live.add(one(n)) for n in range(1, 20)]
    assert set(second) == set(first)
    for n, place in zip(range(1, 20), second, strict=True):
        chunks = asked(live, place, 2)
        assert chunks.positions[0] == n // 4 * 4
        assert chunks.n_kept[0] == n % 4
        assert took(live, chunks, [3] * len(chunks.reads), [1.0] * len(chunks.reads)).finish.tolist() == [0]


@each_kind
def test_the_mask_is_never_accepted(made: Made) -> None:
    live = made(4, MASK)
    chunks = asked(live, live.add(one(4)), 2)
    with pytest.raises(AssertionError, match="mask"):
        took(live, chunks, [1, MASK], [1, 1])
