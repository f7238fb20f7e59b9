"""Cutting: which part of a tree runs in a round, and what is left of it. Knows neither pages nor queues."""

from __future__ import annotations

import numpy as np

from ramet.engine.job import Task
from ramet.tree import WHOLE, IntArray, Tree


def n_rows(task: Task, last: int) -> int:
    """Rows of the task's segments before `last`."""
    tree = task.tree
    end = int(tree.starts[last]) if last < len(tree.starts) else tree.n_tokens
    return end - int(tree.starts[task.first]) - task.skip


def first_read(tree: Tree) -> int:
    """The place in the stream of the first row that is read: it and what follows must be computed."""
    return int((tree.starts[tree.read_segments] + tree.read_rows).min(initial=tree.n_tokens - 1))


def fitting(task: Task, limit: int) -> int:
    """The segment before which as many of the task's subtrees lie as have `limit` rows together; 0 if none fits."""
    fits, root = 0, task.first
    while root < task.last:
        root = int(task.tree.behind[root])
        if n_rows(task, root) > limit:
            break
        fits = root
    return fits


def above_canvas(task: Task) -> int:
    """Where the first root leads down to a canvas, the segment behind the first path before one; 0 where it does
    not."""
    tree, first = task.tree, task.first
    if int(tree.blocks[first]) == WHOLE or not (tree.blocks[first : tree.behind[first]] == WHOLE).any():
        return 0
    last = first + 1
    while last < int(tree.behind[first]) and int(tree.parents[last]) == last - 1 and int(tree.blocks[last]) != WHOLE:
        last += 1
    return last


def leads(task: Task) -> bool:
    """Whether a task's first rows belong to the tree's first path, where places in the stream are positions."""
    return int(task.tree.starts[task.first]) == int(task.tree.origins[task.first])


def cut_at(task: Task, most: int, grain: int) -> int:
    """The most rows, up to `most`, after which the first root may be cut: rows of one block go together, and `grain`
    is counted from the root's start."""
    block, n_root = int(task.tree.blocks[task.first]), int(task.tree.lengths[task.first]) - task.skip
    if most == n_root:
        return most
    if block == 1:
        return max(0, (task.skip + most) // grain * grain - task.skip)
    start = int(task.tree.origins[task.first]) + task.skip
    return max(0, (start + most) // block * block - start)


def forks(task: Task) -> IntArray:
    """Where the segments of the path that a task continues begin."""
    tree = task.tree
    segments = [task.first] if task.skip else []
    above = int(tree.parents[task.first])
    while above >= 0:
        segments.append(above)
        above = int(tree.parents[above])
    return tree.origins[segments[::-1]] if segments else np.zeros(1, np.int32)


def left_behind(task: Task, n_kept: int) -> list[tuple[int, int, int]]:
    """(first, last, skip) of the runs of subtrees that are left of a task when its first root and the first path below
    it have n_kept rows in pages."""
    tree, groups = task.tree, []
    root, last, at = task.first, task.last, n_kept
    while at > 0:
        behind = int(tree.behind[root])
        if behind < last:
            groups.append((behind, last, 0))
        if at < int(tree.lengths[root]):
            break
        at -= int(tree.lengths[root])
        root, last = root + 1, behind
    if root < last:
        groups.append((root, int(tree.behind[root]) if at else last, at))
    return groups[::-1]


def cut(task: Task, n: int) -> tuple[Tree, IntArray]:
    """The first n rows of a task as a tree of their own, and the places of its reads in the whole tree."""
    tree, first, last, skip = task.tree, task.first, task.last, task.skip
    if first == 0 and skip == 0 and n == tree.n_tokens:
        return tree, np.arange(len(tree.read_rows), dtype=np.int32)
    row0 = int(tree.starts[first]) + skip
    rows = tree.starts[tree.read_segments] + tree.read_rows
    places = np.flatnonzero((rows >= row0) & (rows < row0 + n))
    lengths = tree.lengths[first:last].copy()
    lengths[0] = min(int(lengths[0]) - skip, n)
    segments = tree.read_segments[places] - first
    sizes = np.diff(tree.offsets)[places]
    part = Tree(
        tokens=tree.tokens[row0 : row0 + n],
        lengths=lengths,
        parents=np.maximum(tree.parents[first:last] - first, -1),
        blocks=tree.blocks[first:last],
        read_segments=segments,
        read_rows=tree.read_rows[places] - np.where(segments == 0, skip, 0).astype(np.int32),
        normalize=tree.normalize[places],
        columns=tree.columns[np.repeat(tree.offsets[places], sizes) + _ramp(sizes)],
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        steps=tuple((segment - first, step) for segment, step in tree.steps if first <= segment < last),
    )
    return part, places.astype(np.int32)


def _ramp(sizes: IntArray) -> IntArray:
    """0 1 .. sizes[0]-1, 0 1 .. sizes[1]-1, and so on."""
    return (np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)).astype(np.int32)
