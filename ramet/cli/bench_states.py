"""`ramet bench states`: what a step of a growing state costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ramet import cli
from ramet.cli import options
from ramet.cli.bench_watch import drawer, json_option, plot_option, printed, watched
from ramet.cli.ranges import Count


@click.command("states")
@options.model_option
@click.option("--trajectories", type=Count(), default=30, show_default=True, help="Agents.")
@click.option("--steps", type=Count(2), default=20, show_default=True, help="Requests of each.")
@click.option("--questions", type=Count(), default=4, show_default=True, help="Of each request.")
@click.option("--words", type=Count(4), default=40, show_default=True, help="By which a history grows in a step.")
@click.option("--tail", type=Count(0), default=0, show_default=True, help="Words at its end that each step replaces.")
@click.option(
    "--fresh-every",
    type=Count(),
    default=4,
    show_default=True,
    help="Ask every so many steps once more where nothing is kept.",
)
@click.option(
    "--small-cache-bytes",
    type=Count(),
    help="The budget of the second part.  [default: a third of what the first kept]",
)
@click.option("--seed", default=0, show_default=True, help="Of the texts.")
@json_option
@plot_option("Draw milliseconds and bytes against history")
@options.engine_options
def states(json_path: Path | None, plot_path: Path | None, model: str, **given: Any) -> None:
    """Ask about states that grow, step by step, and compare with states that are computed anew.

    Then all over again under a budget that does not hold them. In float32 the run fails when an answer moves by more
    than 1e-4.
    """
    from ramet.bench.states import run as bench
    from ramet.bench.states.history import Growth

    work = bench.StatesWork(
        given["trajectories"], given["steps"], given["questions"], Growth(given["words"], given["tail"]),
        given["fresh_every"], given["small_cache_bytes"], given["seed"],
    )  # fmt: skip
    draw = None if plot_path is None else drawer("ramet.bench.states.plot")
    with watched(json_path) as watch:
        watch.step(f"loading {model}")
        with cli.load_engine(model, **options.given(given)) as engine:
            found = bench.run(engine, work, watch)
            dtype, same_bits = engine.model.dtype, engine.settings.batch_invariant
    printed(found)
    if draw is not None:
        draw(found, plot_path)
    bench.check(found, dtype, same_bits=same_bits)
