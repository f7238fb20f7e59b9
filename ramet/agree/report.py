"""All that two runs say together, as an object and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramet.agree import intervals
from ramet.agree.answer import KINDS
from ramet.agree.gold import Gold
from ramet.agree.measures import Columns, Measures
from ramet.agree.pairs import DecisionPair, Failed, Pairs
from ramet.agree.run import AnswersFile
from ramet.files import replacing


@dataclass(frozen=True, slots=True)
class Report:
    """The two runs, their pairs, and the measures of all decisions, of each question type and of each question."""

    a: AnswersFile
    b: AnswersFile
    gold: Gold | None
    threshold: float
    pairs: Pairs
    all: Measures
    by_type: dict[str, Measures]
    by_question: dict[str, Measures]

    @classmethod
    def of(
        cls,
        a: AnswersFile,
        b: AnswersFile,
        gold: Gold | None,
        pairs: Pairs,
        threshold: float,
        step: Callable[[str], None],
    ) -> Report:
        """Measure the pairs; `step` gets the name of the group that comes next."""
        columns = Columns.of(pairs.decisions, threshold)

        def grouped(names: Iterable[str]) -> dict[str, Measures]:
            places: dict[str, list[int]] = {}
            for place, name in enumerate(names):
                places.setdefault(name, []).append(place)
            found = {}
            for name, chosen in places.items():
                step(name)
                found[name] = columns.only(np.array(chosen)).measures()
            return found

        step("all")
        everything = columns.measures()
        by_type = grouped(d.a.kind for d in pairs.decisions)
        by_type = {kind: by_type[kind] for kind in KINDS if kind in by_type}
        return cls(a, b, gold, threshold, pairs, everything, by_type, grouped(d.question for d in pairs.decisions))

    @property
    def changed(self) -> list[DecisionPair]:
        """The decisions with another likeliest option, the largest change first."""
        return sorted((d for d in self.pairs.decisions if d.changed), key=lambda d: -max(d.changes))

    def as_json(self) -> dict[str, Any]:
        """docs/agree.md says what is where."""
        return {
            "a": _run_json(self.a), "b": _run_json(self.b), "gold": self.gold and _gold_json(self.gold),
            "threshold": self.threshold, "level": intervals.LEVEL,
            "resamples": intervals.N_RESAMPLES, "seed": intervals.SEED,
            "rows": self._rows_json(), "all": self.all.as_json(),
            "types": {name: m.as_json() for name, m in self.by_type.items()},
            "questions": {name: m.as_json() for name, m in self.by_question.items()},
            "decisions": [_decision_json(d, self.threshold) for d in self.pairs.decisions],
        }  # fmt: skip

    def write(self, path: Path) -> None:
        with replacing(path) as made:
            made.write_text(json.dumps(self.as_json(), allow_nan=False) + "\n")

    def _rows_json(self) -> dict[str, Any]:
        pairs = self.pairs
        return {
            "compared": self.all.n_rows,
            "failed": [_failed_json(f) for f in pairs.failed],
            "only_in_a": [i.as_json() for i in pairs.only_a],
            "only_in_b": [i.as_json() for i in pairs.only_b],
            "asked_otherwise": [i.as_json() for i in pairs.asked_otherwise],
        }


def _run_json(run: AnswersFile) -> dict[str, Any]:
    return {
        "path": str(run.path), "models": run.models, "fingerprints": run.fingerprints, "rows": len(run.rows),
        "failed": run.n_failed,
    }  # fmt: skip


def _gold_json(gold: Gold) -> dict[str, Any]:
    return {"path": str(gold.path), "labels": gold.n_labels, "used": gold.n_used}


def _failed_json(failed: Failed) -> dict[str, Any]:
    return {**failed.row.as_json(), "a": failed.a, "b": failed.b}


def _decision_json(decision: DecisionPair, threshold: float) -> dict[str, Any]:
    a, b, changes = decision.a, decision.b, decision.changes
    return {
        **decision.row.as_json(), "question": decision.question, "type": a.kind, "options": a.options,
        "a": {"option": decision.option_a, "probabilities": a.probabilities},
        "b": {"option": decision.option_b, "probabilities": b.probabilities},
        "changed": decision.changed, "total_variation": sum(changes) / 2, "largest_change": max(changes),
        "flips": decision.flips(threshold), "gold": decision.gold,
    }  # fmt: skip
