"""Random trees for tests: up to four ancestors, reads anywhere, odd lengths."""

from __future__ import annotations

import numpy as np

from ramet.tree import MAX_ANCESTORS, Read, Segment, Tree


def random_tree(
    rng: np.random.Generator,
    *,
    vocab_size: int,
    max_segments: int = 9,
    max_length: int = 40,
    blocks: tuple[int, ...] = (1,),
) -> Tree:
    """Segments hang at random below earlier ones; about half of them are read."""
    segments: list[Segment] = []
    depths: list[int] = []
    for i in range(int(rng.integers(1, max_segments + 1))):
        above = [-1, *(s for s in range(i) if depths[s] < MAX_ANCESTORS)]
        parent = int(rng.choice(above)) if i else -1
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
        n = int(rng.integers(1, max_length + 1))
        reads = [_read(rng, n, vocab_size) for _ in range(int(rng.integers(0, 3)))]
        block = int(rng.choice(blocks))
        segments.append(Segment(rng.integers(0, vocab_size, n).astype(np.int32), parent, block, reads))
    if not any(s.reads for s in segments):
        last = segments[-1]
        segments[-1] = Segment(last.tokens, last.parent, last.block, [Read([1, 2])])
    return Tree.of(segments)


def _read(rng: np.random.Generator, n: int, vocab_size: int) -> Read:
    columns = rng.integers(0, vocab_size, int(rng.integers(1, 6))).astype(np.int32)
    return Read(columns, int(rng.integers(-n, n)))


def first_path(tree: Tree) -> int:
    """Rows of the path along first children."""
    segment, n = 0, int(tree.lengths[0])
    while segment + 1 < len(tree.parents) and int(tree.parents[segment + 1]) == segment:
        segment += 1
        n += int(tree.lengths[segment])
    return n
