"""Ramet and a peer on the same token ids in one process, by turns."""

from __future__ import annotations

import random

import numpy as np
import torch

from ramet.bench.memory import Memory
from ramet.bench.own import Own
from ramet.bench.peer import Peer, Prompts
from ramet.bench.samples import Effort, Row, Step, affordable, interleave
from ramet.bench.shapes import Prompt, Trial
from ramet.bench.timing import Answer
from ramet.errors import RametError
from ramet.tree import FloatArray

SHAPES = ("400x1x60", "400x4x60", "400x48x40", "2000x16x40", "200x64x12")
N_COLUMNS = 4
# On the mean difference of a probability over the labels; the largest may be LARGEST times that. In bfloat16 random
# ids leave transformers itself up to 0.09 from its own float32 (docs/quality.md): a single value says little.
TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.005, torch.float32: 1e-4}
LARGEST = 5
_N_WARM = {"cpu": 1, "cuda": 4}  # first runs, not timed: there clocks rise, and what a shape needs is compiled


def compare(own: Own, peer: Peer, trial: Trial, effort: Effort, memory: Memory, step: Step) -> Row:
    """One row. Raises RametError when the answers differ: there is no figure for a wrong answer.

    Every run gets ids of its own. "ours" and the peer are timed from lists of ids to the labels' logits on the host.
    """
    rng, model = random.Random(f"{effort.seed} {trial}"), own.engine.model  # noqa: S311
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
    first, answers = {}, {}
    for name in contestants:
        step(f"{trial} check {name}")
        for _ in range(_N_WARM[model.device.type]):
            first[name], answers[name] = turn(name, prompts)
    row.notes["difference"] = agree(answers, TOLERANCE[model.dtype])
    counts = {name: affordable(ms, effort.repeats, effort.budget_s) for name, ms in first.items()}
    for name in interleave(counts):
        step(f"{trial} {name}")
        row.add(name, turn(name, draw())[0])
    row.notes |= own.notes(trial, row, prompts, columns) | peer.notes()
    return row


def agree(answers: dict[str, Answer], tolerance: float) -> dict[str, float]:
    """The largest difference of each one's label probabilities from ours. Raises RametError where their mean is beyond
    `tolerance`, or the largest beyond LARGEST times that."""
    ours = answers["ours"]
    assert ours is not None
    found = {}
    for name, theirs in answers.items():
        if theirs is not None and name != "ours":
            differences = np.abs(_softmax(theirs) - _softmax(ours))
            mean, found[name] = float(differences.mean()), float(differences.max())
            if not (mean <= tolerance and found[name] <= LARGEST * tolerance):
                raise RametError(
                    f"no figures: {name} answers otherwise, by {mean:.4f} on average and {found[name]:.4f} at most; "
                    f"{tolerance} and {LARGEST * tolerance} are allowed"
                )
    return found


def _softmax(logits: FloatArray) -> FloatArray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: FloatArray = weights / weights.sum(-1, keepdims=True)
    return probabilities
