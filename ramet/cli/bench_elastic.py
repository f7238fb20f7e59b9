"""`ramet bench elastic`: what chunks of a chosen size are worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ramet.cli import options
from ramet.cli.bench_reads import Numbers
from ramet.cli.bench_watch import drawer, json_option, printed, repeats_option, watched
from ramet.cli.files import OldFile
from ramet.cli.ranges import Count, Finite
from ramet.machine import allowance

SHAPES = ("sdar-8b", "sdar-1.7b", "llada2-mini", "sdar-tiny", "llada2-tiny")
_BATCHES = "1,2,4,8,16,32,64,128,256"
_ENGINE = ("device", "dtype", "threads", "max_round_tokens", "ops")
PARTS = ("steps", "loads", "traces", "simulation")
_SMALL_MODEL = "models/sprig-10m-b32"
# Options that do something in each of the three ways to call it, and with some parts alone.
_FROM = ("from_path", "json_path", "plot_path", "parts")
_QUICK = ("quick", "json_path", "seed", "model", "n_examples", "clients", "repeats", *_ENGINE)
_WHOLE = ("json_path", "seed", "shape", "batches", "n_prompt", "parts", "budget_min", "peer", *_ENGINE)
_SIMULATION = ("simulated_trace_s", "workers")


class Parts(click.ParamType[tuple[str, ...]]):
    """Some of PARTS, with commas between, or none. All need the first."""

    name = "PART,PART,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        parts = tuple(str(value).split(",")) if value != "none" else ()
        if not set(parts) <= set(PARTS):
            self.fail(f"{value!r} is neither none nor some of {', '.join(PARTS)}", param, ctx)
        return (PARTS[0], *parts) if parts and PARTS[0] not in parts else parts


@click.command("elastic")
@click.option(
    "--shape",
    type=click.Choice(SHAPES),
    default=SHAPES[0],
    show_default=True,
    help="Of the model, whose weights are random.",
)
@click.option("--batches", type=Numbers(1 << 16), default=_BATCHES, show_default=True, help="Replies at once.")
@click.option("--prompt", "n_prompt", type=Count(), default=256, show_default=True, help="Tokens of one.")
@click.option(
    "--parts",
    type=Parts(),
    default=",".join(PARTS),
    show_default=True,
    help="What is done besides steps of whole blocks, or none: steps in every mode, and three parts that need them.",
)
@click.option(
    "--budget",
    "budget_min",
    type=Finite(min=0.01),
    default=5.0,
    show_default=True,
    help="Minutes of the steps and loads that the engine runs.",
)
@click.option(
    "--trace",
    "trace_s",
    type=Finite(min=4),  # those show whether requests wait that come two seconds before its end
    default=10.0,
    show_default=True,
    help="Seconds of each of the ten traces that the engine runs.",
)
@click.option(
    "--simulated-trace",
    "simulated_trace_s",
    type=Finite(min=1),
    default=60.0,
    show_default=True,
    help="Seconds in which the requests of a simulated trace come.",
)
@click.option(
    "--from",
    "from_path",
    type=OldFile(),
    help="The JSON of a run, of which only the simulation is done, on any machine; with --parts none it is shown as "
    "it is.",
)
@click.option(
    "--peer",
    type=click.Choice(["lmdeploy", "none"]),
    default="none",
    show_default=True,
    help="Whose steps are timed by turns with ours, on the same weights, written to disk for it.",
)
@click.option(
    "--lmdeploy-python",
    type=OldFile(),
    help="The python of an environment that has LMDeploy.  [default: the one that runs Ramet]",
)
@click.option("--workers", type=Count(max=4096), help="Processes that simulate.  [default: all cores]")
@click.option(
    "--quick",
    is_flag=True,
    help="A small trained model instead: whether its answers stay the same, and clients that ask again at once.",
)
@click.option("--model", "-m", default=_SMALL_MODEL, show_default=True, help="Of --quick: a directory or a hub id.")
@click.option(
    "--examples",
    "n_examples",
    type=Count(),
    default=200,
    show_default=True,
    help="Of --quick: held-out examples that each mode answers.",
)
@click.option("--clients", type=Numbers(4096), default="1,2,4,8,16", show_default=True, help="Of --quick.")
@repeats_option("Of --quick: runs of each mode with so many clients.")
@click.option("--seed", default=0, show_default=True, help="Of ids, arrivals and commits.")
@json_option
@click.option(
    "--plot",
    "plot_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Draw pictures into this directory. Needs matplotlib.",
)
@options.some_engine_options(_ENGINE)
def elastic(json_path: Path | None, plot_path: Path | None, **given: Any) -> None:
    """Time chunks whose size is chosen beside fixed ones, whole blocks and a token a step.

    Weights are random, of the true shape; when a token is known comes from commit curves of seven data sets. Every row
    says what of it is simulated. With --quick everything is measured, on a small trained model.
    """
    from ramet.engine.settings import EngineSettings

    _check(given)
    own = options.given(given, _ENGINE)
    draw = None if plot_path is None else drawer("ramet.bench.elastic.plot")
    with watched(json_path) as watch:
        if given["from_path"] is not None:
            found = _simulated(given, watch)
        elif given["quick"]:
            found = _quick(own, given, watch)
        else:
            found = _whole(EngineSettings(**own).resolved(), given, watch)
    printed(found)
    if draw is not None:
        draw(found, plot_path)


def _check(given: dict[str, Any]) -> None:
    """Raises UsageError for an option that was given and would do nothing."""
    ctx = click.get_current_context()
    measures = options.is_given(ctx, "parts") and {"loads", "traces"} & set(given["parts"])
    if given["from_path"] is not None and measures:
        raise click.UsageError("--parts: with --from, by which nothing is measured, simulation or none")
    used, otherwise = _used(given)
    for param in ctx.command.params:
        assert param.name is not None
        if options.is_given(ctx, param.name) and param.name not in used:
            why = otherwise.get(param.name, otherwise[""])
            raise click.UsageError(f"{max(param.opts, key=len)} does nothing {why}: leave it out")


def _used(given: dict[str, Any]) -> tuple[set[str], dict[str, str]]:
    """Names of options that do something, and why others do nothing; "" for those that are not named."""
    parts = set(given["parts"])
    simulation = _SIMULATION if "simulation" in parts else ()
    if given["from_path"] is not None:
        return {*_FROM, *simulation}, {"": "with --from", **dict.fromkeys(_SIMULATION, "with --parts none")}
    if given["quick"]:
        return set(_QUICK), {"": "with --quick"}
    used = {*_WHOLE, *simulation}
    used |= {"trace_s"} if "traces" in parts else set()
    used |= {"plot_path"} if parts & {"traces", "simulation"} else set()
    used |= {"lmdeploy_python"} if given["peer"] == "lmdeploy" else set()
    return used, {
        "": "with these --parts", **dict.fromkeys(_QUICK, "without --quick"),
        "lmdeploy_python": "without --peer lmdeploy",
    }  # fmt: skip


def _whole(settings: Any, given: dict[str, Any], watch: Any) -> Any:
    from ramet.bench.elastic import run as bench

    work = bench.ElasticWork(
        batches=tuple(sorted(set(given["batches"]))), n_prompt=given["n_prompt"], parts=given["parts"],
        budget_s=60 * given["budget_min"], trace_s=given["trace_s"], simulation=_simulation(given), seed=given["seed"],
    )  # fmt: skip
    peer = given["peer"] == "lmdeploy"
    if peer and settings.device == "cpu":
        raise click.UsageError("--peer: LMDeploy runs on a GPU, so steps on --device cpu are not beside its own")
    if peer and settings.dtype != "bfloat16":
        raise click.UsageError("--peer: LMDeploy gets weights in bfloat16: leave --dtype out")
    return bench.run(given["shape"], settings, work, peer=peer, python=given["lmdeploy_python"], watch=watch)


def _simulation(given: dict[str, Any]) -> Any:
    from ramet.bench.elastic.simulation import Simulation

    workers = given["workers"] or allowance().n_threads
    return Simulation(trace_s=given["simulated_trace_s"], workers=workers)


def _simulated(given: dict[str, Any], watch: Any) -> Any:
    from ramet.bench.elastic.report import ElasticReport
    from ramet.errors import InvalidRequest

    path = given["from_path"]
    try:
        found = ElasticReport.from_json(json.loads(path.read_text()))
        if "simulation" in given["parts"]:
            _simulation(given).run(found, watch)
    except InvalidRequest as error:
        raise click.UsageError(f"--from: {path}: {error.message}") from error
    except ValueError as error:  # neither JSON nor text
        raise click.UsageError(f"--from: {path} is no JSON: {error}") from error
    except (KeyError, TypeError) as error:
        raise click.UsageError(f"--from: {path} is of another version of this bench: {error!r}") from error
    return found


def _quick(settings: dict[str, Any], given: dict[str, Any], watch: Any) -> Any:
    from ramet.bench.elastic import quick as bench

    work = bench.QuickWork(
        examples=given["n_examples"], clients=tuple(given["clients"]), repeats=given["repeats"], seed=given["seed"]
    )
    return bench.run(given["model"], settings, work, watch=watch)
