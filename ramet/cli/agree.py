"""`ramet agree`: two runs of the same rows, compared."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ramet.cli.files import NewFile, OldRows
from ramet.cli.ranges import Count, Finite

if TYPE_CHECKING:
    from rich.progress import TaskID

    from ramet.agree.report import Report
    from ramet.rows.text import Advance

PICTURES = (".png", ".svg", ".pdf")

_input = OldRows()


@click.command("agree")
@click.argument("first", metavar="A", type=_input)
@click.argument("second", metavar="B", type=_input)
@click.option("--gold", "gold_path", type=_input, help="Rows with what is right: an `id`, and `gold` by question.")
@click.option(
    "--threshold", type=Finite(0, 1, min_open=True), default=0.5, show_default=True,
    help="Count the decisions in which an option reaches it on one side only.",
)  # fmt: skip
@click.option(
    "--by", type=click.Choice(["id", "line"]), default="id", show_default=True,
    help="What rows are matched by; those without an id by their place in the input.",
)  # fmt: skip
@click.option(
    "--limit", type=Count(0), default=20, show_default=True,
    help="Most entries of each list that is printed.",
)  # fmt: skip
@click.option("--json", "json_path", type=NewFile(), help="Write every decision and figure to this file.")
@click.option("--plot", "plot_path", type=NewFile(*PICTURES), help="Draw them: .png, .svg or .pdf.")
@click.option(
    "--fail-under", type=Finite(0, 1), metavar="SHARE",
    help="Exit with 1 if the agreement is below, or a row is answered in one file only.",
)  # fmt: skip
def command(
    first: Path,
    second: Path,
    gold_path: Path | None,
    threshold: float,
    by: str,
    limit: int,
    json_path: Path | None,
    plot_path: Path | None,
    fail_under: float | None,
) -> None:
    """Compare two runs of the same rows.

    Both files are outputs of `ramet run`, of two builds, machines, precisions or settings, in any
    of its forms. Prints what the runs differ in, how often their likeliest options are equal, how
    far probabilities moved, which decisions changed, and with --gold which side is right more often;
    of replies how many are equal, for how long, and how far log-probabilities moved; and every row
    that could not be compared.
    """
    _check_outputs([first, second, *filter(None, [gold_path])], json_path, plot_path)
    report = _report(first, second, gold_path, threshold, by_line=by == "line")
    if plot_path is not None and report.all is None:
        raise click.UsageError("--plot draws decisions, and these runs have replies alone")
    if json_path is not None:
        report.write(json_path)
    if plot_path is not None:
        from ramet.agree.plot import draw

        draw(report, plot_path)
    _print(report, limit)
    if fail_under is not None:
        _judge(report, fail_under)


def _check_outputs(inputs: list[Path], json_path: Path | None, plot_path: Path | None) -> None:
    """Raises click.UsageError for what would fail, or harm an input, after all the work."""
    for flag, path in (("--json", json_path), ("--plot", plot_path)):
        if path is None:
            continue
        if path.exists() and any(path.samefile(given) for given in inputs):
            raise click.UsageError(f"{flag} would overwrite the input {path}")
    if plot_path is None:
        return
    if json_path is not None and os.path.realpath(json_path) == os.path.realpath(plot_path):
        raise click.UsageError("--json and --plot name the same file")
    if importlib.util.find_spec("matplotlib") is None:
        raise click.UsageError("--plot needs matplotlib: pip install 'ramet[plot]'")


def _report(first: Path, second: Path, gold_path: Path | None, threshold: float, *, by_line: bool) -> Report:
    from ramet.agree.gold import read_gold
    from ramet.agree.pairs import pair
    from ramet.agree.report import Report
    from ramet.agree.run import read_run

    with _watch() as (reading, step):
        a, b = (read_run(path, reading(path), by_line=by_line) for path in (first, second))
        gold = None if gold_path is None else read_gold(gold_path, reading(gold_path), by_line=by_line)
        step("matching")
        pairs = pair(a, b, gold, by_line=by_line)
        return Report.of(a, b, gold, pairs, threshold, lambda name: step(f"measuring: {name}"))


@contextmanager
def _watch() -> Iterator[tuple[Callable[[Path], Advance], Callable[[str], None]]]:
    """Two functions: one gives what moves a file's bar by the bytes read; one says what goes on then."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        last: list[TaskID] = []

        def reading(path: Path) -> Advance:
            task = progress.add_task(escape(path.name), total=path.stat().st_size)
            return lambda n_bytes: progress.advance(task, n_bytes)

        def step(text: str) -> None:
            """In place of what went on before."""
            while last:
                progress.remove_task(last.pop())
            last.append(progress.add_task(escape(text), total=None))

        yield reading, step


def _print(report: Report, limit: int) -> None:
    from rich.console import Console

    from ramet.cli import agree_table

    console = Console()
    if not console.is_terminal:
        console.width = 160
    for part in agree_table.parts(report, limit):
        console.print(part)


def _judge(report: Report, least: float) -> None:
    """Exits with 1 below `least`. A row with one answer fails too: what is not compared would pass unseen."""
    agreement, n_one_sided = report.agreement, report.pairs.n_one_sided
    if agreement.share < least:
        click.echo(f"agreement {agreement.share:.6g} is below {least:g}", err=True)
    if n_one_sided:
        click.echo(f"{n_one_sided} rows are answered in one file only", err=True)
    if n_one_sided or agreement.share < least:
        raise click.exceptions.Exit(1)
