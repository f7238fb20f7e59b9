"""Answers compared with those of their questions asked alone, and what a run of the bench says of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import numpy as np

from ramet.bench.loads import Load
from ramet.bench.probes import Numbers
from ramet.bench.report import Document
from ramet.bench.samples import JsonObject, Row

RATIO = (("mode", "plain", "mode_over_plain"),)
MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the one of its question alone. `load` is drawn again from its number and the run's seed."""

    load: int
    max_round_tokens: int
    probe: int
    question: int
    largest: float


@dataclass(slots=True)
class Tally:
    """Answers compared, those with other bits, and the largest difference of a number: of logits and logsumexps at the
    level of trees, of probabilities at that of decisions. `listed` has the first of them."""

    answers: int = 0
    differ: int = 0
    largest: float = 0.0
    listed: list[Difference] = field(default_factory=list)

    def take(self, load: Load, probe: int, question: int, alone: Numbers, found: Numbers) -> None:
        self.answers += 1
        if alone.tobytes() == found.tobytes():
            return
        moved = float(np.abs(alone.astype(np.float64) - found).max())
        self.differ += 1
        self.largest = max(self.largest, moved)
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Difference(load.number, load.max_round_tokens, probe, question, moved))


@dataclass(slots=True)
class Invariance(Document):
    """tallies: level -> "mode" or "plain" -> what was found. rows: what rounds cost with and without the mode."""

    model: str
    machine: dict[str, str]
    settings: JsonObject
    n_loads: int
    tallies: dict[str, dict[str, Tally]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def n_faults(self) -> int:
        """Answers that differ in the mode."""
        return sum(tallies["mode"].differ for tallies in self.tallies.values())

    def as_json(self) -> JsonObject:
        levels = {level: {name: asdict(t) for name, t in tallies.items()} for level, tallies in self.tallies.items()}
        return {
            "bench": "invariance", "model": self.model, "machine": self.machine, "settings": self.settings,
            "loads": self.n_loads, "faults": self.n_faults, "levels": levels,
            "rows": [{**row.as_json(), **row.ratios(RATIO)} for row in self.rows],
        }  # fmt: skip
