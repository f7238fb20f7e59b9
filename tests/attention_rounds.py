"""Rounds for the tests of attention: chains of segments, whole and cut in time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from random_states import normal

from ramet.cache.kv import KeyValue
from ramet.round import Round, Unit, Units, pack
from ramet.tree import IntArray, Read, Segment, Tree

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 1e-2}


def held(
    rng: np.random.Generator, contexts: Sequence[int], page: int, n_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> tuple[list[IntArray], KeyValue]:
    """The pages of contexts of so many rows, in random order; all that is no row of one is NaN."""
    n_pages = [-(-n // page) for n in contexts]
    order = rng.permutation(sum(n_pages) + 2).astype(np.int32)
    pages = torch.full((2, len(order), page, n_kv_heads, head_dim), torch.nan, dtype=dtype)
    flat, owned, at = pages.view(2, -1, n_kv_heads, head_dim), [], 0
    for n, n_own in zip(contexts, n_pages, strict=True):
        owned.append(order[at : at + n_own])
        at += n_own
        slots = (owned[-1][:, None].astype(np.int64) * page + np.arange(page)).ravel()[:n]
        flat[:, torch.from_numpy(slots)] = normal(rng, 2, n, n_kv_heads, head_dim).to(dtype)
    return owned, KeyValue(pages[0], pages[1])


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    assert bool(found.isfinite().all())
    error = float((found.double() - expected).abs().max() / expected.abs().max())
    assert error < TOLERANCE[dtype]


def chain(*lengths: int, block: int = 1) -> Tree:
    """One segment below another, the last with two more siblings; some rows of each are read."""
    segments = [
        Segment(np.zeros(n, np.int32), i - 1, block, [Read([1], -1), Read([1], n // 2)]) for i, n in enumerate(lengths)
    ]
    for n in (12, 1):
        segments.append(Segment(np.zeros(n, np.int32), len(lengths) - 2, block, [Read([1])]))
    return Tree.of(segments)


@dataclass(frozen=True)
class Chain:
    """Segments below one another, and the tensors of their rows."""

    lengths: list[int]
    blocks: list[int]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    @classmethod
    def random(
        cls, rng: np.random.Generator, lengths: list[int], blocks: list[int], dtype: torch.dtype,
        heads: tuple[int, int], head_dim: int = 32,
    ) -> Chain:  # fmt: skip
        n_heads, n_kv_heads = heads
        merged = normal(rng, sum(lengths), n_heads + 2 * n_kv_heads, head_dim).mul(2).to(dtype)
        return cls(lengths, blocks, *merged.split([n_heads, n_kv_heads, n_kv_heads], 1))

    @property
    def starts(self) -> list[int]:
        return [sum(self.lengths[:i]) for i in range(len(self.lengths))]

    def cuts(self, rng: np.random.Generator, n: int) -> list[int]:
        """Some positions at which rows can be told apart in time: not within a block."""
        allowed = [
            start + j
            for start, length, block in zip(self.starts, self.lengths, self.blocks, strict=True)
            for j in range(length)
            if j == 0 or (start + j) % block == 0
        ]
        return sorted({int(c) for c in rng.choice(allowed, n)} - {0})

    def tree(self, begin: int, end: int) -> Tree:
        """Rows [begin, end), some of them read, and a sibling behind them that is not of the chain."""
        segments: list[Segment] = []
        for start, length, block in zip(self.starts, self.lengths, self.blocks, strict=True):
            n = min(start + length, end) - max(start, begin)
            if n > 0:
                reads = [Read([1], row) for row in {0, n // 2, n - 1}]
                segments.append(Segment(np.zeros(n, np.int32), len(segments) - 1, block, reads))
        return Tree.of([*segments, Segment(np.zeros(9, np.int32), 0)])

    def round(
        self, rng: np.random.Generator, begin: int, end: int, page: int, other: Tree
    ) -> tuple[Round, torch.Tensor, torch.Tensor, torch.Tensor, KeyValue]:
        """Rows [begin, end) in a round behind another unit, with q, k and v; the rows before them in pages. All else is
        NaN."""
        before = [start for start in self.starts if start < begin]
        n_pages = -(-begin // page)
        own = rng.permutation(n_pages + 2).astype(np.int32)[:n_pages]
        held = Unit(
            self.tree(begin, end), own, begin, forks=np.array(before or [0], np.int32),
            continues=begin > 0 and begin not in self.starts,
        )  # fmt: skip
        packed = pack(Units.of([Unit(other), held]))
        pages = torch.full((2, n_pages + 2, page, *self.k.shape[1:]), torch.nan, dtype=self.k.dtype)
        slots = torch.from_numpy((own[:, None].astype(np.int64) * page + np.arange(page)).ravel()[:begin])
        pages.view(2, -1, *self.k.shape[1:])[:, slots] = torch.stack((self.k[:begin], self.v[:begin]))
        rows = slice(other.n_tokens, other.n_tokens + end - begin)
        q, k, v = (x.new_full((packed.n_tokens, *x.shape[1:]), torch.nan) for x in (self.q, self.k, self.v))
        q[rows], k[rows], v[rows] = self.q[begin:end], self.k[begin:end], self.v[begin:end]
        return packed, q, k, v, KeyValue(pages[0], pages[1])


@dataclass(frozen=True)
class Chunks:
    """Chunks of blocks of `size` in one round, which begin and end anywhere in their blocks: each is more of a sequence
    whose first rows are in pages, with forks there, and all but the first third have a fork of their own below them."""

    size: int
    round: Round
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pages: KeyValue
    contexts: list[int]
    owned: list[IntArray]

    @classmethod
    def random(cls, rng: np.random.Generator, size: int, cases: Sequence[tuple[int, int]], page: int) -> Chunks:
        """cases: rows in pages, and of the chunk."""
        contexts = [n for n, _ in cases]
        owned, pages = held(rng, contexts, page, 1, 16, torch.float32)
        units = []
        for i, ((n, n_rows), own) in enumerate(zip(cases, owned, strict=True)):
            segments = [Segment(np.zeros(n_rows, np.int32), -1, size, [Read([1])])]
            if i % 3:
                segments.append(Segment(np.zeros(size + i % 3, np.int32), 0, size, [Read([1], row=0)]))
            forks = np.unique(rng.integers(0, n, 3) if n else [0]).astype(np.int32)
            forks[0] = 0
            units.append(Unit(Tree.of(segments), own, n, forks=forks, continues=n > 0))
        packed = pack(Units.of(units))
        q, k, v = normal(rng, packed.n_tokens, 5, 16).split([3, 1, 1], 1)
        return cls(size, packed, q, k, v, pages, contexts, owned)

    def expected(self, scale: float) -> torch.Tensor:
        """[T, H, D] in float64, sequence by sequence, from the rule alone."""
        out, at, r = torch.empty(self.q.shape, dtype=torch.float64), 0, self.round
        of_context = iter(zip(self.contexts, self.owned, strict=True))
        for s, n_rows in enumerate(r["lengths"].tolist()):
            rows = slice(at, at + n_rows)
            if r["parents"][s] < 0:
                n, own = next(of_context)
                k, v = (p[torch.from_numpy(own).long()].flatten(0, 1)[:n] for p in (self.pages.keys, self.pages.values))
            above = len(k)
            k, v = torch.cat((k, self.k[rows])), torch.cat((v, self.v[rows]))
            places = torch.arange(len(k))
            block, blocks = places[above:, None] // self.size, places[None, :] // self.size
            seen = (places[None, :] < above) | (blocks <= block)
            scores = torch.einsum("nhd,md->hnm", self.q[rows].double(), k[:, 0].double()) * scale
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out[rows] = torch.einsum("hnm,md->nhd", weights, v[:, 0].double())
            at += n_rows
        return out
