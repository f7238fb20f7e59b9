"""`ramet bench quality`: how well a model answers labelled questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ramet import cli
from ramet.cli import options
from ramet.cli.bench_watch import json_option, printed, watched
from ramet.cli.ranges import Count

SETS = ("topics", "facts", "injection")


@click.command("quality")
@options.model_option
@click.option(
    "--sets", default=",".join(SETS), show_default=True, help=f"Some of {', '.join(SETS)}; commas between them."
)
@click.option(
    "--as",
    "readings",
    default="own,letters,options",
    show_default=True,
    help="Ways to read: own, as the model is read by itself, or METHOD[:ORDERS[:PRIOR]]; commas between them.",
)
@click.option("--items", type=Count(10, 300), default=300, show_default=True, help="Of each set.")
@click.option(
    "--half",
    type=click.Choice(["all", "choose", "report"]),
    default="all",
    show_default=True,
    help="All items, or the half by which settings are chosen, or the other.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder with clones of the sets' repositories, as OWNER/NAME.  [default: fetched once]",
)
@json_option
@options.calibration_option
@options.engine_options
def quality(
    model: str,
    sets: str,
    readings: str,
    items: int,
    half: str,
    data: Path | None,
    json_path: Path | None,
    **given: Any,
) -> None:
    """Ask a model labelled questions about topics, facts and planted instructions, and say how good the answers are.

    Texts of topics are CLINC150's and BANKING77's, those of planted instructions BIPIA's: they are fetched from their
    repositories by commit and hash, or read from --data. docs/quality.md explains the figures.
    """
    from ramet.bench.quality import run as bench
    from ramet.bench.quality.readings import QuestionReading

    chosen = [QuestionReading.parse(text.strip()) for text in readings.split(",")]
    found_sets = _sets([name.strip() for name in sets.split(",")], data, items, half)
    with watched(json_path) as watch:
        watch.step(f"loading {model}")
        with cli.load_engine(model, **options.loaded(given)) as engine:
            found = bench.run(engine, found_sets, chosen, watch)
    printed(found)


def _sets(names: list[str], data: Path | None, n: int, half: str) -> list[Any]:
    from ramet.bench.quality.facts import facts
    from ramet.bench.quality.injection import injection
    from ramet.bench.quality.sources import Sources
    from ramet.bench.quality.topics import topics

    sources = Sources(data)
    makers = {
        "topics": lambda: topics(sources, n),
        "facts": lambda: facts(n),
        "injection": lambda: injection(sources, n),
    }
    if unknown := [name for name in names if name not in makers]:
        raise click.UsageError(f"--sets: {unknown[0]!r} is none of {', '.join(SETS)}")
    return [makers[name]().half(half) for name in names]
