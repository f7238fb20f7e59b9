"""What the benches share on a terminal: the line that says what runs, and the file and the tables at the end."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ramet.cli.files import NewFile
from ramet.cli.ranges import Count, Finite

if TYPE_CHECKING:
    from ramet.bench.core.document import Document, Watch

WIDTH = 120  # where the output is no terminal
F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    return click.option(
        "--json",
        "json_path",
        type=NewFile(),
        help="Write every sample to this file.",
    )(command)


def repeats_option(text: str) -> Callable[[F], F]:
    """`text` says what is repeated."""
    return click.option("--repeats", type=Count(), default=10, show_default=True, help=text)


def budget_option(text: str) -> Callable[[F], F]:
    """`text` says what takes so many seconds."""
    return click.option(
        "--budget",
        "budget_s",
        type=Finite(min=0),
        default=20.0,
        show_default=True,
        help=f"Seconds of a contestant at {text}: a slow one runs less often, but twice.",
    )


def plot_option(text: str) -> Callable[[F], F]:
    """`text` says what is drawn."""
    return click.option(
        "--plot",
        "plot_path",
        type=NewFile(".svg", ".png", ".pdf"),
        help=f"{text}: .svg, .png or .pdf. Needs matplotlib.",
    )


def drawer(module: str) -> Any:
    """A plot's function, `draw` of a module, imported before the run, which takes minutes."""
    try:
        return importlib.import_module(module).draw
    except ImportError as error:
        raise click.UsageError('--plot needs matplotlib: pip install "ramet[plot]"') from error


@contextmanager
def watched(json_path: Path | None) -> Iterator[Watch]:
    """A line on stderr, in a terminal only, that says what runs; and the document written as it grows."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from ramet.bench.core.document import Watch

    what = (SpinnerColumn(), TextColumn("{task.description}"))
    columns = (*what, BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=None)

        def save(document: Document) -> None:
            if json_path is not None:
                document.write(json_path)

        yield Watch(
            step=lambda text: progress.update(task, description=text),
            done=lambda part: progress.update(task, completed=part, total=1.0),
            save=save,
        )


def printed(found: Document) -> None:
    """What was measured, on what, and its tables, on stdout."""
    from rich.console import Console

    from ramet.bench.core.table import facts

    console = Console()
    if not console.is_terminal:
        console.width = WIDTH
    console.print(facts(found.about()), *found.tables())
