"""The comparison of two runs, as an object and as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ramet.agree import intervals
from ramet.agree.answer import KINDS
from ramet.agree.differences import Difference, differences
from ramet.agree.gold import Gold
from ramet.agree.measures import Columns, Measures, Proportion
from ramet.agree.pairs import DecisionPair, Failed, Pairs, ReplyPair
from ramet.agree.reply_measures import ReplyMeasures
from ramet.agree.run import AnswersFile
from ramet.files import replacing


@dataclass(frozen=True, slots=True)
class Report:
    """The two runs, what they differ in (None where a file does not say it), their pairs, and the measures of all
    decisions, of each question type and of each question, and of the replies. `all` and `replies` are None where there
    are none of these."""

    a: AnswersFile
    b: AnswersFile
    gold: Gold | None
    threshold: float
    differences: list[Difference] | None
    pairs: Pairs
    all: Measures | None
    by_type: dict[str, Measures]
    by_question: dict[str, Measures]
    replies: ReplyMeasures | None

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
        replies = ReplyMeasures.of(pairs.replies) if pairs.replies else None
        differ = differences(a.heads, b.heads)
        if not pairs.decisions:
            return cls(a, b, gold, threshold, differ, pairs, None, {}, {}, replies)
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
        by_question = grouped(d.question for d in pairs.decisions)
        return cls(a, b, gold, threshold, differ, pairs, everything, by_type, by_question, replies)

    @property
    def agreement(self) -> Proportion:
        """Equal answers and equal replies, of all that there are."""
        parts = [] if self.all is None else [self.all.agreement]
        parts += [] if self.replies is None else [self.replies.equal]
        return Proportion(sum(part.count for part in parts), sum(part.of for part in parts))

    @property
    def changed(self) -> list[DecisionPair]:
        """The decisions with another likeliest option, the largest change first."""
        return sorted((d for d in self.pairs.decisions if d.changed), key=lambda d: -max(d.changes))

    @property
    def changed_replies(self) -> list[ReplyPair]:
        """The replies with another text, those first that part soonest."""
        return sorted((r for r in self.pairs.replies if r.changed), key=lambda r: r.positions.share)

    def as_json(self) -> dict[str, Any]:
        """The JSON object that docs/agree.md describes."""
        return {
            "a": _run_json(self.a), "b": _run_json(self.b), "gold": self.gold and _gold_json(self.gold),
            "threshold": self.threshold, "level": intervals.LEVEL,
            "resamples": intervals.N_RESAMPLES, "seed": intervals.SEED,
            "differences": None if self.differences is None else [each.as_json() for each in self.differences],
            "rows": self._rows_json(), "all": self.all and self.all.as_json(),
            "types": {name: m.as_json() for name, m in self.by_type.items()},
            "questions": {name: m.as_json() for name, m in self.by_question.items()},
            "replies": self.replies and self.replies.as_json(),
            "decisions": [_decision_json(d, self.threshold) for d in self.pairs.decisions],
            "texts": [_text_json(r) for r in self.pairs.replies],
        }  # fmt: skip

    def write(self, path: Path) -> None:
        with replacing(path) as made:
            made.write_text(json.dumps(self.as_json(), allow_nan=False) + "\n")

    def _rows_json(self) -> dict[str, Any]:
        pairs = self.pairs
        return {
            "compared": (0 if self.all is None else self.all.n_rows) + len(pairs.replies),
            "failed": [_failed_json(f) for f in pairs.failed],
            "only_in_a": [i.as_json() for i in pairs.only_a],
            "only_in_b": [i.as_json() for i in pairs.only_b],
            "asked_otherwise": [i.as_json() for i in pairs.asked_otherwise],
        }


def _run_json(run: AnswersFile) -> dict[str, Any]:
    return {
        "path": str(run.path), "models": run.models, "fingerprints": run.fingerprints, "rows": len(run.rows),
        "failed": run.n_failed, "heads": run.heads,
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


def _text_json(pair: ReplyPair) -> dict[str, Any]:
    positions = pair.positions
    return {
        **pair.row.as_json(), "a": {"text": pair.a.text, "finish_reason": pair.a.finish},
        "b": {"text": pair.b.text, "finish_reason": pair.b.finish}, "changed": pair.changed,
        "common": positions.n_common, "longest": positions.n_longest, "nats": positions.nats,
        "probabilities": positions.probabilities,
    }  # fmt: skip
