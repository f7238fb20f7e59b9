"""Whether an answer's bits are those of its question asked alone, whatever shares its rounds, however its state was cut
or kept; with the batch-invariant mode, where every difference is a fault, and without, to compare."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar

import numpy as np
from rich.table import Table

from ramet.bench.core import machine
from ramet.bench.core.document import Document, Watch
from ramet.bench.core.samples import Effort, JsonObject, Row
from ramet.bench.core.shapes import DecisionShape, Prompt
from ramet.bench.core.table import table
from ramet.bench.core.timing import clocked
from ramet.bench.invariance.probes import DecisionProbe, Numbers, Probe, RandomLoad, TreeProbe
from ramet.engine.engine import Engine

RATIO = (("mode", "plain", "mode_over_plain"),)
MAX_LISTED = 20
_NAMES = {"mode": "batch-invariant", "plain": "without"}


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the one of its question alone. `load` is drawn again from its number and the run's seed."""

    load: int
    max_round_tokens: int
    probe: int
    question: int
    largest: float


@dataclass(slots=True)
class BitTally:
    """Answers compared, those with other bits, and the largest difference of a number: of logits and logsumexps at the
    level of trees, of probabilities at that of decisions. `listed` has the first of them."""

    answers: int = 0
    differ: int = 0
    largest: float = 0.0
    listed: list[Difference] = field(default_factory=list)

    def take(self, load: RandomLoad, probe: int, question: int, alone: Numbers, found: Numbers) -> None:
        self.answers += 1
        if alone.tobytes() == found.tobytes():
            return
        moved = float(np.abs(alone.astype(np.float64) - found).max())
        self.differ += 1
        self.largest = max(self.largest, moved)
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Difference(load.number, load.max_round_tokens, probe, question, moved))


@dataclass(slots=True)
class InvarianceReport(Document):
    """tallies: level -> "mode" or "plain" -> what was found. rows: what rounds cost with and without the mode."""

    bench: ClassVar[str] = "invariance"
    n_loads: int
    tallies: dict[str, dict[str, BitTally]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def n_faults(self) -> int:
        """Answers that differ in the mode."""
        return sum(tallies["mode"].differ for tallies in self.tallies.values())

    def found(self) -> JsonObject:
        levels = {level: {name: asdict(t) for name, t in tallies.items()} for level, tallies in self.tallies.items()}
        rows = [{**row.as_json(), **row.ratios(RATIO)} for row in self.rows]
        return {"loads": self.n_loads, "faults": self.n_faults, "levels": levels, "rows": rows}

    def tables(self) -> Iterator[Table]:
        """How many answers differ, which, and what the mode costs."""
        document = self.found()
        levels = document["levels"].items()
        tallies = [{"level": level, "mode": _NAMES[name], **own[name]} for level, own in levels for name in own]
        columns = "level, mode, answers, differ!, largest difference=largest:.2g"
        yield table(f"answers with other bits than alone, {self.n_loads} loads", columns, tallies)
        if self.n_faults:
            columns = "level, load, tokens a round=max_round_tokens, probe, question, difference=largest:.2g"
            faults = [{"level": level, **each} for level, own in levels for each in own["mode"]["listed"]]
            yield table("the first that differ in the mode", columns, faults)
        if self.rows:
            columns = "shape, batch-invariant=ms.mode.median:ms, without=ms.plain.median:ms, ratio=mode_over_plain:.2f"
            yield table("what the mode costs, ms", columns, document["rows"], "medians of runs by turns")


SHAPES = ("400x1x60", "400x4x60", "400x48x40")
Engines = Mapping[str, Engine]  # "mode", with batch_invariant, and "plain", without
_N_PROBES = 12
_N_THREADS = 32
_N_COLUMNS = 4
_WORDS_A_TOKEN = 0.7


@dataclass(frozen=True, slots=True)
class InvarianceWork:
    """`n_loads` at each level; states of up to n_state tokens; the `shapes` that are timed."""

    n_loads: int
    n_state: int
    shapes: Sequence[DecisionShape]
    effort: Effort


@dataclass(frozen=True, slots=True)
class Level:
    """Probes of one kind, and strangers beside them."""

    name: str
    probes: Sequence[Probe]
    stranger: Callable[[random.Random], Probe]

    @classmethod
    def all(cls, n_vocab: int, n_state: int, seed: int) -> list[Level]:
        """Trees of ids and decisions about words; states of up to n_state tokens."""
        rng = random.Random(f"{seed} probes")  # noqa: S311
        draws: dict[str, Callable[[random.Random], Probe]] = {
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
    levels = Level.all(mode.shape.vocab_size, work.n_state, work.effort.seed)
    n_parts = len(levels) * work.n_loads + len(work.shapes)
    for n_done, _ in enumerate(_parts(report, levels, engines, work, watch), 1):
        watch.passed(report, n_done / n_parts)
    return report


def _parts(
    report: InvarianceReport, levels: Sequence[Level], engines: Engines, work: InvarianceWork, watch: Watch
) -> Iterator[None]:
    for level in levels:
        yield from _compared(report, level, engines, work, watch)
    for shape in work.shapes:
        report.rows.append(cost(engines, shape, work.effort, watch))
        yield


def _compared(
    report: InvarianceReport, level: Level, engines: Engines, work: InvarianceWork, watch: Watch
) -> Iterator[None]:
    """One load after the other, on each engine."""
    tallies = report.tallies[level.name] = {name: BitTally() for name in engines}
    with ThreadPoolExecutor(_N_THREADS) as threads:
        watch.step(f"{level.name} alone")
        alone = {name: level.alone(engine, threads) for name, engine in engines.items()}
        for number in range(work.n_loads):
            load = RandomLoad.draw(number, work.effort.seed, level.probes, level.stranger)
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


def cost(engines: Engines, shape: DecisionShape, effort: Effort, watch: Watch) -> Row:
    """The same trees through both engines by turns; each has ids of its own, so that nothing is kept of them."""
    rng = random.Random(f"{effort.seed} {shape}")  # noqa: S311
    n_vocab = engines["mode"].shape.vocab_size
    columns = sorted(rng.sample(range(n_vocab), _N_COLUMNS))
    trees = [Prompt.draw(shape, rng, n_vocab).tree(columns) for _ in range(effort.repeats + 1)]
    left = {name: iter(trees) for name in engines}

    def turn(name: str) -> float:
        return clocked(lambda: engines[name].submit(next(left[name])).result())[0]

    for name in engines:
        watch.step(f"{shape}: {name} warms up")
        turn(name)
    row = Row(str(shape))
    row.take_turns(dict.fromkeys(engines, effort.repeats), turn, watch.step)
    return row
