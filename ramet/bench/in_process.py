"""Ramet and transformers on the same token ids in one process, by turns."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from ramet.bench.arithmetic import attention_flop, delta_flop
from ramet.bench.floor import Floor
from ramet.bench.products import Product, products
from ramet.bench.samples import Effort, JsonObject, Row, Step, affordable, interleave
from ramet.bench.shapes import Prompt, Shape
from ramet.errors import RametError
from ramet.round import Unit, pack
from ramet.tree import FloatArray, Tree

if TYPE_CHECKING:
    from ramet.bench.transformers_peer import TransformersPeer
    from ramet.engine.engine import Engine

SHAPES = ("400x1x60", "400x4x60", "400x48x40", "2000x16x40", "200x64x12")
RATIOS = (
    ("batch", "ours", "batch_over_ours"),
    ("loop", "ours", "loop_over_ours"),
    ("pass", "floor", "pass_over_floor"),
)
N_COLUMNS = 4
# On the mean difference of a probability over the labels; the largest may be LARGEST times that. In bfloat16 random
# ids leave transformers itself up to 0.09 from its own float32 (docs/quality.md): a single value says little.
TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.005, torch.float32: 1e-4}
LARGEST = 5

Run = Callable[[], FloatArray | None]
Contestant = Callable[[Prompt], Run]  # what it gets ready is not timed, what it returns is


def compare(engine: Engine, peer: TransformersPeer, shape: Shape, effort: Effort, step: Step) -> Row:
    """One row. Raises RametError when the answers differ: there is no figure for a wrong answer.

    Every run gets ids of its own, and is timed from lists of ids to the labels' logits on the host.
    """
    rng = random.Random(f"{effort.seed} {shape}")  # noqa: S311
    n_vocab = engine.model.shape.vocab_size
    columns = sorted(rng.sample(range(n_vocab), N_COLUMNS))
    found = products(engine.model, Prompt.draw(shape, rng, n_vocab).tree(columns))
    contestants = _contestants(engine, peer, found, columns)
    row = Row(str(shape), notes={"n_stream": shape.n_stream, "n_repeated": shape.n_repeated})
    first, answers, prompt = {}, {}, Prompt.draw(shape, rng, n_vocab)
    for name, run in contestants.items():
        step(f"{shape} check {name}")
        first[name], answers[name] = _timed(run(prompt))
    row.notes["difference"] = agree(answers, TOLERANCE[engine.model.dtype])
    counts = {name: affordable(ms, effort.repeats, effort.budget_s) for name, ms in first.items()}
    for name in interleave(counts):
        step(f"{shape} {name}")
        row.add(name, _timed(contestants[name](Prompt.draw(shape, rng, n_vocab)))[0])
    row.notes.update(_floors(engine, shape, found, row), pack_us_per_branch=_packing(prompt.tree(columns)))
    return row


def _floors(engine: Engine, shape: Shape, found: Sequence[Product], row: Row) -> JsonObject:
    """The arithmetic of the products with weights, of attention's and of recurrences', and the pass over all of them
    together, had the others the rate that the first reached."""
    linear = sum(product.flop for product in found)
    attention, delta = (count(engine.model.shape, shape) for count in (attention_flop, delta_flop))
    ratio = row.ratio("pass", "floor")
    over = None if ratio is None else ratio / (1 + (attention + delta) / linear)
    gflop = {"floor": linear, "attention": attention, "delta": delta}
    return {**{f"{name}_gflop": n / 1e9 for name, n in gflop.items()}, "pass_over_all_products": over}


def _packing(tree: Tree) -> float:
    """Microseconds of packing the tree's round, a branch, the median of many."""
    unit = Unit(tree)
    times = []
    for _ in range(101):
        start = time.perf_counter()
        pack([unit])
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6 / (len(tree.lengths) - 1)


def agree(answers: dict[str, FloatArray | None], tolerance: float) -> dict[str, float]:
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


def _contestants(
    engine: Engine, peer: TransformersPeer, found: Sequence[Product], columns: Sequence[int]
) -> dict[str, Contestant]:
    packed, plain = (make(found, engine.model.device) for make in (Floor.packed, Floor.plain))
    return {
        "ours": lambda prompt: lambda: _submit(engine, prompt.tree(columns)),
        "pass": lambda prompt: _pass(engine, prompt.tree(columns)),
        "batch": lambda prompt: lambda: peer.batch(prompt, columns),
        "loop": lambda prompt: lambda: peer.loop(prompt, columns),
        "floor": lambda _: packed,
        "plain products": lambda _: plain,
    }


def _submit(engine: Engine, tree: Tree) -> FloatArray:
    return _by_question(engine.submit(tree).result().logits)


def _pass(engine: Engine, tree: Tree) -> Run:
    """The model's pass over the packed tree, in this thread: no queue, no pages, no packing."""
    stream = pack([Unit(tree)]).on(engine.model.device)
    return lambda: _by_question(engine.model(stream, None)[0].cpu().numpy())


def _by_question(logits: FloatArray) -> FloatArray:
    return logits.reshape(-1, N_COLUMNS)


def _timed(run: Run) -> tuple[float, FloatArray | None]:
    start = time.perf_counter()
    result = run()
    return (time.perf_counter() - start) * 1e3, result


def _softmax(logits: FloatArray) -> FloatArray:
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities: FloatArray = weights / weights.sum(-1, keepdims=True)
    return probabilities
