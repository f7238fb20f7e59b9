"""What the bench of elastic decoding found, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from rich.table import Table

from ramet.bench.core.document import Document, from_row
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.table import table
from ramet.errors import InvalidRequest

AUTO, WHOLE, NEXT = "auto", "block", "next"  # modes; a number as text is one too: chunks of that size
Rows = list[dict[str, Any]]
_FACTS = ("rates", "latency", "peer", "start_s", "summary")
_LOADS = "data set=dataset, replies=batch, next:.0f, auto:.0f, 8:.0f, 32:.0f, block:.0f, rows of auto=rows:.0f"
# The rows of a report, and a table of each: its title, its columns and what they are.
_TABLES = {
    "whole": (
        "steps of whole blocks, measured",
        "replies=batch, rows:.0f, a step=ms:ms!, floor=floor_ms:ms, / floor=over_floor:.2f, "
        "rows read=floor_read_ms:ms, / it=over_floor_read:.2f, peer=peer_ms:ms, / ours=peer_over_ours:.2f",
        "ms, medians; floor: memory read once, or the arithmetic of every row, whichever takes longer",
    ),
    "loads": ("decoding by the engine, simulated commits", _LOADS, "tokens a second; measured steps"),
    "cells": (
        "decoding, simulated commits",
        "data set=dataset, replies=batch, auto=tokens_s.auto:.0f!, chunk=size:.1f, best fixed=best_fixed, "
        "/ it=auto_over_best_fixed:.2f, / block=auto_over_block:.2f, / next=auto_over_next:.2f, "
        "/ bound=auto_over_bound:.2f, / peer=auto_over_peer:.2f",
        "auto: tokens a second, and over the others'; simulated over measured times",
    ),
    "summary": ("auto over the others, simulated commits", "over, geometric_mean:.2f!, least:.2f", "of all cells"),
    "capacities": (
        "requests a second, simulated commits",
        "data set=dataset, mode, a second=requests_s:.3g!, auto / it=gain:.2f",
        "at which nine of ten are within the limit; simulated over measured times",
    ),
    "traces": (
        "requests at random, by the engine, simulated commits",
        "mode, come=requests_s:.1f, served=served_s:.1f!, simulated=served_s_simulated:.1f, "
        "P90 ms a token=p90_ms:.1f!, simulated=p90_ms_simulated:.1f, "
        "ms to the first=delay_ms:.0f!, simulated=delay_ms_simulated:.0f, met",
        "requests a second; measured steps, and the same simulated over measured times",
    ),
    "quality": (
        "a trained model's answers",
        "mode, right=exact:.1%!, of=n, points over block=points_over_block:+.1f, tokens a step=tokens_step:.2f, "
        "rows a step=rows_step:.1f",
        "exact matches",
    ),
    "clients": (
        "clients that ask again at once, a trained model",
        "clients, auto=tokens_s.auto.median:.0f!, block=tokens_s.block.median:.0f, auto / block=auto_over_block:.2f, "
        "tokens a step=tokens_step.auto:.2f, rows a step=rows_step.auto:.1f",
        "tokens a second, medians, by turns",
    ),
}


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
    rates: JsonObject = field(default_factory=dict)
    latency: str = ""
    peer: JsonObject | None = None
    start_s: dict[str, float] = field(default_factory=dict)
    steps: Rows = field(default_factory=list)
    whole: Rows = field(default_factory=list)
    loads: Rows = field(default_factory=list)
    cells: Rows = field(default_factory=list)
    summary: JsonObject = field(default_factory=dict)
    capacities: Rows = field(default_factory=list)
    traces: Rows = field(default_factory=list)
    quality: Rows = field(default_factory=list)
    clients: Rows = field(default_factory=list)
    note: str = ""

    @classmethod
    def from_json(cls, document: Any) -> Self:
        """Raises InvalidRequest for what is no JSON of this bench."""
        if not isinstance(document, Mapping) or document.get("bench") != cls.bench:
            raise InvalidRequest("not the JSON of a run of this bench", field="from")
        return from_row(cls, document)

    @property
    def hardware(self) -> str:
        """In a word."""
        cpu = self.machine["cpu"]
        return cpu if self.settings.get("device") == "cpu" else self.machine.get("gpu", cpu)

    def found(self) -> JsonObject:
        facts = {name: getattr(self, name) for name in _FACTS}
        for name in ("steps", *(name for name in _TABLES if name not in _FACTS)):
            if rows := getattr(self, name):
                facts[name] = [{"hardware": self.hardware, **row} for row in rows]
        return facts | ({"note": self.note} if self.note else {})

    def about(self) -> dict[str, Any]:
        about = Document.about(self) | {"peer": self.peer, "step": self.latency, "note": self.note}
        return {name: fact for name, fact in about.items() if fact}

    def tables(self) -> Iterator[Table]:
        """What was measured, and what was simulated over it."""
        made = {"loads": _by_load(self.loads), "summary": _by_rival(self.summary)}
        made["capacities"] = _gains(self.capacities)
        for name, (title, columns, caption) in _TABLES.items():
            if rows := made.get(name, getattr(self, name)):
                yield table(title, columns, rows, caption)


def _by_load(rows: Rows) -> Rows:
    """A row for each data set and number of replies: the tokens a second of each mode, and the rows of auto's steps."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        own = found.setdefault((row["dataset"], row["batch"]), {"dataset": row["dataset"], "batch": row["batch"]})
        own[row["mode"]] = row["tokens_s"]
        own |= {"rows": row["rows"]} if row["mode"] == AUTO else {}
    return list(found.values())


def _by_rival(summary: JsonObject) -> Rows:
    rivals = {name: own for name, own in summary.items() if isinstance(own, dict)}
    return [{"over": name.removeprefix("auto_over_").replace("_", " "), **own} for name, own in rivals.items()]


def _gains(rows: Rows) -> Rows:
    auto = next((row["requests_s"] for row in rows if row["mode"] == AUTO), 0.0)
    return [row | {"gain": auto / row["requests_s"] if row["requests_s"] else None} for row in rows]
