"""Blocks of a reply on their way, against a toy that scores what it sees."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.blocks import Blocks, Chunk, Mode

from ramet.denoise.noise import Noise
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import FloatArray, IntArray

MASK, VOCAB, EOS = 99, 50, 7
Seen = frozenset[tuple[int, int]]  # positions and tokens; masked ones hold MASK


def scored(position: int, seen: Seen) -> tuple[int, float]:
    """Token and confidence of a masked row: any function of all that it sees."""
    digest = blake2b(repr((position, sorted(seen))).encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little") % VOCAB, digest[4] / 255


@dataclass
class Model:
    """Pages as the chunks ask for them, and what rows see of them. Checks each chunk."""

    prompt: list[int]
    block: int
    path: list[tuple[int, int]] = field(default_factory=list)
    n_decoded: dict[int, int] = field(default_factory=dict)
    n_kept: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path = list(enumerate(self.prompt))[: len(self.prompt) // self.block * self.block]

    def run(self, chunk: Chunk) -> tuple[IntArray, FloatArray]:
        rows = list(zip(chunk.positions.tolist(), chunk.tokens.tolist(), strict=True))
        assert chunk.n_context == len(self.path)
        assert (np.diff(chunk.positions // self.block) >= 0).all()
        context = frozenset(self.path)
        assert len({at for at, _ in [*self.path, *rows]}) == len(self.path) + len(rows), "a position is run and kept"
        assert all(at // self.block <= rows[0][0] // self.block for at, _ in self.path)
        assert (chunk.tokens[chunk.read] == MASK).all()
        found = [scored(rows[i][0], context | self._seen(rows, rows[i][0])) for i in chunk.read]
        self.path += rows[: chunk.n_kept]
        for at, _ in rows[: chunk.n_kept]:
            self.n_kept[at] = self.n_kept.get(at, 0) + 1
            assert sum(p // self.block < at // self.block for p, _ in self.path) == at // self.block * self.block
        return np.array([t for t, _ in found], np.int32), np.array([c for _, c in found], np.float32)

    def _seen(self, rows: list[tuple[int, int]], position: int) -> Seen:
        return frozenset((at, token) for at, token in rows if at // self.block <= position // self.block)


def written(
    prompt: list[int],
    size: Callable[[int], int],
    *,
    block: int = 4,
    max_tokens: int = 11,
    stop_ids: tuple[int, ...] = (),
    mode: Mode = "chunk",
    ahead: bool = False,
    threshold: float = 0.6,
) -> tuple[list[int], Blocks, Model]:
    """A reply, with a chunk of size(n) in the n-th step."""
    blocks = Blocks(
        np.array(prompt, np.int32), block=block, mask=MASK, max_tokens=max_tokens, stop_ids=stop_ids, mode=mode
    )
    model, unmasking, told = Model(prompt, block), UnmaskPolicy(block=block, threshold=threshold), list[int]()
    while blocks.finish is None:
        wanted = size(blocks.n_steps)
        n_uncached = blocks.n_uncached(ahead=ahead and wanted == block)
        chunk = blocks.chunk(wanted, ahead=ahead and wanted == block)
        tail = sum(len(model.path) <= at < len(prompt) for at in chunk.positions) if blocks.n_steps == 0 else 0
        if mode == "chunk":
            assert len(chunk.tokens) == min(n_uncached, wanted + tail)
        tokens, confidence = model.run(chunk)
        passed = unmasking.passed(confidence, np.zeros_like(confidence), blocks.step)
        accepted = unmasking.accepted(passed, confidence, confidence) if len(passed) else passed
        for at in chunk.positions[chunk.read][accepted].tolist():
            model.n_decoded[at] = model.n_decoded.get(at, 0) + 1
        told += blocks.take(chunk, tokens, accepted)
        assert len(blocks.counts(chunk)) == len(chunk.read)
        assert blocks.n_steps < 500
    return told, blocks, model


def plain(prompt: list[int], *, block: int, max_tokens: int, stop_ids: tuple[int, ...], threshold: float) -> list[int]:
    """The loop of the models' own code: a block at a time, whole, until nothing is masked."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + max_tokens and not set(tokens[len(prompt) :]) & set(stop_ids):
        begin = len(tokens) // block * block
        live = tokens[begin:] + [None] * (begin + block - len(tokens))
        while None in live:
            seen = frozenset(enumerate(tokens[:begin])) | {
                (begin + i, MASK if t is None else t) for i, t in enumerate(live)
            }
            drawn = {i: scored(begin + i, seen) for i, t in enumerate(live) if t is None}
            sure = [i for i, (_, c) in drawn.items() if np.float32(c) > threshold]
            for i in sure or [max(drawn, key=lambda i: drawn[i][1])]:
                live[i] = drawn[i][0]
        tokens = tokens[:begin] + live
    reply = tokens[len(prompt) : len(prompt) + max_tokens]
    ends = [i for i, t in enumerate(reply) if t in stop_ids]
    return reply[: ends[0] + 1] if ends else reply


prompts = st.lists(st.one_of(st.integers(0, VOCAB - 1), st.just(MASK)), min_size=1, max_size=9)


@given(prompts, st.sampled_from([2, 4, 8]), st.integers(1, 20), st.sampled_from([(), (EOS,), tuple(range(0, 50, 4))]),
       st.floats(0.1, 0.99))  # fmt: skip
def test_whole_blocks_equal_a_plain_loop(
    prompt: list[int], block: int, max_tokens: int, stop_ids: tuple[int, ...], threshold: float
) -> None:
    options = {"block": block, "max_tokens": max_tokens, "stop_ids": stop_ids, "threshold": threshold}
    told, blocks, model = written(prompt, lambda n: block, mode="block", **options)
    assert told == plain(prompt, **options)
    assert blocks.finish == ("stop" if told[-1] in stop_ids else "length")
    assert all(n == 1 for n in model.n_kept.values())


@settings(max_examples=200)
@given(prompts, st.sampled_from([2, 3, 4, 8]), st.integers(1, 30), st.lists(st.integers(0, 6), min_size=1, max_size=8),
       st.booleans(), st.sampled_from([(), (EOS,), tuple(range(0, 50, 9))]), st.floats(0.1, 0.99))  # fmt: skip
def test_any_sizes_of_chunks(
    prompt: list[int],
    block: int,
    max_tokens: int,
    sizes: list[int],
    ahead: bool,
    stop_ids: tuple[int, ...],
    threshold: float,
) -> None:
    def size(n: int) -> int:
        return min(2 + sizes[n % len(sizes)], block)

    told, blocks, model = written(
        prompt, size, block=block, max_tokens=max_tokens, stop_ids=stop_ids, ahead=ahead, threshold=threshold
    )
    assert set(model.n_decoded.values()) == {1}, "a position is decoded once"
    assert set(model.n_kept.values()) <= {1}
    assert len(told) <= max_tokens
    assert MASK not in told
    ends = [i for i, token in enumerate(told) if token in stop_ids]
    assert ends == ([len(told) - 1] if blocks.finish == "stop" else [])
    assert blocks.finish == "stop" or len(told) == max_tokens
    known = dict(model.path)
    assert all(known[at] == token for at, token in enumerate([*prompt, *told]) if at in known)


@pytest.mark.parametrize("n_prompt", range(1, 10))
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_length_of_prompt(n_prompt: int, size: int) -> None:
    prompt = list(range(20, 20 + n_prompt))
    told, blocks, model = written(prompt, lambda n: size)
    assert len(told) == 11
    assert blocks.n_prefix == n_prompt // 4 * 4
    assert {at for at, _ in model.path} >= set(range(n_prompt))


def test_the_end_of_a_prompt_is_run_in_the_first_step() -> None:
    blocks = Blocks(np.arange(10, 17, dtype=np.int32), block=8, mask=MASK, max_tokens=9)
    chunk = blocks.chunk(2)
    assert chunk.tokens.tolist() == [10, 11, 12, 13, 14, 15, 16, MASK]
    assert (chunk.n_context, chunk.n_kept, chunk.read.tolist()) == (0, 7, [7])


def test_a_block_ends_beside_the_next_ones_first_masks() -> None:
    blocks = Blocks(np.zeros(4, np.int32), block=4, mask=MASK, max_tokens=20)
    take(blocks, blocks.chunk(4), [1, 2, 3, 4], [0, 1, 1, 1])
    chunk = blocks.chunk(4)
    assert (chunk.positions.tolist(), chunk.n_kept, chunk.n_context) == ([5, 6, 7, 4], 3, 4)
    assert take(blocks, chunk, [1], [1]) == [1, 2, 3, 4]
    assert blocks.n_uncached() == 1 + 4
    chunk = blocks.chunk(3)
    assert (chunk.positions.tolist(), chunk.n_kept, chunk.n_context) == ([4, 8, 9], 1, 7)
    assert chunk.tokens.tolist() == [1, MASK, MASK]
    take(blocks, chunk, [5, 6], [1, 0])
    assert blocks.n_context == 8


def test_of_more_pending_rows_than_a_chunk_holds_the_rest_waits() -> None:
    blocks = Blocks(np.zeros(0, np.int32), block=4, mask=MASK, max_tokens=20)
    take(blocks, blocks.chunk(4), [1, 2, 3, 4], [1, 1, 1, 1])
    for wanted in ([0, 1], [2, 3], [4, 5]):
        chunk = blocks.chunk(2)
        assert chunk.positions.tolist() == wanted
        take(blocks, chunk, [5] * len(chunk.read), [0] * len(chunk.read))


def test_rows_ahead_are_kept_once_their_block_is_the_first_undecided() -> None:
    blocks = Blocks(np.zeros(0, np.int32), block=4, mask=MASK, max_tokens=20)
    take(blocks, blocks.chunk(4), [1, 2, 3, 4], [1, 1, 0, 0])
    take(blocks, blocks.chunk(4), [3, 4], [0, 0])
    chunk = blocks.chunk(4, ahead=True)
    assert (chunk.positions.tolist(), chunk.n_kept, chunk.n_context) == ([2, 3, 4, 5], 0, 2)
    take(blocks, chunk, [3, 4, 5, 6], [1, 0, 1, 0])
    assert blocks.counts(chunk).tolist() == [True, True, False, False]
    chunk = blocks.chunk(4, ahead=True)
    assert (chunk.positions.tolist(), chunk.n_kept, chunk.read.tolist()) == ([2, 3, 4, 5], 1, [1, 3])
    assert chunk.tokens.tolist() == [3, MASK, 5, MASK]
    take(blocks, chunk, [4, 6], [0, 0])
    assert blocks.chunk(3).positions.tolist() == [3], "without, nothing of the next block is run"
    take(blocks, blocks.chunk(3), [4], [1])
    chunk = blocks.chunk(3)
    assert (chunk.positions.tolist(), chunk.n_kept) == ([3, 4, 5], 2)


def test_a_reply_ends_at_a_stop_with_nothing_masked_before_it() -> None:
    blocks = Blocks(np.array([EOS] * 5, np.int32), block=4, mask=MASK, max_tokens=20, stop_ids=[EOS])
    chunk = blocks.chunk(4)
    assert take(blocks, chunk, [1, EOS, 2], [0, 1, 1]) == []
    assert blocks.counts(chunk).tolist() == [True, True, False]
    chunk = blocks.chunk(4)
    assert chunk.positions.tolist() == [6, 5], "behind the end nothing is run"
    assert take(blocks, chunk, [3], [1]) == [3, EOS]
    assert blocks.finish == "stop"


@pytest.mark.parametrize(("at", "told"), [(0, [EOS]), (3, [1, 2, 3, EOS])])
def test_a_stop_first_and_last_in_a_block(at: int, told: list[int]) -> None:
    blocks = Blocks(np.zeros(4, np.int32), block=4, mask=MASK, max_tokens=20, stop_ids=[EOS])
    assert take(blocks, blocks.chunk(4), [*told, 5, 6, 8][:4], [1, 1, 1, 1]) == told
    assert blocks.finish == "stop"


def test_the_mask_is_never_accepted() -> None:
    blocks = Blocks(np.zeros(4, np.int32), block=4, mask=MASK, max_tokens=20)
    with pytest.raises(AssertionError, match="mask"):
        take(blocks, blocks.chunk(2), [1, MASK], [1, 1])


def test_numbers_are_of_a_position_and_a_step_of_its_block() -> None:
    noise = Noise(5)

    def drawn(sizes: list[int]) -> list[dict[int, float]]:
        blocks = Blocks(np.zeros(3, np.int32), block=4, mask=MASK, max_tokens=20)
        found = []
        for size in sizes:
            chunk = blocks.chunk(size)
            of = chunk.positions[chunk.read].tolist()
            found.append(dict(zip(of, blocks.uniforms(noise, chunk).tolist(), strict=True)))
            take(blocks, chunk, [1] * len(of), [1] * len(of))
        return found

    wide, narrow = drawn([4, 4, 4]), drawn([4, 2, 2])
    assert wide[0] == narrow[0]
    assert wide[1][4] == narrow[1][4] == float(noise.uniforms(1, 0, 4)[0])
    blocks = Blocks(np.zeros(8, np.int32), block=4, mask=MASK, max_tokens=20)
    for step in range(3):
        chunk = blocks.chunk(2)
        assert blocks.step == step
        np.testing.assert_array_equal(blocks.uniforms(noise, chunk), noise.uniforms(2, step, 4)[:2])
        take(blocks, chunk, [1, 1], [0, 0])
    assert len({value for each in wide for value in each.values()}) == sum(map(len, wide))


def take(blocks: Blocks, chunk: Chunk, tokens: list[int], accepted: list[int]) -> list[int]:
    return blocks.take(chunk, np.array(tokens, np.int32), np.array(accepted, np.bool_))
