"""Answers compared with those of their questions alone, as JSON and as tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import numpy as np
from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject, Row
from ramet.bench.core.table import table
from ramet.bench.invariance.probes import Numbers, RandomLoad

RATIO = (("mode", "plain", "mode_over_plain"),)
MAX_LISTED = 20
_NAMES = {"mode": "batch-invariant", "plain": "without"}


@dataclass(frozen=True, slots=True)
class Difference:
    """An answer that is not the one of its question alone. `load` is drawn again from its number and the run's seed."""

    load: int
    max_round_tokens: int
    probe: int
    question: int
    largest: float


@dataclass(slots=True)
class BitTally:
    """Answers compared, those with other bits, and the largest difference of a number: of logits and logsumexps at the
    level of trees, of probabilities at that of decisions. `listed` has the first of them."""

    answers: int = 0
    differ: int = 0
    largest: float = 0.0
    listed: list[Difference] = field(default_factory=list)

    def take(self, load: RandomLoad, probe: int, question: int, alone: Numbers, found: Numbers) -> None:
        self.answers += 1
        if alone.tobytes() == found.tobytes():
            return
        moved = float(np.abs(alone.astype(np.float64) - found).max())
        self.differ += 1
        self.largest = max(self.largest, moved)
        if len(self.listed) < MAX_LISTED:
            self.listed.append(Difference(load.number, load.max_round_tokens, probe, question, moved))


@dataclass(slots=True)
class InvarianceReport(Document):
    """tallies: level -> "mode" or "plain" -> what was found. rows: what rounds cost with and without the mode."""

    bench: ClassVar[str] = "invariance"
    n_loads: int
    tallies: dict[str, dict[str, BitTally]] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)

    @property
    def n_faults(self) -> int:
        """Answers that differ in the mode."""
        return sum(tallies["mode"].differ for tallies in self.tallies.values())

    def found(self) -> JsonObject:
        levels = {level: {name: asdict(t) for name, t in tallies.items()} for level, tallies in self.tallies.items()}
        rows = [{**row.as_json(), **row.ratios(RATIO)} for row in self.rows]
        return {"loads": self.n_loads, "faults": self.n_faults, "levels": levels, "rows": rows}

    def tables(self) -> Iterator[Table]:
        """How many answers differ, which, and what the mode costs."""
        document = self.found()
        levels = document["levels"].items()
        tallies = [{"level": level, "mode": _NAMES[name], **own[name]} for level, own in levels for name in own]
        columns = "level, mode, answers, differ!, largest difference=largest:.2g"
        yield table(f"answers with other bits than alone, {self.n_loads} loads", columns, tallies)
        if self.n_faults:
            columns = "level, load, tokens a round=max_round_tokens, probe, question, difference=largest:.2g"
            faults = [{"level": level, **each} for level, own in levels for each in own["mode"]["listed"]]
            yield table("the first that differ in the mode", columns, faults)
        if self.rows:
            columns = "shape, batch-invariant=ms.mode.median:ms, without=ms.plain.median:ms, ratio=mode_over_plain:.2f"
            yield table("what the mode costs, ms", columns, document["rows"], "medians of runs by turns")
