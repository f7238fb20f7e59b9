"""Ramet and a peer on the same token ids in one process, by turns."""

from __future__ import annotations

import random
from collections.abc import Callable

from ramet.bench.core.agreement import TOLERANCE, agree
from ramet.bench.core.memory import DeviceMemory
from ramet.bench.core.samples import Effort, Row
from ramet.bench.core.shapes import Prompt, Trial
from ramet.bench.core.timing import Answer
from ramet.bench.decisions.own import Own
from ramet.bench.peers.peer import PeerEngine, Prompts

SHAPES = ("400x1x60", "400x4x60", "400x48x40", "2000x16x40", "200x64x12")
N_COLUMNS = 4
_N_WARM = {"cpu": 1, "cuda": 4}  # first runs, not timed: there clocks rise, and what a shape needs is compiled


def compare(
    own: Own, peer: PeerEngine, trial: Trial, effort: Effort, memory: DeviceMemory, step: Callable[[str], None]
) -> Row:
    """The row of a shape. Raises RametError where the answers differ: there is no figure for a wrong answer.

    Every run gets ids of its own. "ours" and the peer are timed from lists of ids to the labels' logits on the host.
    """
    rng = random.Random(f"{effort.seed} {trial}")  # noqa: S311
    model = own.engine.model
    columns = sorted(rng.sample(range(model.shape.vocab_size), N_COLUMNS))

    def draw() -> Prompts:
        return [Prompt.draw(trial.shape, rng, model.shape.vocab_size) for _ in range(trial.n_at_once)]

    prompts = draw()
    theirs = peer.contestants(prompts, columns)
    contestants = own.contestants(prompts, columns) | theirs

    def turn(name: str, prompts: Prompts) -> tuple[float, Answer]:
        run = contestants[name](prompts)
        with memory.of("peer" if name in theirs else name):
            return run()

    n = trial.n_at_once
    row = Row(str(trial), notes={"n_stream": n * trial.shape.n_stream, "n_repeated": n * trial.shape.n_repeated})
    first: dict[str, float] = {}
    answers: dict[str, Answer] = {}
    for name in contestants:
        step(f"{trial} check {name}")
        for _ in range(_N_WARM[model.device.type]):
            first[name], answers[name] = turn(name, prompts)
    row.notes["difference"] = agree(answers, TOLERANCE[model.dtype])
    counts = {name: effort.affordable(ms) for name, ms in first.items()}
    row.take_turns(counts, lambda name: turn(name, draw())[0], step)
    row.notes |= own.notes(trial, row) | peer.notes()
    return row
