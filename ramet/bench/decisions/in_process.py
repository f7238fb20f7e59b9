"""Ramet and a peer on the same token ids in one process, by turns: a round through the engine, its pass, and what a
pass cannot do without."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from ramet.bench.core.agreement import TOLERANCE, agree
from ramet.bench.core.floor import Floor, attention_flop, delta_flop
from ramet.bench.core.memory import DeviceMemory
from ramet.bench.core.products import Product, products, uploaded
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import Effort, JsonObject, Row
from ramet.bench.core.shapes import Prompt, Trial
from ramet.bench.core.timing import Answer, Run, clocked, on_device
from ramet.bench.peers.peer import Contestant, PeerEngine, Prompts
from ramet.engine.batch import Batch
from ramet.engine.engine import Engine
from ramet.tree import Reads, Tree
from ramet.units import Unit, Units


class Own:
    """An engine under test. rates: of its device, where they were measured: the notes then have limits by them."""

    def __init__(self, engine: Engine, rates: DeviceRates | None = None) -> None:
        self.engine, self.rates = engine, rates
        self._found: list[Product] = []
        self._n_columns = 1
        self._n_rounds = 0.0  # of all requests of a run, at most
        self._n_rows = 0  # of the last pass

    def contestants(self, prompts: Prompts, columns: Sequence[int]) -> dict[str, Contestant]:
        """ours: from ids to logits through the engine. round: the same in this thread, without its queue. pass: the
        model's pass alone. floor: its products with weights alone."""
        self._found = products(self.engine.model, *_trees(prompts, columns))
        self._n_columns = len(columns)
        self._n_rounds = 0.0
        device = self.engine.model.device
        floor = on_device(Floor(self._found, device), device)
        return {
            "ours": lambda prompts: partial(clocked, lambda: self._ours(_trees(prompts, columns))),
            "round": lambda prompts: partial(clocked, lambda: self._round(_trees(prompts, columns))),
            "pass": lambda prompts: self._pass(_trees(prompts, columns)),
            "floor": lambda _: floor,
        }

    def notes(self, trial: Trial, row: Row) -> JsonObject:
        """The arithmetic of the products with weights, of attention's and of recurrences', and the pass over all of
        them together, had the others the rate that the first reached. With rates, what the first two take at these."""
        linear = sum(product.flop for product in self._found)
        attention = trial.n_at_once * attention_flop(self.engine.shape, trial.shape)
        delta = trial.n_at_once * delta_flop(self.engine.shape, trial.shape)
        ratio = row.ratio("pass", "floor")
        notes: JsonObject = {
            "floor_gflop": linear / 1e9,
            "attention_gflop": attention / 1e9,
            "delta_gflop": delta / 1e9,
            "pass_over_all_products": None if ratio is None else ratio / (1 + (attention + delta) / linear),
            "rounds": self._n_rounds,
            "pass_rows": self._n_rows,  # with those that fill a recorded pass
        }
        return notes if self.rates is None else notes | self._limits(self.rates, trial, row, attention)

    def _limits(self, rates: DeviceRates, trial: Trial, row: Row, attention: int) -> JsonObject:
        linear_ms = rates.linear_ms(self._found, trial.n_at_once * trial.shape.n_stream)
        attention_ms = rates.flop_ms(attention)
        pass_ms = row.median("pass")
        ratio = None if pass_ms is None else pass_ms / (linear_ms + attention_ms)
        return {"linear_limit_ms": linear_ms, "attention_limit_ms": attention_ms, "pass_over_limits": ratio}

    def _ours(self, trees: Sequence[Tree]) -> Answer:
        """Submits all before it waits for any, so that they share a round where they fit one."""
        before = self.engine.stats()["rounds_total"]
        futures = [self.engine.submit(tree) for tree in trees]
        answer = self._logits([future.result() for future in futures])
        self._n_rounds = max(self._n_rounds, self.engine.stats()["rounds_total"] - before)
        return answer

    def _round(self, trees: Sequence[Tree]) -> Answer:
        return self._logits(self.engine.runner.run(Batch([Unit(tree) for tree in trees])))

    def _pass(self, trees: Sequence[Tree]) -> Run:
        """The model's pass over the packed trees, and the head, in this thread: no queue, no packing, no upload;
        recorded where the engine records it."""
        model, graphs = self.engine.model, self.engine.runner.graphs
        packed = self.engine.runner.host.pack(Units.of([Unit(tree) for tree in trees]))
        launched = None if graphs is None else graphs.launch(packed)  # what it has uploaded stays for the replays
        self._n_rows = packed.n_tokens
        logits: list[torch.Tensor] = []
        if graphs is None or launched is None:
            stream = uploaded(model, packed)

            def call() -> None:
                logits[:] = [model(stream, None)[0]]
        else:
            hidden, behind = launched
            capacity, graph = graphs.recording(hidden)
            self._n_rows = capacity.rows

            def call() -> None:
                graph.replay()
                logits[:] = [model.read(hidden, behind)[0]]

        return on_device(call, model.device, lambda: logits[0].cpu().numpy().reshape(-1, self._n_columns))

    def _logits(self, reads: Sequence[Reads]) -> Answer:
        """[questions, columns]"""
        return np.concatenate([each.logits for each in reads]).reshape(-1, self._n_columns)


def _trees(prompts: Prompts, columns: Sequence[int]) -> list[Tree]:
    return [prompt.tree(columns) for prompt in prompts]


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
