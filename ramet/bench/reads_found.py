"""What the bench of reads found, and what it says together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ramet.bench.report import Document
from ramet.bench.samples import JsonObject, Row, summary

ONE, TWO, AGAIN, PEER = "one pass", "two steps", "two steps again", "transformers"
ISOLATED, JOINT = "isolated", "joint"
_S_A_MONTH = 730 * 3600  # 8760 hours a year
RATIOS = (
    (TWO, ONE, "two_steps_over_one_pass"),
    (AGAIN, TWO, "again_over_two_steps"),
    (PEER, ONE, "peer_over_one_pass"),
)


@dataclass(slots=True)
class Load:
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
class Found(Document):
    """A run of the bench. model: the shape in words. rates: what the device does at most, floating-point operations and
    bytes a second. difference: of label probabilities on the small float32 twin, from ours in one pass, by contestant.
    latency: reads one after the other, of each length of prompts; its notes have reads, engine steps and floors.
    questions: a joint canvas beside isolated ones. start_s: seconds that each part took to be ready."""

    model: str
    machine: dict[str, str]
    settings: JsonObject
    price_per_month: float | None = None
    peer: JsonObject | None = None
    rates: JsonObject = field(default_factory=dict)
    difference: dict[str, float] = field(default_factory=dict)
    start_s: dict[str, float] = field(default_factory=dict)
    latency: list[Row] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    questions: list[Row] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        several = [_row_json(row) | {"isolated_over_joint": row.ratio(ISOLATED, JOINT)} for row in self.questions]
        return {
            "bench": "reads", "model": self.model, "machine": self.machine, "settings": self.settings,
            "peer": self.peer, "price_per_month": self.price_per_month, "rates": self.rates,
            "difference": self.difference, "start_s": self.start_s,
            "latency": [_row_json(row) | row.ratios(RATIOS) | {"saved": saved(row)} for row in self.latency],
            "loads": [load.as_json(self.price_per_month) for load in self.loads],
            "questions": several,
        }  # fmt: skip


def saved(row: Row) -> float | None:
    """The part of a read's time that one pass saves."""
    ratio = row.ratio(ONE, TWO)
    return None if ratio is None else 1 - ratio


def p95(ms: Sequence[float]) -> float:
    return float(np.percentile(ms, 95))


def _row_json(row: Row) -> JsonObject:
    return row.as_json() | {"p95": {name: p95(ms) for name, ms in row.samples.items()}}
