"""`ramet calibrate`: temperatures and thresholds fitted to labelled rows, and checked on rows held out."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramet import cli
from ramet.cli import options
from ramet.cli.agree import PICTURES
from ramet.cli.files import NewFile, OldRows
from ramet.cli.ranges import Count, Finite

if TYPE_CHECKING:
    from ramet.calibrate.asking import Answered
    from ramet.calibrate.fit import Fit, HowToFit
    from ramet.calibrate.rows import LabelledRow
    from ramet.decide.calibration import CalibratedModel, Calibration
    from ramet.engine import Engine

LIBRARIES = {"sklearn": "scikit-learn", "scipy": "scipy"}


@click.command("calibrate")
@click.argument("rows_file", metavar="ROWS", type=OldRows())
@click.option("--output", "-o", required=True, type=NewFile(".json"), help="Where the calibration goes.")
@click.option("--plot", "plot_path", type=NewFile(*PICTURES), help="Draw its reliability: .png, .svg or .pdf.")
@click.option(
    "--precision", type=Finite(0, 1, min_open=True),
    help="Fit a threshold to each question: of the answers that reach it, this share is right.",
)  # fmt: skip
@click.option(
    "--recall", type=Finite(0, 1, min_open=True),
    help="Fit a threshold to each question: of the answers that are right, this share reaches it.",
)  # fmt: skip
@click.option("--per-question", is_flag=True, help="Fit a temperature to each question with 10 labels or more, too.")
@click.option(
    "--folds", type=click.IntRange(2, 10), default=5, show_default=True,
    help="Parts of the rows, each held out in turn.",
)  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of that split.")
@click.option(
    "--parallel", type=Count(max=1 << 16), default=16, show_default=True, help="Requests in flight at a time."
)
@options.model_option
@options.engine_options
@options.reading_options
def command(
    rows_file: Path,
    output: Path,
    plot_path: Path | None,
    precision: float | None,
    recall: float | None,
    per_question: bool,
    folds: int,
    seed: int,
    parallel: int,
    **given: Any,
) -> None:
    """Fit temperatures and thresholds to labelled rows, and check them on rows held out.

    Each line is a System One request, as `ramet run` takes it, with what is right as `gold`: an object of labels by
    question, as `ramet agree --gold` reads it. Lines without labels count for nothing. The model answers all of them at
    the temperature 1, and temperatures are fitted by type and number of options.

    Every figure is of rows that the fit had not seen: the rows are split in --folds parts, those about the same state
    and question never apart, and each part is judged by a fit to the others. What is written is the fit to all rows.
    """
    _check_options(rows_file, output, plot_path, precision, recall)
    from ramet.calibrate.decisions import LabelledDecisions
    from ramet.calibrate.fit import HowToFit
    from ramet.calibrate.rows import labelled_rows
    from ramet.calibrate.thresholds import Wish

    wish = None
    if precision is not None:
        wish = Wish("precision", precision)
    elif recall is not None:
        wish = Wish("recall", recall)
    fields = options.readout_fields({**dict.fromkeys(options.READOUT_FIELDS), "temperatures": (), **given})
    fields.pop("x_method", None)
    rows = labelled_rows(rows_file, fields)
    LabelledDecisions.of((row, None) for row in rows).check()
    with cli.load_engine(given["model"], calibration=False, **options.loaded(given)) as engine:
        _fit(engine, rows, HowToFit(folds, seed, per_question, wish), output, plot_path, parallel)


def _check_options(
    rows_file: Path, output: Path, plot_path: Path | None, precision: float | None, recall: float | None
) -> None:
    """Raises click.UsageError for what would fail, or harm the input, after all the work."""
    if precision is not None and recall is not None:
        raise click.UsageError("a threshold is fitted for --precision or for --recall, not for both")
    for flag, path in (("--output", output), ("--plot", plot_path)):
        if path is not None and path.exists() and path.samefile(rows_file):
            raise click.UsageError(f"{flag} would overwrite the input {path}")
    if plot_path is not None and os.path.realpath(plot_path) == os.path.realpath(output):
        raise click.UsageError("--output and --plot name the same file")
    missing = [package for name, package in LIBRARIES.items() if importlib.util.find_spec(name) is None]
    if missing:
        raise click.UsageError(f"this needs {' and '.join(missing)}: pip install 'ramet[calibrate]'")
    if plot_path is not None and importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'ramet[plot]'")


def _fit(
    engine: Engine, rows: list[LabelledRow], how: HowToFit, output: Path, plot_path: Path | None, n_parallel: int
) -> None:
    from ramet.agree.answer import KINDS
    from ramet.calibrate.decisions import LabelledDecisions
    from ramet.calibrate.fit import Fit
    from ramet.calibrate.written import calibration_of
    from ramet.decide.calibration import ReadAs

    method, reading = engine.decider.settings.method, ReadAs.of(rows[0].request)
    if rows[0].request.x_method not in (None, method):
        theirs = rows[0].request.x_method
        raise click.UsageError(f"the rows have x_method {theirs}, and the model is read by {method}: --method {theirs}")
    answered = _answered(engine, rows, n_parallel)
    decisions = LabelledDecisions.of(answered)
    own = {kind: getattr(engine.decider.settings.temperature, kind) for kind in KINDS}
    fit = Fit.of(decisions, own, how)
    calibration = calibration_of(fit, _model(engine), reading)
    _write(calibration, output)
    if plot_path is not None:
        from ramet.calibrate.plot import draw

        draw(fit, dict(calibration.quality), f"{engine.name}, {len(decisions)} held-out decisions", plot_path)
    _print(fit, calibration, [row.line for row, _ in answered])
    click.echo(f"written: {output}, {calibration.summary()}", err=True)


def _answered(engine: Engine, rows: list[LabelledRow], n_parallel: int) -> list[Answered]:
    """The rows that have answers; the others are said. Raises click.ClickException where none has."""
    import asyncio

    from ramet.calibrate.asking import ask
    from ramet.cli.progress import row_progress

    with row_progress(0, len(rows)) as advance:
        answered, failed = asyncio.run(ask(engine, rows, n_parallel, advance))
    if failed:
        first, error = failed[0]
        said = f"{len(failed)} of {len(rows)} rows have no answers, the first at line {first.line}: {error}"
        if not answered:
            raise click.UsageError(said)
        click.echo(f"left out: {said}", err=True)
    return answered


def _model(engine: Engine) -> CalibratedModel:
    from ramet.decide.calibration import CalibratedModel

    decider = engine.decider
    return CalibratedModel(
        name=engine.name,
        fingerprint=engine.model.fingerprint,
        method=decider.settings.method,
        asked=decider.asked,
    )


def _write(calibration: Calibration, path: Path) -> None:
    from ramet.files import replacing

    with replacing(path) as made:
        made.write_text(calibration.model_dump_json(indent=1) + "\n", encoding="utf-8")


def _print(fit: Fit, calibration: Calibration, lines: list[int]) -> None:
    from rich.console import Console

    from ramet.cli import calibrate_table

    console = Console()
    if not console.is_terminal:
        console.width = 160
    for part in calibrate_table.parts(fit, calibration, lines):
        console.print(part)
