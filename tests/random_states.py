"""Streams for tests of recurrent layers: random trees that begin from states, and keep some."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from random_trees import random_tree

from ramet.round import Stream, Unit, Units, pack
from ramet.tree import Read, Segment, Tree

CPU = torch.device("cpu")


def random_stream(rng: np.random.Generator, n_trees: int = 4, max_length: int = 40) -> tuple[Stream, int]:
    """The stream of `random_units`, filled up to a multiple of 16 rows, and how many slots there are."""
    units, n_slots = random_units(rng, n_trees, max_length)
    return pack(Units.of(units), 16).on(CPU), n_slots


def random_units(rng: np.random.Generator, n_trees: int = 4, max_length: int = 40) -> tuple[list[Unit], int]:
    """Units, and how many slots there are: of those some are begun from, some written, the last two neither."""
    trees = [random_tree(rng, vocab_size=9, max_length=max_length) for _ in range(n_trees)]
    n_kept = [int(rng.integers(0, min(5, t.n_tokens + 1))) for t in trees]
    n_slots = n_trees + sum(n_kept)
    order = iter(rng.permutation(n_slots).tolist())
    units = []
    for tree, n in zip(trees, n_kept, strict=True):
        rows = np.sort(rng.choice(tree.n_tokens, n, replace=False))
        begun = next(order) if rng.random() < 0.5 else -1
        units.append(unit(tree, begun, [(int(row), next(order)) for row in rows]))
    return units, n_slots + 2


def unit(tree: Tree, begun: int = -1, leaves: Sequence[tuple[int, int]] = ()) -> Unit:
    """A tree behind the state in slot `begun` (-1: none), that keeps the states behind rows in slots."""
    kept = np.array(leaves, np.int32).reshape(-1, 2)
    if begun < 0:
        return Unit(tree, leaves=kept)
    return Unit(tree, np.zeros(1, np.int32), 7, state=begun, leaves=kept)


def trunk(n: int, *branches: int) -> Tree:
    """A segment of n rows, and others below it."""
    below = (Segment(np.zeros(b, np.int32), 0) for b in branches)
    return Tree.of([Segment(np.zeros(n, np.int32), reads=[Read([1])]), *below])


def chain(*lengths: int) -> Tree:
    """One segment below another."""
    return Tree.of([Segment(np.zeros(n, np.int32), i - 1, reads=[Read([1])]) for i, n in enumerate(lengths)])


def normal(rng: np.random.Generator, *shape: int) -> torch.Tensor:
    return torch.from_numpy(rng.standard_normal(shape, np.float32))
