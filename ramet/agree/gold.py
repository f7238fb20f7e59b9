"""Gold labels: what is right, by row and question."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.agree.answer import Answer
from ramet.agree.lines import Identity, check_new, fault
from ramet.rows import numbered_rows
from ramet.rows.text import Advance

REMEDY = 'a line looks like {"id": "row-1", "gold": {"topic": "billing", "angry": true, "urgency": 2}}'


@dataclass(frozen=True, slots=True)
class GoldLabels:
    """The labels of one row, at a line of the file, by question."""

    line: int
    by_question: dict[str, Any]


@dataclass(slots=True)
class Gold:
    """The labels of all rows, by the rows' keys. `n_used` counts those that belong to a decision."""

    path: Path
    rows: dict[str, GoldLabels] = field(default_factory=dict)
    n_used: int = 0

    @property
    def n_labels(self) -> int:
        return sum(len(labels.by_question) for labels in self.rows.values())

    def option(self, key: str, question: str, answer: Answer) -> str | None:
        """The right option of an answer, or None where there is no label. Raises InvalidRequest for an unknown one."""
        labels = self.rows.get(key)
        label = None if labels is None else labels.by_question.get(question)
        if labels is None or label is None:
            return None
        self.n_used += 1
        try:
            return answer.option_of(label)
        except ValueError as error:
            raise fault(self.path, labels.line, f"`gold`, question {question!r}: {error}") from error


def read_gold(path: Path, advance: Advance, *, by_line: bool = False) -> Gold:
    """Read the labels of a file; lines without `gold` have none. Raises InvalidRequest, which names the line."""
    gold = Gold(path)
    for position, (number, data) in enumerate(numbered_rows(path, advance, REMEDY)):
        labels = data.get("gold")
        if labels is None:
            continue
        if not isinstance(labels, dict):
            raise fault(path, number, f"`gold` is no object of labels by question; {REMEDY}")
        identity = Identity(data.get("id"), position)
        key = identity.key(by_line=by_line)
        check_new(path, number, identity, gold.rows[key].line if key in gold.rows else None)
        # null says that nobody knows: no label
        gold.rows[key] = GoldLabels(number, {name: label for name, label in labels.items() if label is not None})
    return gold
