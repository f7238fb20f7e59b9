"""`ramet bench invariance`: whether an answer depends on the load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ramet import cli
from ramet.cli import options
from ramet.cli.bench_watch import json_option, printed, repeats_option, watched
from ramet.cli.ranges import Count


@click.command("invariance")
@options.model_option
@click.option("--loads", type=Count(0), default=200, show_default=True, help="Of trees, and as many of decisions.")
@click.option("--state-tokens", type=Count(), default=300, show_default=True, help="Most tokens of a state.")
@click.option("--shapes", help="STATExQUESTIONSxTOKENS of what is timed; commas between.  [default: 400 tokens]")
@repeats_option("Timed runs with and without the mode.")
@click.option("--seed", default=0, show_default=True, help="Of the requests and the loads.")
@json_option
@options.engine_options
def invariance(
    model: str, loads: int, state_tokens: int, shapes: str | None, json_path: Path | None, **given: Any
) -> None:
    """Draw random loads and count the answers whose bits differ from those that their question gets alone.

    With batch_invariant, where one such answer makes the command fail (exit code 1), and without; and time both. The
    model is loaded twice.
    """
    from ramet.bench.core.samples import Effort
    from ramet.bench.core.shapes import DecisionShape
    from ramet.bench.invariance import run as bench

    timed = [DecisionShape.parse(text, 3) for text in (shapes.split(",") if shapes else bench.SHAPES)]
    work = bench.InvarianceWork(loads, state_tokens, timed, Effort(repeats=given["repeats"], seed=given["seed"]))
    settings = options.given(given)
    with watched(json_path) as watch:
        watch.step(f"loading {model}")
        with (
            cli.load_engine(model, **settings | {"batch_invariant": True}) as mode,
            cli.load_engine(model, **settings | {"batch_invariant": False}) as plain,
        ):
            found = bench.run({"mode": mode, "plain": plain}, work, watch)
    printed(found)
    if found.n_faults:
        click.echo(f"{found.n_faults} answers differ in the mode", err=True)
        raise click.exceptions.Exit(1)
