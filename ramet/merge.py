"""merge(): the trees of several requests as one, whose common roots are computed once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ramet.tree import Tree


def merge(trees: Sequence[Tree]) -> Tree:
    """Merge trees into one: roots with equal tokens and equal blocks become one root, and their children lie below it.
    The reads keep their order, those of the first tree first. No tree may have steps."""
    assert not any(tree.steps for tree in trees)
    groups: dict[tuple[int, bytes], list[tuple[Tree, int]]] = {}
    for tree in trees:
        for root in np.flatnonzero(tree.parents < 0).tolist():
            at, n = int(tree.starts[root]), int(tree.lengths[root])
            groups.setdefault((int(tree.blocks[root]), tree.tokens[at : at + n].tobytes()), []).append((tree, root))
    places = {id(tree): np.zeros(len(tree.lengths), np.int32) for tree in trees}  # of each segment in the merged tree
    tokens, lengths, blocks, parents, n = [], [], [], [], 0
    for members in groups.values():
        root_place = n
        for i, (tree, root) in enumerate(members):
            first, last = root + (i > 0), int(tree.behind[root])
            place = places[id(tree)]
            place[first:last] = np.arange(n, n + last - first)
            place[root] = root_place
            n += last - first
            end = int(tree.starts[last]) if last < len(tree.starts) else tree.n_tokens
            begin = int(tree.starts[root]) + (int(tree.lengths[root]) if i else 0)
            tokens.append(tree.tokens[begin:end])
            lengths.append(tree.lengths[first:last])
            blocks.append(tree.blocks[first:last])
            above = tree.parents[first:last]
            parents.append(np.where(above < 0, -1, place[above]))
    widths = np.concatenate([np.diff(t.offsets) for t in trees])
    return Tree(
        tokens=np.concatenate(tokens),
        lengths=np.concatenate(lengths),
        parents=np.concatenate(parents).astype(np.int32),
        blocks=np.concatenate(blocks),
        read_segments=np.concatenate([places[id(t)][t.read_segments] for t in trees]),
        read_rows=np.concatenate([t.read_rows for t in trees]),
        normalize=np.concatenate([t.normalize for t in trees]),
        columns=np.concatenate([t.columns for t in trees]),
        offsets=np.concatenate([[0], np.cumsum(widths)]).astype(np.int32),
    )
