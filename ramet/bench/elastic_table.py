"""The bench of elastic decoding as tables for people; the JSON has every sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from ramet.bench.elastic_found import Found
from ramet.bench.samples import JsonObject
from ramet.bench.table import short


def parts(found: Found) -> Iterator[Table]:
    """What was measured, then what was simulated over it."""
    if found.whole:
        yield whole(found)
    if found.loads:
        yield loads(found)
    if found.cells:
        yield cells(found)
        yield summary(found)
    if found.capacities:
        yield capacities(found)
    if found.traces:
        yield traces(found)
    if found.quality:
        yield quality(found)
    if found.clients:
        yield clients(found)


def whole(found: Found) -> Table:
    """Steps of whole blocks."""
    peer = found.peer is not None
    heads = ["replies", "rows", "a step", "floor", "/ floor", "floor, rows read", "/ it"]
    heads += [str(found.peer["name"]), "/ ours"] if found.peer else []
    caption = "ms, medians; floor: memory read once, or the arithmetic of every row, whichever takes longer"
    table = _table("steps of whole blocks, measured", caption, heads)
    for row in _rows(found.whole):
        cells = [row["batch"], f"{row['rows']:.0f}", _bold(short(row["ms"])), short(row["floor_ms"])]
        cells += [f"{row['over_floor']:.2f}", short(row["floor_read_ms"]), f"{row['over_floor_read']:.2f}"]
        if peer:
            theirs = "peer_ms" in row  # a run may have ended before it was their turn
            cells += [short(row["peer_ms"]), f"{row['peer_over_ours']:.2f}"] if theirs else ["-", "-"]
        table.add_row(*map(str, cells))
    return table


def loads(found: Found) -> Table:
    """Decoding as the engine did it."""
    modes = list(dict.fromkeys(row["mode"] for row in _rows(found.loads)))
    heads = ["data set", "replies", *modes, "rows of auto"]
    table = _table("decoding by the engine, simulated commits", "tokens a second; measured steps", heads)
    for name, batch in dict.fromkeys((row["dataset"], row["batch"]) for row in _rows(found.loads)):
        own = {r["mode"]: r for r in _rows(found.loads) if (r["dataset"], r["batch"]) == (name, batch)}
        rates = [f"{own[mode]['tokens_s']:.0f}" if mode in own else "-" for mode in modes]
        table.add_row(name, str(batch), *rates, f"{own['auto']['rows']:.0f}" if "auto" in own else "-")
    return table


def cells(found: Found) -> Table:
    """Every data set and batch."""
    peer = any("peer_tokens_s" in row for row in found.cells)
    heads = ["data set", "replies", "auto", "chunk", "best fixed", "/ it", "/ block", "/ next", "/ bound"]
    heads += ["/ peer"] * peer
    caption = "auto: tokens a second, and over the others'; simulated over measured times"
    table = _table("decoding, simulated commits", caption, heads)
    for row in _rows(found.cells):
        ratios = [f"{row[key]:.2f}" for key in ("auto_over_best_fixed", "auto_over_block", "auto_over_next")]
        cells = [row["dataset"], str(row["batch"]), _bold(f"{row['tokens_s']['auto']:.0f}"), f"{row['size']:.1f}"]
        cells += [str(row["best_fixed"]), *ratios, f"{row['auto_over_bound']:.2f}"]
        cells += [f"{row['auto_over_peer']:.2f}" if "auto_over_peer" in row else "-"] * peer
        table.add_row(*cells)
    return table


def summary(found: Found) -> Table:
    table = _table("auto over the others, simulated commits", "geometric means", ["over", "all", "least"])
    ratios: dict[str, Any] = {name: value for name, value in found.summary.items() if isinstance(value, dict)}
    batches = list(next(iter(ratios.values()))["by_batch"]) if ratios else []
    for batch in batches:
        table.add_column(batch, justify="right")
    for name, value in ratios.items():
        by_batch = [f"{value['by_batch'][n]:.2f}" if n in value["by_batch"] else "-" for n in batches]
        over = name.removeprefix("auto_over_").replace("_", " ")
        table.add_row(over, _bold(f"{value['geometric_mean']:.2f}"), f"{value['least']:.2f}", *by_batch)
    return table


def capacities(found: Found) -> Table:
    rows = _rows(found.capacities)
    auto = next((row["requests_s"] for row in rows if row["mode"] == "auto"), 0.0)
    caption = f"at which nine of ten take {rows[0]['limit_ms']:.0f} ms a token at most; simulated over measured times"
    table = _table(
        f"requests a second, {rows[0]['dataset']}, simulated commits", caption, ["mode", "a second", "auto / it"]
    )
    for row in rows:
        ratio = f"{auto / row['requests_s']:.2f}" if row["requests_s"] else "-"
        table.add_row(row["mode"], _bold(f"{row['requests_s']:.3g}"), ratio)
    return table


def traces(found: Found) -> Table:
    heads = [
        "mode",
        "come",
        "served",
        "simulated",
        "P90 ms a token",
        "simulated",
        "ms to the first",
        "simulated",
        "met",
    ]
    caption = "requests a second; measured steps, and the same simulated over measured times"
    table = _table("requests at random, by the engine, simulated commits", caption, heads)
    for row in _rows(found.traces):
        cells = [f"{row['requests_s']:.1f}"]
        for name, told in (("served_s", "{:.1f}"), ("p90_ms", "{:.1f}"), ("delay_ms", "{:.0f}")):
            own, simulated = row[name], row.get(f"{name}_simulated")
            cells += [_bold(told.format(own)), "-" if simulated is None else told.format(simulated)]
        table.add_row(row["mode"], *cells, "yes" if row["met"] else "no")
    return table


def quality(found: Found) -> Table:
    heads = ["mode", "right", "of", "over block, points", "tokens a step", "rows a step"]
    table = _table("a trained model's answers", "exact matches", heads)
    for row in _rows(found.quality):
        table.add_row(
            row["mode"], _bold(f"{row['exact']:.1%}"), str(row["n"]), f"{row['points_over_block']:+.1f}",
            f"{row['tokens_step']:.2f}", f"{row['rows_step']:.1f}",
        )  # fmt: skip
    return table


def clients(found: Found) -> Table:
    heads = ["clients", "auto", "block", "auto / block", "tokens a step", "chunk of auto, rows"]
    table = _table("clients that ask again at once, a trained model", "tokens a second, medians, by turns", heads)
    for row in _rows(found.clients):
        auto, block = row["tokens_s"]["auto"], row["tokens_s"]["block"]
        table.add_row(
            str(row["clients"]), _bold(f"{auto['median']:.0f}"), f"{block['median']:.0f}",
            f"{row['auto_over_block']:.2f}", f"{row['tokens_step']['auto']:.2f}", f"{row['rows_step']['auto']:.1f}",
        )  # fmt: skip
    return table


def _rows(rows: Sequence[JsonObject]) -> Sequence[dict[str, Any]]:
    return rows


def _table(title: str, caption: str, heads: Sequence[str]) -> Table:
    table = Table(title=title, caption=caption, box=SIMPLE)
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left")
    return table


def _bold(text: str) -> str:
    return f"[bold]{text}[/]"
