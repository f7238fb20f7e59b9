"""A progress bar of rows with their rate and the time left, on stderr and in a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
from rich.text import Text


class RateColumn(ProgressColumn):
    """Rows a second, over the last seconds."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f} rows/s")


@contextmanager
def row_progress(n_done: int, n_rows: int) -> Iterator[Callable[[], None]]:
    """A function to call after each row."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), RateColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=n_rows, completed=n_done)
        yield lambda: progress.advance(task)
