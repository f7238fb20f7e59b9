"""Ramet's side of a comparison in process: a round through the engine, its pass, and what a pass cannot do without."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from ramet.bench.arithmetic import attention_flop, delta_flop
from ramet.bench.floor import Floor
from ramet.bench.peer import Contestant, Prompts
from ramet.bench.products import Product, products, uploaded
from ramet.bench.rates import Rates
from ramet.bench.samples import JsonObject, Row
from ramet.bench.shapes import Trial
from ramet.bench.timing import Answer, Run, by_clock, on_device
from ramet.engine.engine import Engine
from ramet.engine.scheduler import Batch
from ramet.ops.native.pack import pack
from ramet.ops.planning import Plans
from ramet.tree import FloatArray, Tree
from ramet.units import Unit, Units


class Own:
    """An engine under test. rates: of its device, where they were measured: limits are told with them."""

    def __init__(self, engine: Engine, rates: Rates | None = None) -> None:
        self.engine, self.rates = engine, rates
        self._found: list[Product] = []
        self._n_rounds, self._n_rows = 0.0, 0

    def contestants(self, prompts: Prompts, columns: Sequence[int]) -> dict[str, Contestant]:
        """ours: from ids to logits through the engine. round: the same in this thread, without its queue. pass: the
        model's pass alone. floor: its products with weights alone. plain products, on a CPU: the same by torch, on
        weights as they are."""
        self._found, self._n_rounds = products(self.engine.model, *_trees(prompts, columns)), 0.0
        device = self.engine.model.device
        floor = on_device(Floor.packed(self._found, device), device)
        found: dict[str, Contestant] = {
            "ours": lambda prompts: by_clock(lambda: self._ours(prompts, columns)),
            "round": lambda prompts: by_clock(lambda: self._round(prompts, columns)),
            "pass": lambda prompts: self._pass(prompts, columns),
            "floor": lambda _: floor,
        }
        if device.type == "cpu":
            plain = on_device(Floor.plain(self._found, device), device)
            found["plain products"] = lambda _: plain
        return found

    def notes(self, trial: Trial, row: Row, prompts: Prompts, columns: Sequence[int]) -> JsonObject:
        """The arithmetic of the products with weights, of attention's and of recurrences', and the pass over all of
        them together, had the others the rate that the first reached. With rates, what the first two take at these."""
        model, trees = self.engine.model.shape, _trees(prompts, columns)
        linear = sum(product.flop for product in self._found)
        attention, delta = (trial.n_at_once * count(model, trial.shape) for count in (attention_flop, delta_flop))
        ratio = row.ratio("pass", "floor")
        over = None if ratio is None else ratio / (1 + (attention + delta) / linear)
        gflop = {"floor": linear, "attention": attention, "delta": delta}
        notes: JsonObject = {f"{name}_gflop": n / 1e9 for name, n in gflop.items()}
        notes |= {
            "pass_over_all_products": over,
            "pack_us_per_branch": _packing(self.engine, trees),
            "rounds": self._n_rounds,
        }
        notes["pass_rows"] = self._n_rows  # with those that fill a recorded pass
        return notes if self.rates is None else notes | self._limits(self.rates, trial, row, attention)

    def _limits(self, rates: Rates, trial: Trial, row: Row, attention: int) -> JsonObject:
        linear_ms = rates.linear_ms(self._found, trial.n_at_once * trial.shape.n_stream)
        limit_ms, pass_ms = linear_ms + rates.flop_ms(attention), row.median("pass")
        return {
            "linear_limit_ms": linear_ms, "attention_limit_ms": rates.flop_ms(attention),
            "pass_over_limits": None if pass_ms is None else pass_ms / limit_ms,
        }  # fmt: skip

    def _round(self, prompts: Prompts, columns: Sequence[int]) -> Answer:
        batch = Batch([Unit(tree) for tree in _trees(prompts, columns)])
        return np.concatenate([_by_question(reads.logits, columns) for reads in self.engine._runner.run(batch)])

    def _ours(self, prompts: Prompts, columns: Sequence[int]) -> Answer:
        """All are submitted before any is waited for, so that they share a round where they fit one."""
        before = self.engine.stats()["rounds_total"]
        futures = [self.engine.submit(tree) for tree in _trees(prompts, columns)]
        answer = np.concatenate([_by_question(future.result().logits, columns) for future in futures])
        self._n_rounds = max(self._n_rounds, self.engine.stats()["rounds_total"] - before)
        return answer

    def _pass(self, prompts: Prompts, columns: Sequence[int]) -> Run:
        """The model's pass over the packed trees, and the head, in this thread: no queue, no packing, no upload;
        recorded where the engine records it."""
        model, graphs = self.engine.model, self.engine._runner.graphs
        packed = pack(Units.of([Unit(tree) for tree in _trees(prompts, columns)]))
        launched = None if graphs is None else graphs.launch(packed)  # what it has uploaded stays for the replays
        self._n_rows = packed.n_tokens
        logits: list[torch.Tensor] = []
        if graphs is None or launched is None:
            stream = uploaded(model, packed)

            def call() -> None:
                logits[:] = [model(stream, None)[0]]
        else:
            hidden, behind = launched
            capacity, graph = next((c, graph) for c, (graph, out) in graphs._recorded.items() if out is hidden)
            self._n_rows = capacity.rows

            def call() -> None:
                graph.replay()
                logits[:] = [model.read(hidden, behind)[0]]

        return on_device(call, model.device, lambda: _by_question(logits[0].cpu().numpy(), columns))


def _trees(prompts: Prompts, columns: Sequence[int]) -> list[Tree]:
    return [prompt.tree(columns) for prompt in prompts]


def _by_question(logits: FloatArray, columns: Sequence[int]) -> FloatArray:
    return logits.reshape(-1, len(columns))


def _packing(engine: Engine, trees: Sequence[Tree]) -> float:
    """Microseconds of packing the trees' round and of its kernels' work lists, a branch, the median of many."""
    units, plans = [Unit(tree) for tree in trees], Plans(engine.model.planners())
    times = []
    for _ in range(101):
        start = time.perf_counter()
        plans(pack(Units.of(units)))
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6 / sum(len(tree.lengths) - 1 for tree in trees)
