"""Timings of one shape: which contestant runs when, and what its runs say together."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

JsonObject = dict[str, object]


@dataclass(frozen=True, slots=True)
class Effort:
    """How often each contestant runs a shape: `repeats`, or for slow ones what fits `budget_s`, but at least twice."""

    repeats: int = 10
    budget_s: float = 20.0
    seed: int = 0


@dataclass(slots=True)
class Row:
    """Every sample of every contestant at one shape, in milliseconds and in the order in which they were taken."""

    shape: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: JsonObject = field(default_factory=dict)

    def add(self, name: str, ms: float) -> None:
        self.samples.setdefault(name, []).append(ms)

    def median(self, name: str) -> float | None:
        """None where the contestant did not run."""
        return statistics.median(self.samples[name]) if self.samples.get(name) else None

    def ratio(self, name: str, base: str) -> float | None:
        """How many times as long `name` takes as `base`, by their medians."""
        of, to = self.median(name), self.median(base)
        return None if of is None or not to else of / to

    def ratios(self, wanted: Sequence[tuple[str, str, str]]) -> JsonObject:
        """ratio(name, base) under `key`, for each (name, base, key)."""
        return {key: self.ratio(name, base) for name, base, key in wanted}

    def as_json(self) -> JsonObject:
        """All samples, and for each contestant the median, the extremes and the middle half."""
        return {"shape": self.shape, **self.notes, "ms": {name: summary(xs) for name, xs in self.samples.items()}}


def summary(samples: list[float]) -> JsonObject:
    """Median, extremes and quartiles beside the samples themselves."""
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "quartiles": list(quartiles(samples)),
        "n": len(samples),
        "samples": samples,
    }


def quartiles(samples: list[float]) -> tuple[float, float]:
    """Lower and upper; of one sample, that one."""
    if len(samples) == 1:
        return samples[0], samples[0]
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low, high


def interleave(counts: Mapping[str, int], rng: random.Random | None = None) -> list[str]:
    """An order in which contestant c runs counts[c] times, each one's runs spread evenly over the whole.

    Equal counts take turns: a slow minute of the machine then falls on all of them. In each turn the order is the one
    given, or, with rng, another one, so that nobody always runs behind the same.
    """
    order = [
        ((i + 0.5) / n, rng.random() if rng else place, name)
        for place, (name, n) in enumerate(counts.items()) for i in range(n)
    ]  # fmt: skip
    return [name for _, _, name in sorted(order)]


def affordable(first_ms: float, repeats: int, budget_s: float) -> int:
    """How often a contestant runs whose first run took `first_ms`: what fits `budget_s`, from two to `repeats`."""
    return max(min(2, repeats), min(repeats, int(budget_s * 1e3 / max(first_ms, 1e-3))))
