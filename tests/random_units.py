"""Units of all kinds, for tests of what is made of rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from random_trees import random_tree

from ramet.round import Unit
from ramet.tree import WHOLE, Segment, Tree

PAGE = 16


def random_units(rng: np.random.Generator, n: int, max_length: int, max_context: int) -> list[Unit]:
    """Trees of all kinds: with and without a context of several segments, that their root may continue; rows and
    states kept or not; rows read several times, in any order, or never."""
    units, slots = [], iter(rng.permutation(1000).tolist())
    for _ in range(n):
        blocks = [(1,), (1, 4, 32, WHOLE)][int(rng.integers(2))]
        n_segments = int(rng.integers(1, 12))
        tree = random_tree(rng, vocab_size=99, max_length=max_length, max_segments=n_segments, blocks=blocks)
        tree = replace(tree, normalize=rng.random(len(tree.read_rows)) < 0.5)
        if rng.random() < 0.2:  # nothing of it is read
            tree = Tree.of([Segment(rng.integers(0, 9, int(rng.integers(1, max_length + 1))))])
        n_context = int(rng.integers(1, max_context)) if rng.random() < 0.6 else 0
        forks = np.unique(np.append(0, rng.integers(0, max(1, n_context), int(rng.integers(5)))))
        continues = n_context > 0 and int((tree.parents < 0).sum()) == 1 and rng.random() < 0.5
        rows = np.sort(rng.choice(tree.n_tokens, int(rng.integers(0, min(5, tree.n_tokens + 1))), replace=False))
        units.append(
            Unit(
                tree,
                context=rng.integers(0, 500, -(-n_context // PAGE)).astype(np.int32),
                n_context=n_context,
                slots=rng.integers(0, 500, int(rng.integers(0, tree.n_tokens + 1))).astype(np.int32),
                forks=forks.astype(np.int32) if n_context else np.zeros(1, np.int32),
                continues=continues,
                state=next(slots) if n_context else -1,
                leaves=np.array([(row, next(slots)) for row in rows], np.int32).reshape(-1, 2),
            )
        )
    return units
