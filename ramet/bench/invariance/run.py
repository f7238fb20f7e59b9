"""Whether an answer's bits are those of its question asked alone, whatever shares its rounds, however its state was cut
or kept; with the batch-invariant mode, where every difference is a fault, and without, to compare."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from ramet.bench.core import machine
from ramet.bench.core.document import Watch
from ramet.bench.core.samples import Effort, Row, interleave
from ramet.bench.core.shapes import DecisionShape, Prompt
from ramet.bench.invariance.probes import DecisionProbe, Draw, Numbers, Probe, RandomLoad, TreeProbe
from ramet.bench.invariance.report import BitTally, InvarianceReport
from ramet.engine.engine import Engine

SHAPES = ("400x1x60", "400x4x60", "400x48x40")
Engines = Mapping[str, Engine]  # "mode", with batch_invariant, and "plain", without
_N_PROBES, _N_THREADS, _N_COLUMNS = 12, 32, 4
_WORDS_A_TOKEN = 0.7


@dataclass(frozen=True, slots=True)
class InvarianceWork:
    """`n_loads` at each level; states of up to n_state tokens; the `shapes` that are timed."""

    n_loads: int
    n_state: int
    shapes: Sequence[DecisionShape]
    effort: Effort

    @property
    def seed(self) -> int:
        return self.effort.seed


@dataclass(frozen=True, slots=True)
class Level:
    """Probes of one kind, and strangers beside them."""

    name: str
    probes: Sequence[Probe[Any, Any]]
    stranger: Draw

    @classmethod
    def all(cls, n_vocab: int, n_state: int, seed: int) -> list[Level]:
        """Trees of ids and decisions about words; states of up to n_state tokens."""
        rng = random.Random(f"{seed} probes")  # noqa: S311
        draws: dict[str, Draw] = {
            "trees": lambda rng: TreeProbe.draw(rng, n_vocab, n_state),
            "decisions": lambda rng: DecisionProbe.draw(rng, max(1, int(n_state * _WORDS_A_TOKEN))),
        }
        return [cls(name, [draw(rng) for _ in range(_N_PROBES)], draw) for name, draw in draws.items()]

    def alone(self, engine: Engine, threads: Executor) -> list[list[Numbers]]:
        """Each question of each probe in a request of its own, one after the other, nothing kept."""
        salts = (f"alone {i}" for i in itertools.count())
        return [
            [numbers for i in range(probe.n_questions) for numbers in probe.ask(engine, [i], next(salts), threads)()]
            for probe in self.probes
        ]


def run(engines: Engines, work: InvarianceWork, watch: Watch) -> InvarianceReport:
    """The report says how many answers differ; nothing is raised where some do."""
    mode = engines["mode"]
    settings = {**asdict(work.effort), "n_state": work.n_state, **mode.describe()}
    report = InvarianceReport(mode.name, machine.describe(mode.settings.threads or 1), settings, work.n_loads)
    levels = Level.all(mode.shape.vocab_size, work.n_state, work.seed)
    n_parts = len(levels) * work.n_loads + len(work.shapes)
    compared = (_compared(report, level, engines, work, watch) for level in levels)
    parts = itertools.chain(*compared, _timed(report, engines, work, watch))
    for n_done, _ in enumerate(parts, 1):
        watch.save(report)
        watch.done(n_done / n_parts)
    return report


def _compared(
    report: InvarianceReport, level: Level, engines: Engines, work: InvarianceWork, watch: Watch
) -> Iterator[None]:
    """One load after the other, on each engine."""
    tallies = report.tallies[level.name] = {name: BitTally() for name in engines}
    with ThreadPoolExecutor(_N_THREADS) as threads:
        watch.step(f"{level.name} alone")
        alone = {name: level.alone(engine, threads) for name, engine in engines.items()}
        for number in range(work.n_loads):
            load = RandomLoad.draw(number, work.seed, level.probes, level.stranger)
            for name, engine in engines.items():
                watch.step(f"{level.name}, load {number + 1}, {name}: {report.n_faults} differ in the mode")
                _compare(load, engine, alone[name], tallies[name], threads)
            yield


def _compare(load: RandomLoad, engine: Engine, alone: list[list[Numbers]], tally: BitTally, threads: Executor) -> None:
    """Run a load on an engine of its own, which has kept nothing."""
    settings = replace(engine.settings, max_round_tokens=load.max_round_tokens)
    with Engine(engine.name, engine.model, engine.decider, settings) as fresh:
        for ask, found in load.run(fresh, threads):
            for question, numbers in zip(ask.chosen, found, strict=True):
                tally.take(load, ask.number, question, alone[ask.number][question], numbers)


def _timed(report: InvarianceReport, engines: Engines, work: InvarianceWork, watch: Watch) -> Iterator[None]:
    for shape in work.shapes:
        report.rows.append(cost(engines, shape, work.effort, watch))
        yield


def cost(engines: Engines, shape: DecisionShape, effort: Effort, watch: Watch) -> Row:
    """The same trees through both engines by turns; each has ids of its own, so that nothing is kept of them."""
    rng, row = random.Random(f"{effort.seed} {shape}"), Row(str(shape))  # noqa: S311
    n_vocab = engines["mode"].shape.vocab_size
    columns = sorted(rng.sample(range(n_vocab), _N_COLUMNS))
    order = interleave(dict.fromkeys(engines, effort.repeats))
    prompts = [Prompt.draw(shape, rng, n_vocab) for _ in range(effort.repeats + 1)]
    n_run = dict.fromkeys(engines, 0)
    for name in [*engines, *order]:  # the first of each warms up, untimed
        watch.step(f"{shape} {name}")
        tree = prompts[n_run[name]].tree(columns)
        started = time.perf_counter()
        engines[name].submit(tree).result()
        ms = (time.perf_counter() - started) * 1e3
        if n_run[name]:
            row.add(name, ms)
        n_run[name] += 1
    return row
