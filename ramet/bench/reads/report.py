"""What the bench of reads found, as JSON and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject, Row, summary
from ramet.bench.core.table import facts, table

ONE, TWO, AGAIN, PEER = "one pass", "two steps", "two steps again", "transformers"
ISOLATED, JOINT = "isolated", "joint"
_S_A_MONTH = 730 * 3600  # 8760 hours a year
RATIOS = (
    (TWO, ONE, "two_steps_over_one_pass"),
    (AGAIN, TWO, "again_over_two_steps"),
    (PEER, ONE, "peer_over_one_pass"),
)


@dataclass(slots=True)
class ReadLoad:
    """`n_clients`, each of which asks again as soon as it has its answer: reads a second of every run, every read's
    milliseconds, and the engine's steps over all runs, by contestant. A peer computes the reads of all clients as one
    batch."""

    form: str
    n_clients: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    ms: dict[str, list[float]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, rate: float, ms: Sequence[float], n_steps: int = 0) -> None:
        self.rates.setdefault(name, []).append(rate)
        self.ms.setdefault(name, []).extend(ms)
        self.steps[name] = self.steps.get(name, 0) + n_steps

    def rate(self, name: str) -> float | None:
        """The median of the runs; None where there were none."""
        return statistics.median(self.rates[name]) if self.rates.get(name) else None

    def gain(self, name: str, base: str) -> float | None:
        """By what part the rate of `name` is higher."""
        of, to = self.rate(name), self.rate(base)
        return None if of is None or to is None else of / to - 1

    def steps_a_read(self, name: str) -> float:
        return self.steps[name] / len(self.ms[name])

    def cost(self, name: str, price_per_month: float | None) -> float | None:
        """Of 1000 reads, in the unit of the price, at full load."""
        rate = self.rate(name)
        return None if rate is None or price_per_month is None else 1000 * price_per_month / (rate * _S_A_MONTH)

    def as_json(self, price_per_month: float | None) -> JsonObject:
        return {
            "form": self.form, "clients": self.n_clients, "gain": self.gain(ONE, TWO), "noise": self.gain(AGAIN, TWO),
            "reads_per_s": {name: summary(rates) for name, rates in self.rates.items()},
            "ms": {name: {**summary(ms), "p95": p95(ms)} for name, ms in self.ms.items()},
            "steps": self.steps,
            "cost_per_1000": {name: self.cost(name, price_per_month) for name in self.rates},
        }  # fmt: skip


@dataclass(slots=True)
class ReadsReport(Document):
    """model: the shape in words. rates: what the device does at most, floating-point operations and bytes a second.
    difference: of label probabilities on the small float32 twin, from ours in one pass, by contestant. latency: reads
    one after the other, of each length of prompts; its notes have reads, engine steps and floors. questions: a joint
    canvas beside isolated ones. start_s: seconds that each part took to be ready."""

    bench: ClassVar[str] = "reads"
    price_per_month: float | None = None
    peer: JsonObject | None = None
    rates: JsonObject = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    start_s: dict[str, float] = field(default_factory=dict)
    latency: list[Row] = field(default_factory=list)
    loads: list[ReadLoad] = field(default_factory=list)
    questions: list[Row] = field(default_factory=list)

    def found(self) -> JsonObject:
        return {
            "peer": self.peer, "price_per_month": self.price_per_month, "rates": self.rates,
            "difference": self.difference, "start_s": self.start_s,
            "latency": [_row_json(row) | row.ratios(RATIOS) | {"saved": saved(row)} for row in self.latency],
            "loads": [load.as_json(self.price_per_month) for load in self.loads],
            "questions": [_row_json(r) | {"isolated_over_joint": r.ratio(ISOLATED, JOINT)} for r in self.questions],
        }  # fmt: skip


def saved(row: Row) -> float | None:
    """The part of a read's time that one pass saves."""
    ratio = row.ratio(ONE, TWO)
    return None if ratio is None else 1 - ratio


def p95(ms: Sequence[float]) -> float:
    return float(np.percentile(ms, 95))


def _row_json(row: Row) -> JsonObject:
    return row.as_json() | {"p95": {name: p95(ms) for name, ms in row.samples.items()}}


def parts(found: ReadsReport) -> Iterator[Table]:
    """Reads one after the other, under load, of several questions; and what all of it rests on."""
    document: dict[str, Any] = found.as_json()
    yield latency(document)
    yield floors(document)
    if document["loads"]:
        yield loads(document)
    if document["questions"]:
        yield questions(document)
    yield facts(_facts(found))


def latency(document: dict[str, Any]) -> Table:
    columns = [
        ("prompt+canvas", "{shape}"), ("reads", "{reads}"),
        ("one pass", "[bold]{ms[one pass][median]:ms}[/]"), ("p95", "{p95[one pass]:ms}"),
        ("two steps", "[bold]{ms[two steps][median]:ms}[/]"), ("p95", "{p95[two steps]:ms}"),
        ("saved", "{saved:.1%}"), ("repeat", "{again_over_two_steps:over}"),
    ]  # fmt: skip
    if document["peer"] is not None:
        columns += [
            ("transformers", "[bold]{ms[transformers][median]:ms}[/]"), ("/ one pass", "{peer_over_one_pass:.2f}"),
        ]  # fmt: skip
    caption = "ms: medians and 95th percentiles, by turns; repeat: two steps measured again"
    return table("a read, one client", columns, document["latency"], caption)


def floors(document: dict[str, Any]) -> Table:
    columns = [
        ("prompt+canvas", "{shape}"), ("weights' bytes", "{bytes_ms:ms}"), ("arithmetic", "{arithmetic_ms:ms}"),
        ("one pass", "{ms[one pass][median]:ms}"), ("/ the larger", "[bold]{over_floor:.2f}[/]"),
    ]  # fmt: skip
    rows = [
        row | {"over_floor": row["ms"][ONE]["median"] / max(row["bytes_ms"], row["arithmetic_ms"])}
        for row in document["latency"]
    ]
    flop, n_bytes = document["rates"]["flop_per_s"], document["rates"]["bytes_per_s"]
    caption = f"ms, at {flop / 1e12:.3g} TFLOP/s and {n_bytes / 1e9:.3g} GB/s, measured"
    return table("what the products of a read take at least", columns, rows, caption)


def loads(document: dict[str, Any]) -> Table:
    columns = [("prompt+canvas", "{form}"), ("clients", "{clients}")]
    for name in (ONE, TWO):
        columns += [
            (name, f"[bold]{{reads_per_s[{name}][median]:.3g}}[/]"), ("ms", f"{{ms[{name}][median]:ms}}"),
            ("p95", f"{{ms[{name}][p95]:ms}}"),
        ]  # fmt: skip
    columns += [("gain", "{gain:+.1%}"), ("repeat", "{noise:+.1%}")]
    if document["peer"] is not None:
        columns.append(("transformers", "[bold]{reads_per_s[transformers][median]:.3g}[/]"))
    if document["price_per_month"] is not None:
        columns += [("cost of 1000", "{cost_per_1000[one pass]:.3g}"), ("two steps", "{cost_per_1000[two steps]:.3g}")]
    caption = "reads a second, and ms of a read; gain: of one pass; repeat: two steps measured again"
    return table("reads under load", columns, document["loads"], caption)


def questions(document: dict[str, Any]) -> Table:
    columns = [("prompt", "{shape}")]
    for head, name in (("one joint canvas", "joint"), ("a canvas each", "isolated")):
        columns += [
            (head, f"[bold]{{ms[{name}][median]:ms}}[/]"), ("p95", f"{{p95[{name}]:ms}}"),
            ("rows", f"{{rows[{name}]}}"),
        ]  # fmt: skip
    columns.append(("/ joint", "{isolated_over_joint:.2f}"))
    caption = "ms: medians and 95th percentiles; rows of the pass"
    return table("several questions, one pass", columns, document["questions"], caption)


def _facts(found: ReadsReport) -> dict[str, str]:
    """Engine steps, differences, and how long everything took to be ready."""
    rows: list[dict[str, Any]] = [{"shape": row.shape, **row.notes} for row in found.latency]
    lines = {
        f"steps, {row['shape']}": f"{row['steps'][ONE]} of the engine for {row['reads']} reads in one pass, "
        f"{row['steps'][TWO]} in two steps"
        for row in rows
    }
    for form in dict.fromkeys(load.form for load in found.loads):
        shared = (
            f"{load.steps_a_read(ONE):.2f} and {load.steps_a_read(TWO):.2f} with {load.n_clients}"
            for load in found.loads if load.form == form
        )  # fmt: skip
        lines[f"under load, {form}"] = f"steps a read, one pass and two steps: {', '.join(shared)}"
    measured = "; ".join(_moved(row["difference"]) for row in rows)
    lines["answers"] = f"float32 twin: {_moved(found.difference)}; as measured: {measured}"
    lines["ready after"] = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.start_s.items())
    return lines


def _moved(difference: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2g}" for name, value in difference.items())
