"""What the bench of elastic decoding found, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.table import table
from ramet.errors import InvalidRequest

AUTO, WHOLE, NEXT = "auto", "block", "next"  # modes; a number as text is one too: chunks of that size
_ROWS = ("steps", "whole", "loads", "cells", "capacities", "traces", "quality", "clients")
_FACTS = ("rates", "latency", "peer", "start_s", "summary")


@dataclass(slots=True)
class ElasticReport(Document):
    """Rows say of their commits and of their steps whether they are simulated or measured; all are of the hardware in
    `machine`.

    rates: what the device does at most, and the floor of steps that is made of it. steps: what was measured of whole
    steps, by mode and batch. whole: of those of whole blocks, beside their floor and the peer's. loads: decoding as the
    engine did it; cells: as it was simulated on all data sets, `summary` of it. capacities: requests a second that are
    served within the limit, simulated; traces: requests at random as the engine served them. quality and clients: of a
    trained model. start_s: seconds that each part took to be ready. note: what else is to be known of the run, written
    into its JSON by hand.
    """

    bench: ClassVar[str] = "elastic"
    rates: dict[str, Any] = field(default_factory=dict)
    latency: str = ""
    peer: dict[str, Any] | None = None
    start_s: dict[str, float] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    whole: list[dict[str, Any]] = field(default_factory=list)
    loads: list[dict[str, Any]] = field(default_factory=list)
    cells: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    capacities: list[dict[str, Any]] = field(default_factory=list)
    traces: list[dict[str, Any]] = field(default_factory=list)
    quality: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    note: str = ""

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Raises InvalidRequest for what is no JSON of this bench."""
        if not isinstance(document, Mapping) or document.get("bench") != cls.bench:
            raise InvalidRequest("not the JSON of a run of this bench", field="from")
        return cls(**{field.name: document[field.name] for field in fields(cls) if field.name in document})

    @property
    def hardware(self) -> str:
        """In a word."""
        cpu = self.machine["cpu"]
        return cpu if self.settings.get("device") == "cpu" else self.machine.get("gpu", cpu)

    def found(self) -> JsonObject:
        facts = {name: getattr(self, name) for name in _FACTS}
        rows = {name: [{"hardware": self.hardware, **row} for row in getattr(self, name)] for name in _ROWS}
        note = {"note": self.note} if self.note else {}
        return facts | {name: found for name, found in rows.items() if found} | note


Rows = list[dict[str, Any]]


def parts(found: ElasticReport) -> Iterator[Table]:
    """What was measured, then what was simulated over it."""
    if found.whole:
        yield whole(found.whole, found.peer)
    if found.loads:
        yield loads(found.loads)
    if found.cells:
        yield cells(found.cells)
        yield summary(found.summary)
    rest = ((found.capacities, capacities), (found.traces, traces), (found.quality, quality), (found.clients, clients))
    for rows, part in rest:
        if rows:
            yield part(rows)


def whole(rows: Rows, peer: dict[str, Any] | None) -> Table:
    """Steps of whole blocks; a run may have ended before it was the peer's turn."""
    columns = [
        ("replies", "{batch}"), ("rows", "{rows:.0f}"), ("a step", "[bold]{ms:ms}[/]"), ("floor", "{floor_ms:ms}"),
        ("/ floor", "{over_floor:.2f}"), ("floor, rows read", "{floor_read_ms:ms}"), ("/ it", "{over_floor_read:.2f}"),
    ]  # fmt: skip
    if peer is not None:
        columns += [(str(peer["name"]), "{peer_ms:ms}"), ("/ ours", "{peer_over_ours:.2f}")]
    caption = "ms, medians; floor: memory read once, or the arithmetic of every row, whichever takes longer"
    return table("steps of whole blocks, measured", columns, rows, caption)


def loads(rows: Rows) -> Table:
    """Decoding as the engine did it."""
    by_load: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        load = row["dataset"], row["batch"]
        by_load.setdefault(load, {"dataset": load[0], "batch": load[1]})[row["mode"]] = row
    modes = dict.fromkeys(row["mode"] for row in rows)
    columns = [
        ("data set", "{dataset}"), ("replies", "{batch}"), *((mode, f"{{{mode}[tokens_s]:.0f}}") for mode in modes),
        ("rows of auto", "{auto[rows]:.0f}"),
    ]  # fmt: skip
    caption = "tokens a second; measured steps"
    return table("decoding by the engine, simulated commits", columns, by_load.values(), caption)


def cells(rows: Rows) -> Table:
    """Every data set and batch."""
    columns = [
        ("data set", "{dataset}"), ("replies", "{batch}"), ("auto", "[bold]{tokens_s[auto]:.0f}[/]"),
        ("chunk", "{size:.1f}"), ("best fixed", "{best_fixed}"), ("/ it", "{auto_over_best_fixed:.2f}"),
        ("/ block", "{auto_over_block:.2f}"), ("/ next", "{auto_over_next:.2f}"), ("/ bound", "{auto_over_bound:.2f}"),
    ]  # fmt: skip
    if any("peer_tokens_s" in row for row in rows):
        columns.append(("/ peer", "{auto_over_peer:.2f}"))
    caption = "auto: tokens a second, and over the others'; simulated over measured times"
    return table("decoding, simulated commits", columns, rows, caption)


def summary(found: dict[str, Any]) -> Table:
    rows = [
        {"over": name.removeprefix("auto_over_").replace("_", " "), **value}
        for name, value in found.items() if isinstance(value, dict)
    ]  # fmt: skip
    columns = [("over", "{over}"), ("all", "[bold]{geometric_mean:.2f}[/]"), ("least", "{least:.2f}")]
    columns += [(batch, f"{{by_batch[{batch}]:.2f}}") for batch in (rows[0]["by_batch"] if rows else ())]
    return table("auto over the others, simulated commits", columns, rows, "geometric means")


def capacities(rows: Rows) -> Table:
    auto = next((row["requests_s"] for row in rows if row["mode"] == "auto"), 0.0)
    shown = [row | {"gain": auto / row["requests_s"] if row["requests_s"] else None} for row in rows]
    columns = [("mode", "{mode}"), ("a second", "[bold]{requests_s:.3g}[/]"), ("auto / it", "{gain:.2f}")]
    title = f"requests a second, {rows[0]['dataset']}, simulated commits"
    limit_ms = rows[0]["limit_ms"]
    caption = f"at which nine of ten take {limit_ms:.0f} ms a token at most; simulated over measured times"
    return table(title, columns, shown, caption)


def traces(rows: Rows) -> Table:
    columns = [("mode", "{mode}"), ("come", "{requests_s:.1f}")]
    figures = (
        ("served", "served_s", ".1f"),
        ("P90 ms a token", "p90_ms", ".1f"),
        ("ms to the first", "delay_ms", ".0f"),
    )
    for head, name, form in figures:
        columns += [(head, f"[bold]{{{name}:{form}}}[/]"), ("simulated", f"{{{name}_simulated:{form}}}")]
    shown = [row | {"met": "yes" if row["met"] else "no"} for row in rows]
    caption = "requests a second; measured steps, and the same simulated over measured times"
    return table("requests at random, by the engine, simulated commits", [*columns, ("met", "{met}")], shown, caption)


def quality(rows: Rows) -> Table:
    columns = [
        ("mode", "{mode}"), ("right", "[bold]{exact:.1%}[/]"), ("of", "{n}"),
        ("over block, points", "{points_over_block:+.1f}"), ("tokens a step", "{tokens_step:.2f}"),
        ("rows a step", "{rows_step:.1f}"),
    ]  # fmt: skip
    return table("a trained model's answers", columns, rows, "exact matches")


def clients(rows: Rows) -> Table:
    columns = [
        ("clients", "{clients}"), ("auto", "[bold]{tokens_s[auto][median]:.0f}[/]"),
        ("block", "{tokens_s[block][median]:.0f}"), ("auto / block", "{auto_over_block:.2f}"),
        ("tokens a step", "{tokens_step[auto]:.2f}"), ("chunk of auto, rows", "{rows_step[auto]:.1f}"),
    ]  # fmt: skip
    caption = "tokens a second, medians, by turns"
    return table("clients that ask again at once, a trained model", columns, rows, caption)
