"""Clients that ask again as soon as they have their answer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from ramet.engine.engine import Engine
from ramet.tree import Reads, Tree


def closed_loop(engine: Engine, trees: Sequence[Tree], n_clients: int) -> tuple[float, list[float]]:
    """Reads a second, and the milliseconds of each, of `n_clients` that ask one tree after the other until all are
    answered. The first root of a tree is kept, as a decision's state is."""
    answered: SimpleQueue[Future[Reads]] = SimpleQueue()
    ended: list[float] = []

    def done(started: float, future: Future[Reads]) -> None:
        ended.append((time.perf_counter() - started) * 1e3)
        answered.put(future)

    def ask(tree: Tree) -> None:
        started = time.perf_counter()
        engine.submit(tree, n_keep=int(tree.lengths[0])).add_done_callback(partial(done, started))

    began = time.perf_counter()
    for tree in trees[:n_clients]:
        ask(tree)
    for tree in trees[n_clients:]:
        answered.get().result()
        ask(tree)
    for _ in trees[:n_clients]:
        answered.get().result()
    return len(trees) / (time.perf_counter() - began), ended
