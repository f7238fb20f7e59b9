"""Whether an answer's bits are those of its question asked alone, whatever shares its rounds, however its state was cut
or kept; with the batch-invariant mode, where every difference is a fault, and without, to compare."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace

from ramet.bench import machine
from ramet.bench.loads import Draw, Load
from ramet.bench.probes import DecisionProbe, Numbers, Probe, TreeProbe
from ramet.bench.samples import Effort, Row, interleave
from ramet.bench.shapes import Prompt, Shape
from ramet.bench.tallies import Invariance, Tally
from ramet.bench.watch import Watch
from ramet.engine.engine import Engine

SHAPES = ("400x1x60", "400x4x60", "400x48x40")
Engines = Mapping[str, Engine]  # "mode", with batch_invariant, and "plain", without
_N_PROBES, _N_THREADS, _N_COLUMNS = 12, 32, 4
_WORDS_A_TOKEN = 0.7


@dataclass(frozen=True, slots=True)
class Work:
    """`n_loads` at each level; states of up to n_state tokens; the `shapes` that are timed."""

    n_loads: int
    n_state: int
    shapes: Sequence[Shape]
    effort: Effort

    @property
    def seed(self) -> int:
        return self.effort.seed


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


def run(engines: Engines, work: Work, watch: Watch) -> Invariance:
    """The document tells how many answers differ; nothing is raised where some do."""
    mode = engines["mode"]
    facts = machine.describe(mode.settings.threads or 1)
    settings = {**asdict(work.effort), "n_state": work.n_state, **mode.describe()}
    found = Invariance(mode.name, facts, settings, work.n_loads)
    levels = Level.all(mode.shape.vocab_size, work.n_state, work.seed)
    n_parts = len(levels) * work.n_loads + len(work.shapes)
    drawn = (_drawn(found, level, engines, work, watch) for level in levels)
    parts = itertools.chain(*drawn, _timed(found, engines, work, watch))
    for n_done, _ in enumerate(parts, 1):
        watch.save(found)
        watch.done(n_done / n_parts)
    return found


def _drawn(found: Invariance, level: Level, engines: Engines, work: Work, watch: Watch) -> Iterator[None]:
    """One load after the other, on each engine."""
    tallies = found.tallies[level.name] = {name: Tally() for name in engines}
    with ThreadPoolExecutor(_N_THREADS) as threads:
        watch.step(f"{level.name} alone")
        alone = {name: level.alone(engine, threads) for name, engine in engines.items()}
        for number in range(work.n_loads):
            load = Load.draw(number, work.seed, level.probes, level.stranger)
            for name, engine in engines.items():
                watch.step(f"{level.name}, load {number + 1}, {name}: {found.n_faults} differ in the mode")
                _compare(load, engine, alone[name], tallies[name], threads)
            yield


def _compare(load: Load, engine: Engine, alone: list[list[Numbers]], tally: Tally, threads: Executor) -> None:
    """Run a load on an engine of its own, which has kept nothing."""
    settings = replace(engine.settings, max_round_tokens=load.max_round_tokens)
    with Engine(engine.name, engine.model, engine.decider, settings) as fresh:
        for ask, found in load.run(fresh, threads):
            for question, numbers in zip(ask.chosen, found, strict=True):
                tally.take(load, ask.number, question, alone[ask.number][question], numbers)


def _timed(found: Invariance, engines: Engines, work: Work, watch: Watch) -> Iterator[None]:
    for shape in work.shapes:
        found.rows.append(cost(engines, shape, work.effort, watch))
        yield


def cost(engines: Engines, shape: Shape, effort: Effort, watch: Watch) -> Row:
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
