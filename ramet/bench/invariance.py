"""Whether an answer's bits are those of its question asked alone, whatever shares its rounds, however its state was cut
or kept; with the batch-invariant mode, where every difference is a fault, and without, to compare."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from ramet.bench import machine
from ramet.bench.loads import Draw, Load
from ramet.bench.probes import DecisionProbe, Numbers, Probe, TreeProbe
from ramet.bench.report import Document
from ramet.bench.samples import Effort, JsonObject, Row, interleave
from ramet.bench.shapes import Prompt, Shape
from ramet.bench.watch import Watch
from ramet.engine.engine import Engine

SHAPES = ("400x1x60", "400x4x60", "400x48x40")
RATIO = (("mode", "plain", "mode_over_plain"),)
MAX_LISTED = 20
_N_PROBES, _N_THREADS, _N_COLUMNS = 12, 32, 4
_WORDS_A_TOKEN = 0.7


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the one of its question alone. `load` is drawn again from its number and the run's seed."""

    load: int
    max_round_tokens: int
    probe: int
    question: int
    largest: float


@dataclass(slots=True)
class Tally:
    """Answers compared, those with other bits, and the largest difference of a number: of logits and logsumexps at the
    level of trees, of probabilities at that of decisions. `listed` has the first of them."""

    answers: int = 0
    differ: int = 0
    largest: float = 0.0
    listed: list[Difference] = field(default_factory=list)

    def take(self, load: Load, probe: int, question: int, alone: Numbers, found: Numbers) -> None:
        self.answers += 1
        if alone.tobytes() == found.tobytes():
            return
        moved = float(np.abs(alone.astype(np.float64) - found).max())
        self.differ += 1
        self.largest = max(self.largest, moved)
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Difference(load.number, load.max_round_tokens, probe, question, moved))


@dataclass(slots=True)
class Invariance(Document):
    """tallies: level -> "mode" or "plain" -> what was found. rows: what rounds cost with and without the mode."""

    model: str
    machine: dict[str, str]
    settings: JsonObject
    n_loads: int = 0
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def n_faults(self) -> int:
        """Answers that differ in the mode."""
        return sum(tallies["mode"].differ for tallies in self.tallies.values())

    def as_json(self) -> JsonObject:
        levels = {level: {name: asdict(t) for name, t in tallies.items()} for level, tallies in self.tallies.items()}
        return {
            "bench": "invariance", "model": self.model, "machine": self.machine, "settings": self.settings,
            "loads": self.n_loads, "faults": self.n_faults, "levels": levels,
            "rows": [{**row.as_json(), **row.ratios(RATIO)} for row in self.rows],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Level:
    """Probes of one kind, and strangers beside them."""

    name: str
    probes: Sequence[Probe]
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


def run(engines: dict[str, Engine], n_loads: int, n_state: int, shapes: Sequence[Shape], effort: Effort, watch: Watch) -> Invariance:
    """`engines`: "mode", with batch_invariant, and "plain", without. n_loads at each level. The document tells how many
    answers differ; nothing is raised where some do."""
    mode = engines["mode"]
    found = Invariance(
        mode.name, machine.describe(mode.settings.threads or 1), {**asdict(effort), "n_state": n_state, **mode.describe()}
    )
    levels = Level.all(mode.shape.vocab_size, n_state, effort.seed)
    n_parts = len(levels) * len(engines) * n_loads + len(shapes)
    n_done = 0
    with ThreadPoolExecutor(_N_THREADS) as threads:
        for level in levels:
            found.tallies[level.name] = {name: Tally() for name in engines}
            watch.step(f"{level.name} alone")
            alone = {name: level.alone(engine, threads) for name, engine in engines.items()}
            for number in range(n_loads):
                load = Load.draw(number, effort.seed, level.probes, level.stranger)
                for name, engine in engines.items():
                    watch.step(f"{level.name}, load {number + 1}, {name}: {found.n_faults} differ in the mode")
                    _compare(load, engine, alone[name], found.tallies[level.name][name], threads)
                    n_done += 1
                    watch.done(n_done / n_parts)
                found.n_loads = number + 1
                watch.save(found)
    for shape in shapes:
        found.rows.append(cost(engines, shape, effort, watch))
        n_done += 1
        watch.done(n_done / n_parts)
        watch.save(found)
    return found


def _compare(load: Load, engine: Engine, alone: list[list[Numbers]], tally: Tally, threads: Executor) -> None:
    """Run a load on an engine of its own, which has kept nothing."""
    settings = replace(engine.settings, max_round_tokens=load.max_round_tokens)
    with Engine(engine.name, engine.model, engine.decider, settings) as fresh:
        for ask, found in load.run(fresh, threads):
            for question, numbers in zip(ask.chosen, found, strict=True):
                tally.take(load, ask.number, question, alone[ask.number][question], numbers)


def cost(engines: dict[str, Engine], shape: Shape, effort: Effort, watch: Watch) -> Row:
    """The same trees through both engines by turns; each has ids of its own, so that nothing is kept of them."""
    rng, row = random.Random(f"{effort.seed} {shape}"), Row(str(shape))  # noqa: S311
    n_vocab = engines["mode"].shape.vocab_size
    columns = sorted(rng.sample(range(n_vocab), _N_COLUMNS))
    order = interleave(dict.fromkeys(engines, effort.repeats))
    prompts = [Prompt.draw(shape, rng, n_vocab) for _ in range(effort.repeats + 1)]
    asked = dict.fromkeys(engines, 0)
    for name in [*engines, *order]:  # the first of each warms up, untimed
        watch.step(f"{shape} {name}")
        tree = prompts[asked[name]].tree(columns)
        started = time.perf_counter()
        engines[name].submit(tree).result()
        ms = (time.perf_counter() - started) * 1e3
        if asked[name]:
            row.add(name, ms)
        asked[name] += 1
    return row
