"""Timings of one shape: which contestant runs when, and what its runs say together."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Effort:
    """How often each contestant runs a shape: `repeats`, or for slow ones what fits `budget_s`, but at least twice."""

    repeats: int = 10
    budget_s: float = 20.0
    seed: int = 0

    def affordable(self, first_ms: float, repeats: int | None = None) -> int:
        """How often a contestant runs whose first run took `first_ms`: what fits the budget, from two to `repeats`."""
        most = repeats or self.repeats
        return max(min(2, most), min(most, int(self.budget_s * 1e3 / max(first_ms, 1e-3))))


@dataclass(slots=True)
class Row:
    """Every sample of every contestant at one shape, in milliseconds and in the order in which they were taken."""

    shape: str
    samples: dict[str, list[float]] = field(default_factory=dict)
    notes: JsonObject = field(default_factory=dict)

    def add(self, name: str, ms: float) -> None:
        self.samples.setdefault(name, []).append(ms)

    def take_turns(
        self,
        counts: Mapping[str, int],
        turn: Callable[[str], float],
        step: Callable[[str], None],
        rng: random.Random | None = None,
    ) -> None:
        """Add counts[c] runs of each contestant c, in the order of `interleave`. `turn` runs one: its milliseconds."""
        for name in interleave(counts, rng):
            step(f"{self.shape}: {name}, {len(self.samples.get(name, ())) + 1} of {counts[name]}")
            self.add(name, turn(name))

    def median(self, name: str) -> float | None:
        """None where the contestant did not run."""
        return statistics.median(self.samples[name]) if self.samples.get(name) else None

    def ratio(self, name: str, base: str) -> float | None:
        """How many times as long `name` takes as `base`, by their medians."""
        dividend = self.median(name)
        divisor = self.median(base)
        return None if dividend is None or not divisor else dividend / divisor

    def ratios(self, wanted: Sequence[tuple[str, str, str]]) -> JsonObject:
        """ratio(name, base) under `key`, for each (name, base, key)."""
        return {key: self.ratio(name, base) for name, base, key in wanted}

    def as_json(self) -> JsonObject:
        """All samples, and for each contestant the median, the extremes and the middle half."""
        return {"shape": self.shape, **self.notes, "ms": {name: summary(xs) for name, xs in self.samples.items()}}


def summary(samples: Sequence[float]) -> JsonObject:
    """Median, extremes and quartiles beside the samples themselves."""
    low, median, high = np.quantile(samples, (0.25, 0.5, 0.75)).tolist()
    extremes = {"min": min(samples), "max": max(samples)}
    return {"median": median, **extremes, "quartiles": [low, high], "n": len(samples), "samples": list(samples)}


def interleave(counts: Mapping[str, int], rng: random.Random | None = None) -> list[str]:
    """An order in which contestant c runs counts[c] times, each one's runs spread evenly over the whole.

    Equal counts take turns: a slow minute of the machine then falls on all of them. In each turn the order is the one
    given, or, with rng, another one, so that nobody always runs behind the same.
    """
    order = []
    for place, (name, n) in enumerate(counts.items()):
        order += [((i + 0.5) / n, rng.random() if rng else place, name) for i in range(n)]
    return [name for _, _, name in sorted(order)]
