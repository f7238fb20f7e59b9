"""The bench of growing states as tables for people; the JSON has every step."""

from __future__ import annotations

from collections.abc import Iterator

from rich.box import SIMPLE
from rich.table import Table

from ramet.bench.steps import Steps
from ramet.bench.table import short


def parts(found: Steps) -> Iterator[Table]:
    """Milliseconds by history, and what all steps together say."""
    yield costs(found)
    yield facts(found)


def costs(found: Steps) -> Table:
    """A line for steps of about equal history; medians."""
    caption = "medians; tokens of the request; ms of it, and of its passes alone"
    table = Table(title="a step of a growing state", caption=caption, box=SIMPLE)
    for head in ("history", "steps", "tokens", "computed", "resumed", "passes", "fresh", "passes", "fresh / resumed"):
        table.add_column(head, justify="right")
    for b in found.buckets():
        fresh = ["-", "-", "-"]
        if b.fresh_ms is not None and b.fresh_pass_ms is not None:
            fresh = [short(b.fresh_ms), short(b.fresh_pass_ms), f"{b.fresh_ms / b.resumed_ms:.1f}"]
        table.add_row(
            f"{b.n_history:.0f}", str(b.n_steps), f"{b.n_tokens:.0f}", f"{b.n_computed:.0f}",
            f"[bold]{short(b.resumed_ms)}[/]", short(b.resumed_pass_ms), *fresh,
        )  # fmt: skip
    return table


def facts(found: Steps) -> Table:
    """Differences, bytes, and the second part."""
    table = Table.grid(padding=(0, 2))
    last = found.steps[-1]
    lines = {
        "resumed against fresh": _moved(found.difference),
        "kept": f"{_mib(last.bytes)} of {last.n_seen} tokens: {found.bytes_per_token:.0f} bytes each, "
        f"within {found.nonlinearity:.1%} of a line",
        "of which": f"{found.row_bytes} bytes are a token's keys and values; a recurrent state has {found.state_bytes}",
        "had to leave": f"{found.evicted} pages and states of a budget of {_mib(found.capacity)}",
    }
    if found.squeezed is not None:
        s = found.squeezed
        lines["small budget"] = (
            f"{_mib(s.cache_bytes)}, {s.n_steps} steps: {s.evicted_pages} pages and {s.evicted_states} states had to "
            f"leave, {s.cached:.0%} of the tokens were kept; {_moved(s.difference)}"
        )
    for name, text in lines.items():
        table.add_row(f"[dim]{name}[/]", text)
    return table


def _moved(difference: float | None) -> str:
    return "not compared" if difference is None else f"largest difference of a probability {difference:.2g}"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"
