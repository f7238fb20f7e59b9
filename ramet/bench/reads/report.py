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
_LATENCY = (
    "prompt+canvas=shape, reads, one pass=ms.one pass.median:ms!, p95=p95.one pass:ms, "
    "two steps=ms.two steps.median:ms!, p95=p95.two steps:ms, saved:.1%, repeat=again_over_two_steps:over, "
    "engine steps=steps.one pass, in two steps=steps.two steps, "
    "transformers=ms.transformers.median:ms!, / one pass=peer_over_one_pass:.2f"
)
_FLOORS = (
    "prompt+canvas=shape, weights' bytes=bytes_ms:ms, arithmetic=arithmetic_ms:ms, one pass=ms.one pass.median:ms, "
    "/ the larger=over_floor:.2f!"
)
_LOADS = (
    "prompt+canvas=form, clients, one pass=reads_per_s.one pass.median:.3g!, ms=ms.one pass.median:ms, "
    "p95=ms.one pass.p95:ms, two steps=reads_per_s.two steps.median:.3g!, ms=ms.two steps.median:ms, "
    "p95=ms.two steps.p95:ms, gain:+.1%, repeat=noise:+.1%, "
    "engine steps=steps_a_read.one pass:.2f, in two steps=steps_a_read.two steps:.2f, "
    "transformers=reads_per_s.transformers.median:.3g!, "
    "cost of 1000=cost_per_1000.one pass:.3g, two steps=cost_per_1000.two steps:.3g"
)
_QUESTIONS = (
    "prompt=shape, one joint canvas=ms.joint.median:ms!, p95=p95.joint:ms, rows=rows.joint, "
    "a canvas each=ms.isolated.median:ms!, p95=p95.isolated:ms, rows=rows.isolated, / joint=isolated_over_joint:.2f"
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
        faster = self.rate(name)
        slower = self.rate(base)
        return None if faster is None or slower is None else faster / slower - 1

    def steps_a_read(self, name: str) -> float:
        return self.steps[name] / len(self.ms[name])

    def cost(self, name: str, price_per_month: float | None) -> float | None:
        """Of 1000 reads, in the unit of the price, at full load."""
        rate = self.rate(name)
        return None if rate is None or price_per_month is None else 1000 * price_per_month / (rate * _S_A_MONTH)

    def as_json(self, price_per_month: float | None) -> JsonObject:
        return {
            "form": self.form,
            "clients": self.n_clients,
            "gain": self.gain(ONE, TWO),
            "noise": self.gain(AGAIN, TWO),
            "reads_per_s": {name: summary(rates) for name, rates in self.rates.items()},
            "ms": {name: {**summary(ms), "p95": p95(ms)} for name, ms in self.ms.items()},
            "steps": self.steps,
            "steps_a_read": {name: self.steps_a_read(name) for name in self.ms},
            "cost_per_1000": {name: self.cost(name, price_per_month) for name in self.rates},
        }


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
        names = ("peer", "price_per_month", "rates", "difference", "start_s")
        return {name: getattr(self, name) for name in names} | {
            "latency": [_row_json(row) | row.ratios(RATIOS) | {"saved": saved(row)} for row in self.latency],
            "loads": [load.as_json(self.price_per_month) for load in self.loads],
            "questions": [_row_json(r) | {"isolated_over_joint": r.ratio(ISOLATED, JOINT)} for r in self.questions],
        }

    def about(self) -> dict[str, Any]:
        return {**Document.about(self), "peer": self.peer or "none"}

    def tables(self) -> Iterator[Table]:
        """Reads one after the other, under load, of several questions; and what all of it rests on."""
        document = self.found()
        caption = "ms: medians and 95th percentiles, by turns; repeat: two steps measured again"
        yield table("a read, one client", _LATENCY, document["latency"], caption)
        caption = f"ms, at {self.rates['flop_per_s'] / 1e12:.3g} TFLOP/s and {self.rates['bytes_per_s'] / 1e9:.3g} GB/s"
        rows = [
            row | {"over_floor": row["ms"][ONE]["median"] / max(row["bytes_ms"], row["arithmetic_ms"])}
            for row in document["latency"]
        ]
        yield table("what the products of a read take at least", _FLOORS, rows, f"{caption}, measured")
        if self.loads:
            caption = "reads a second, and ms of a read; gain: of one pass; repeat: two steps measured again"
            yield table("reads under load", _LOADS, document["loads"], caption)
        if self.questions:
            caption = "ms: medians and 95th percentiles; rows of the pass"
            yield table("several questions, one pass", _QUESTIONS, document["questions"], caption)
        yield facts({name: document[name] for name in ("rates", "difference", "start_s")})


def saved(row: Row) -> float | None:
    """The part of a read's time that one pass saves."""
    ratio = row.ratio(ONE, TWO)
    return None if ratio is None else 1 - ratio


def p95(ms: Sequence[float]) -> float:
    return float(np.percentile(ms, 95))


def _row_json(row: Row) -> JsonObject:
    return row.as_json() | {"p95": {name: p95(ms) for name, ms in row.samples.items()}}
