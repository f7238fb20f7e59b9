"""`ramet bench error`: how far probabilities are from float32's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ramet.cli import options
from ramet.cli.bench_reads import SHAPES
from ramet.cli.bench_watch import json_option, printed, watched
from ramet.cli.ranges import Count

_ENGINE = ("device", "dtype", "threads", "max_round_tokens", "batch_invariant", "ops")


@click.command("error")
@options.model_option
@click.option(
    "--shape", type=click.Choice(SHAPES), help="Instead of a model: DiffusionGemma of this shape with random weights."
)
@click.option("--questions", type=Count(2), default=736, show_default=True, help="How many.")
@click.option(
    "--peer", type=click.Choice(["flide", "none"]), default="none", show_default=True, help="On the same token ids."
)
@click.option("--seed", default=0, show_default=True, help="Of the questions.")
@json_option
@options.some_engine_options(_ENGINE)
def error(
    model: str, shape: str | None, questions: int, peer: str, seed: int, json_path: Path | None, **given: Any
) -> None:
    """Ask random questions in the dtype that is served and in float32, and show how far apart the answers are.

    The error of a question is the total variation between its two distributions over four labels: half the sum of the
    differences of their probabilities. The model is loaded twice, one after the other.
    """
    from ramet.bench.error import run as bench
    from ramet.engine.settings import EngineSettings

    if shape is not None and peer != "none":
        raise click.UsageError("--peer runs beside --model alone: it reads no canvases")
    settings = EngineSettings(**options.given(given, _ENGINE)).resolved()
    with watched(json_path) as watch:
        if shape is not None:
            found = bench.of_shape(shape, settings, questions, seed, watch)
        else:
            found = bench.of_checkpoint(model, settings, questions, seed, watch, with_flide=peer == "flide")
    printed(found)
