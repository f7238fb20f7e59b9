"""Data: generated conversations, masked and packed into rows of one length.

Block diffusion learns from two copies of a reply at once: a clean one, which later blocks look back at, and noisy ones,
whose masked places are to be filled in. A row of a noisy copy sees the clean blocks before its own, and of its own copy
its own block. Of a block's rows it need not see all: in the elastic decoding that this model is made for, a row whose
token is known is run once, at a time when others were not known yet, and masks right of a chunk are not run at all.
So every row has a stage, and sees the rows of its block whose stages are not above its own; of half of the blocks all
stages are alike, which is the plain way.

Blocks of 32 masks teach little about how to look things up in a prompt, until that is known. So training begins with
smaller ones: with blocks of one row each mask has everything before it to go by, as in next-token learning.

A decision's reply is a label and no more, one row among hundreds. So a reply weighs as much as a block of rows would,
if it is shorter, and most of its noisy copies are masks alone, which is what decisions are read from.
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Full
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ramet.tree import IntArray
from training import drills
from training.tasks.all import TASKS
from training.tasks.example import Example, Make, examples
from training.vocabulary import END, MASK, START, STOP, SYSTEMS, id_of

BLOCK = 32
SHARES = {
    "arithmetic": 0.18, "extraction": 0.2, "rewriting": 0.14, "tickets": 0.12, "decisions": 0.3, "letters": 0.06,
}  # fmt: skip
# Of blocks that are not whole. Texts are learnt soon there, and letters late.
EARLY = {
    "arithmetic": 0.12, "extraction": 0.15, "rewriting": 0.1, "tickets": 0.08, "decisions": 0.28, "letters": 0.27,
}  # fmt: skip
TASK_NAMES = tuple(SHARES)
_MAKERS: Mapping[str, Make] = {**TASKS, "letters": drills.make}
_CHUNK = 256  # examples that are encoded in one call
_BEHIND = 9  # the stage of masks that a chunk does not reach


@dataclass(frozen=True, slots=True)
class Document:
    """A conversation's ids, padded to whole blocks; its last reply begins at n_prompt and ends before n_said. task: its
    number in TASK_NAMES."""

    tokens: IntArray
    n_prompt: int
    n_said: int
    task: int = 0

    @property
    def n_clean(self) -> int:
        return len(self.tokens)

    @property
    def is_short(self) -> bool:
        """Whether its reply is no longer than a fourth of a block."""
        return self.n_said - self.n_prompt <= BLOCK // 4

    @property
    def first(self) -> int:
        """Row of the block that the reply begins in."""
        return self.n_prompt // BLOCK * BLOCK


@dataclass(frozen=True, slots=True)
class Packs:
    """N rows of T tokens: [N, T] each, and [N, R] of the rows that learn. copies: 0 is clean. documents: -1 is padding.
    blocks: number of the block that a position lies in. rows: places in T. weights: 0 where there is nothing to learn.
    tasks: numbers in TASK_NAMES of what is said in a reply, without what stands behind its end, which is -1.
    """

    tokens: Any
    positions: Any
    blocks: Any
    documents: Any
    copies: Any
    stages: Any
    rows: Any
    targets: Any
    weights: Any
    tasks: Any


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of packs: so many rows of so many tokens, of which so many learn. blocks: sizes of a document's blocks, each as
    likely as it is named often. shares: chances of the tasks that documents are drawn from."""

    n_rows: int
    n_tokens: int
    n_learn: int
    blocks: tuple[int, ...] = (BLOCK,)
    shares: Mapping[str, float] = field(default_factory=lambda: SHARES)


class Source:
    """Documents without an end, of tasks by their shares."""

    def __init__(self, tokenizer: Tokenizer, seed: int, max_tokens: int, shares: Mapping[str, float] = SHARES) -> None:
        self._tokenizer, self._max_tokens, self._shares = tokenizer, max_tokens, shares
        self._rng = random.Random(f"{seed} documents")  # noqa: S311
        self._tasks = {
            name: examples(make, self._rng.getrandbits(48), held_out=False)
            for name, make in _MAKERS.items()
            if name in shares
        }
        self._end, self._stop = id_of(tokenizer, END), id_of(tokenizer, STOP)

    def __iter__(self) -> Iterator[Document]:
        while True:
            drawn = [self._drawn() for _ in range(_CHUNK)]
            prompts = self._tokenizer.encode_batch_fast([prompt for prompt, _, _ in drawn], add_special_tokens=False)
            replies = self._tokenizer.encode_batch_fast([reply for _, reply, _ in drawn], add_special_tokens=False)
            for prompt, reply, (_, _, task) in zip(prompts, replies, drawn, strict=True):
                document = self._document(prompt.ids, reply.ids, task)
                if document.n_clean + document.n_clean - document.first <= self._max_tokens:
                    yield document

    def _drawn(self) -> tuple[str, str, int]:
        """A prompt, its reply, and the task's number. At times with a system's message, or behind another question and
        its answer."""
        example = self._example()
        turns = [(other.prompt, other.answer) for other in [self._example()] if self._rng.random() < 0.04]
        system = self._rng.choice(SYSTEMS) if self._rng.random() < 0.1 else ""
        return rendered(example.prompt, turns, system), example.answer, TASK_NAMES.index(example.task)

    def _example(self) -> Example:
        (name,) = self._rng.choices(list(self._tasks), [self._shares[name] for name in self._tasks])
        return next(self._tasks[name])

    def _document(self, prompt: Sequence[int], reply: Sequence[int], task: int) -> Document:
        ids = [*prompt, *reply, self._stop]
        return Document(np.array(ids + [self._end] * (-len(ids) % BLOCK), np.int32), len(prompt), len(ids), task)


def rendered(content: str, turns: Sequence[tuple[str, str]] = (), system: str = "") -> str:
    """A conversation up to where the reply begins, as the chat template writes it."""
    messages = [("system", system)] if system else []
    for prompt, reply in turns:
        messages += [("user", prompt), ("assistant", reply)]
    messages.append(("user", content))
    return "".join(f"{START}{role}\n{text}{STOP}\n" for role, text in messages) + f"{START}assistant\n"


class Packer:
    """Packs of documents, drawn by one generator of random numbers."""

    def __init__(self, tokenizer: Tokenizer, sizes: Sizes, seed: int) -> None:
        self._sizes, self._noise = sizes, Noise(id_of(tokenizer, MASK), seed)
        self._documents = iter(Source(tokenizer, seed, sizes.n_tokens, sizes.shares))
        self._rng = random.Random(f"{seed} blocks")  # noqa: S311
        self._waiting: list[tuple[Document, int]] = []

    def packs(self) -> Packs:
        rows = [self._row() for _ in range(self._sizes.n_rows)]
        tokens, positions, documents, copies, prompts, ends, sizes, tasks = (
            np.stack(each) for each in zip(*rows, strict=True)
        )
        noisy, stages, masked = self._noise(tokens, positions, copies, prompts, sizes, ends - prompts <= BLOCK // 4)
        learn, weights = _chosen(_weights(positions, prompts, ends) * masked, self._sizes.n_learn)
        said = np.where(positions < ends, tasks, -1)
        return Packs(
            tokens=noisy, positions=positions, blocks=positions // sizes, documents=documents, copies=copies,
            stages=stages, rows=learn.astype(np.int16), targets=np.take_along_axis(tokens, learn, 1), weights=weights,
            tasks=np.take_along_axis(said, learn, 1),
        )  # fmt: skip

    def _row(self) -> list[Any]:
        """[T] each: tokens, positions, documents, copies; of the document where its reply begins and ends, the size of
        its blocks, and its task."""
        left, parts = self._sizes.n_tokens, list[tuple[Any, ...]]()
        for number, (document, size) in enumerate(self._fitting()):
            n, first = document.n_clean, document.first
            n_copies = _copies(document, size, left)
            at = np.concatenate([np.arange(n), *[np.arange(first, n)] * n_copies])
            copies = np.repeat(np.arange(n_copies + 1), [n, *[n - first] * n_copies])
            same = (number, document.n_prompt, document.n_said, size, document.task)
            whose, *rest = (np.full(len(at), value) for value in same)
            parts.append((document.tokens[at], at, whose, copies, *rest))
            left -= len(at)
        parts.append(tuple(np.full(left, value) for value in (0, 0, -1, 0, 0, 0, 1, -1)))
        return [np.concatenate(each).astype(np.int16) for each in zip(*parts, strict=True)]

    def _fitting(self) -> list[tuple[Document, int]]:
        """Documents that fill a row well, and the size of each one's blocks: the largest that fits comes next."""
        while len(self._waiting) < 48:
            self._waiting.append((next(self._documents), self._rng.choice(self._sizes.blocks)))
        found = [self._waiting.pop(0)]  # nobody waits for ever
        left = self._sizes.n_tokens - _need(*found[0], self._sizes.n_tokens)
        while left >= 2 * BLOCK:
            fitting = [at for at, each in enumerate(self._waiting) if _need(*each, left) <= left]
            if not fitting:
                break
            best = max(fitting[:12], key=lambda at: _need(*self._waiting[at], left))
            found.append(self._waiting.pop(best))
            left -= _need(*found[-1], left)
        return found


class Noise:
    """Masks and stages, of all blocks of many rows at once: parts of a row begin on the grid of blocks."""

    def __init__(self, mask: int, seed: int) -> None:
        self._mask, self._rng = mask, np.random.default_rng(seed)

    def __call__(
        self, tokens: Any, positions: Any, copies: Any, prompts: Any, sizes: Any, short: Any
    ) -> tuple[Any, Any, Any]:
        """Tokens with masks, stages, and what is masked; [N, T] each. short: which rows are of short replies."""
        shape, blocks = tokens.shape, (-1, BLOCK)
        said, noisy = (positions >= prompts).reshape(blocks), (copies > 0).reshape(blocks)
        size = sizes.reshape(blocks)[:, :1]
        whole = self._masked(said, short.reshape(blocks).any(1, keepdims=True))
        masked = np.where(size == BLOCK, whole, self._few(size)) & said & noisy
        stages = np.where(said & (size == BLOCK), self._stages(masked), 0)
        given = np.where(masked, self._mask, tokens.reshape(blocks))
        return given.astype(np.int16).reshape(shape), stages.astype(np.int16).reshape(shape), masked.reshape(shape)

    def _few(self, size: Any) -> Any:
        """Of smaller blocks: any of each one's rows; all where they are single."""
        rng, n = self._rng, len(size)
        number = np.arange(BLOCK) // size
        share = np.take_along_axis(np.maximum(rng.random((n, BLOCK)), 0.2), number, 1)
        return rng.random((n, BLOCK)) < np.where(size == 1, 1, share)

    def _masked(self, said: Any, short: Any) -> Any:
        """Of a block of a reply: all, which is the most frequent where it is short; any; or few on the left and most on
        the right, as they come to be when a reply is written."""
        rng, n = self._rng, len(said)
        kind, share, whole = rng.random((n, 1)), rng.random((n, 1)), rng.random((n, 1))
        begin = BLOCK - said.sum(1, keepdims=True)
        cut = begin + rng.random((n, 1)) * (BLOCK - begin)
        left = rng.choice((0.0, 0.0, 0.2), (n, 1))
        shares = np.where(np.arange(BLOCK) < cut, left, rng.uniform(0.4, 1, (n, 1)))
        chance = np.where(whole < np.where(short, 0.7, 0.2), 1.0, np.where(kind < 0.5, shares, share))
        masked = rng.random(said.shape) < chance
        np.put_along_axis(masked, (begin + rng.random((n, 1)) * (BLOCK - begin)).astype(int) % BLOCK, True, 1)
        return masked

    def _stages(self, masked: Any) -> Any:
        """Known rows one after the other, roughly from left to right, the last of them beside the masks that a chunk
        reaches; or, of half of the blocks, all alike."""
        rng, n = self._rng, len(masked)
        spread, n_stages = rng.choice((2.0, 8.0, 20.0), (n, 1)), rng.integers(2, 9, (n, 1))
        late = (np.arange(BLOCK) + rng.normal(0, 1, masked.shape) * spread) * n_stages / BLOCK
        when = 1 + np.clip(late, 0, n_stages - 1).astype(int)
        last = np.where(masked, 0, when).max(1, keepdims=True)
        reached = np.cumsum(masked, 1) <= rng.integers(1, BLOCK + 1, (n, 1))
        stages = np.where(masked, np.where(reached, last, _BEHIND), when)
        return np.where(rng.random((n, 1)) < 0.5, 0, stages)


def _weights(positions: Any, prompts: Any, ends: Any) -> Any:
    """What each row weighs where it learns: those of a reply of less than a block together as much as a block."""
    inside = (positions >= prompts) & (positions < ends)
    return np.where(inside, np.maximum(1, BLOCK / np.maximum(ends - prompts, 1)), 1).astype(np.float32)


def _chosen(weights: Any, most: int) -> tuple[Any, Any]:
    """Places of rows that weigh anything [N, most], the heaviest and then the first where a row has more of them, and
    their weights."""
    order = np.argsort(-weights, axis=1, kind="stable")[:, :most]
    return order, np.take_along_axis(weights, order, 1)


def _copies(document: Document, size: int, left: int) -> int:
    """How many noisy ones a document has where so many tokens are left: two if they fit and are unlike."""
    both = 3 * document.n_clean - 2 * document.first
    return 2 if size > 1 and not document.is_short and both <= left else 1


def _need(document: Document, size: int, left: int) -> int:
    """Tokens that a document takes where so many are left."""
    return document.n_clean + _copies(document, size, left) * (document.n_clean - document.first)


class Feed:
    """Packs of several kinds, made by processes of their own, each kind in an order that does not depend on their
    speed. They are forked: to be made before torch is imported, and no text encoded yet."""

    def __init__(self, tokenizer: str, kinds: Sequence[Sizes], seed: int, n_workers: int, ahead: int = 8) -> None:
        context = multiprocessing.get_context("fork")
        self._queues = [[context.Queue(ahead) for _ in kinds] for _ in range(n_workers)]
        self._workers = [
            context.Process(target=_work, args=(tokenizer, kinds, seed * 1000 + 7 + i, queues), daemon=True)
            for i, queues in enumerate(self._queues)
        ]
        for worker in self._workers:
            worker.start()
        self._turns = [itertools.cycle(queues) for queues in zip(*self._queues, strict=True)]

    def next(self, kind: int) -> Packs:
        found: Packs = next(self._turns[kind]).get(timeout=120)
        return found

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()


def _work(tokenizer: str, kinds: Sequence[Sizes], seed: int, queues: Sequence[Any]) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    packers = [Packer(Tokenizer.from_file(tokenizer), sizes, seed + 500 * i) for i, sizes in enumerate(kinds)]
    ready: list[Packs | None] = [None for _ in kinds]
    parent = os.getppid()
    while os.getppid() == parent:  # nobody is left behind
        for kind, (packer, queue) in enumerate(zip(packers, queues, strict=True)):
            ready[kind] = ready[kind] or packer.packs()
            with contextlib.suppress(Full):
                queue.put(ready[kind], timeout=0.02)
                ready[kind] = None
