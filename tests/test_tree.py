from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fixtures.random_trees import random_tree
from oracles.trees import path_tokens

from ramet.errors import InvalidRequest
from ramet.merge import merge
from ramet.tree import MAX_ANCESTORS, Read, Segment, Tree


def test_segments_are_laid_out_depth_first_and_reads_keep_their_order() -> None:
    tree = Tree.of([
        Segment([1, 2, 3]),
        Segment([4], parent=0, reads=[Read([9])]),
        Segment([5, 6], parent=0),
        Segment([7, 8], parent=1, reads=[Read([8, 9], row=0)]),
    ])  # fmt: skip
    assert tree.tokens.tolist() == [1, 2, 3, 4, 7, 8, 5, 6]
    assert tree.parents.tolist() == [-1, 0, 1, 0]
    assert tree.origins.tolist() == [0, 3, 4, 3]
    assert tree.depths.tolist() == [0, 1, 2, 1]
    assert tree.behind.tolist() == [4, 3, 3, 4]
    assert tree.read_segments.tolist() == [1, 2]
    assert tree.read_rows.tolist() == [0, 0]
    assert tree.offsets.tolist() == [0, 1, 3]
    assert tree.max_position == 6


def test_descendants_are_one_run_behind_their_segment() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        tree = random_tree(rng, vocab_size=50)
        for s, p in enumerate(tree.parents.tolist()):
            while p >= 0:
                assert p < s < tree.behind[p]
                p = int(tree.parents[p])


@pytest.mark.parametrize(
    ("segments", "field"),
    [
        ([], "segments"),
        ([Segment([])], "segments"),
        ([Segment([1], parent=0)], "segments.parent"),
        ([Segment([1], block=0)], "segments.block"),
        ([Segment([1], reads=[Read([1], row=1)])], "reads.row"),
        ([Segment([1], reads=[Read([1], row=-2)])], "reads.row"),
        ([Segment([1], parent=i - 1) for i in range(MAX_ANCESTORS + 2)], "segments"),
    ],
)
def test_a_broken_invariant_names_its_field(segments: list[Segment], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Tree.of(segments)
    assert caught.value.field == field


def test_arrays_that_are_not_depth_first_are_refused() -> None:
    ids = np.zeros(4, np.int32)
    ones, none, no_mask = np.ones(4, np.int32), np.zeros(0, np.int32), np.zeros(0, np.bool_)
    parents = np.array([-1, 0, -1, 1], np.int32)  # 3 returns to a subtree that 2 has closed
    with pytest.raises(InvalidRequest, match="depth first"):
        Tree(ids, ones, parents, ones, none, none, no_mask, none, np.zeros(1, np.int32))


@pytest.mark.parametrize("seed", range(20))
def test_merged_trees_read_what_each_reads_alone(seed: int) -> None:
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, vocab_size=3, max_segments=7, max_length=2) for _ in range(5)]
    merged = merge(trees)
    assert merged.n_tokens < sum(t.n_tokens for t in trees)  # short roots of three ids: some are equal
    roots = [tuple(path_tokens(merged, s)) for s in np.flatnonzero(merged.parents < 0).tolist()]
    assert len(set(roots)) == len(roots)

    def reads(tree: Tree) -> list[tuple[list[int], list[int], bool]]:
        columns = np.split(tree.columns, tree.offsets[1:-1])
        found = []
        for i, (segment, row) in enumerate(zip(tree.read_segments.tolist(), tree.read_rows.tolist(), strict=True)):
            seen = path_tokens(tree, segment)
            seen = seen[: len(seen) - int(tree.lengths[segment]) + row + 1]
            found.append((seen, columns[i].tolist(), bool(tree.normalize[i])))
        return found

    assert reads(merged) == [read for tree in trees for read in reads(tree)]


@pytest.mark.parametrize("tokens", [[3, 1 << 40], (-(1 << 40),), (1 << 31,)])
def test_an_id_that_32_bits_do_not_hold_is_named(tokens: Sequence[int]) -> None:
    with pytest.raises(InvalidRequest, match=f"^tokens: ids are numbers of 32 bits; {tokens[-1]} is none"):
        Tree.of([Segment(tokens)])
    with pytest.raises(InvalidRequest, match="is none"):
        Tree.of([Segment([1], reads=[Read(tokens)])])
