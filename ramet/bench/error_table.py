"""The bench of errors as a table for people; the JSON has every question's."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from ramet.bench.error import Found


def table(found: Found) -> Table:
    """A line a side."""
    title = f"total variation from float32, {found.settings['questions']} questions"
    made = Table(title=title, caption="the mean and its standard error", box=SIMPLE)
    for head in ("", "mean", "99th percentile", "largest", "another likeliest label"):
        made.add_column(head, justify="right" if head else "left")
    for name, told in found.summaries().items():
        mean = f"{told['mean']:.5f} ± {told['standard_error']:.5f}"
        made.add_row(name, mean, f"{told['p99']:.4f}", f"{told['largest']:.4f}", f"{told['flips']:.0f}")
    return made
