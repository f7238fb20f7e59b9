"""LabelledRow: a request with what is right, read from a file and checked before any work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramet.agree.answer import NO, YES, Answer
from ramet.agree.lines import fault
from ramet.decide.calibration import ReadAs, n_options
from ramet.errors import InvalidRequest
from ramet.question import Choice, Question, Score
from ramet.quoting import cut, shown
from ramet.request import DecisionRequest
from ramet.rows import numbered_rows
from ramet.values import as_json

REMEDY = 'a line is a request with labels: {"state": ..., "questions": {...}, "gold": {"topic": "billing"}}'
MOST_SHOWN = 5  # wrong labels that an error lists


@dataclass(frozen=True, slots=True)
class LabelledRow:
    """A request at a line of the file, and the number of the right option of each labelled question, by name."""

    line: int
    request: DecisionRequest
    right: Mapping[str, int]


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file of any form that `ramet run` reads, with their lines' numbers, from 1. Raises
    InvalidRequest."""
    return numbered_rows(path, remedy=REMEDY)


def labelled_rows(path: Path, fields: Mapping[str, Any]) -> list[LabelledRow]:
    """All rows with labels, with `fields` put over those of their requests. Raises InvalidRequest, naming the line, for
    what is no request, for labels that are no options, and for rows that are to be read in different ways."""
    found, wrong, n_rows = list[LabelledRow](), list[str](), 0
    for line, data in read_rows(path):
        n_rows += 1
        gold = data.pop("gold", None)
        data.pop("id", None)
        if gold is None:
            continue
        if not isinstance(gold, dict):
            raise fault(path, line, f"`gold` is no object of labels by question; {REMEDY}")
        request, right = _request(path, line, {**data, **fields}), dict[str, int]()
        for name, label in gold.items():
            if label is not None:  # null says that nobody knows
                try:
                    right[name] = _option(request, name, label)
                except ValueError as error:
                    wrong.append(f"line {line}, question {shown(name)}: {cut(str(error), 400)}")
        if right:
            found.append(LabelledRow(line, request, right))
    _check(path, found, wrong, n_rows)
    return found


def options_of(question: Question) -> tuple[str, ...]:
    """The options' names in the order of an answer's probabilities; of a noul yes and no, of a score its levels'
    numbers."""
    if isinstance(question, Choice):
        return tuple(question.criteria)
    return tuple(map(str, range(len(question.criteria)))) if isinstance(question, Score) else (YES, NO)


def _request(path: Path, line: int, data: Mapping[str, Any]) -> DecisionRequest:
    try:
        return DecisionRequest.parse(data)
    except InvalidRequest as error:
        raise fault(path, line, f"{error}; {REMEDY}") from error


def _option(request: DecisionRequest, name: str, label: Any) -> int:
    """The number of the option that a label names. Raises ValueError."""
    question = request.questions.get(name)
    if question is None:
        raise ValueError(f"the row asks no such question; it asks {', '.join(map(shown, request.questions))}")
    options, n = options_of(question), n_options(question)
    legend = tuple(map(as_json, question.criteria)) if isinstance(question, Score) else ()
    return options.index(Answer(question.type, options, (1 / n,) * n, legend).option_of(label))


def _check(path: Path, found: list[LabelledRow], wrong: list[str], n_rows: int) -> None:
    if wrong:
        n = len(wrong)
        more = f" (and {n - MOST_SHOWN} more)" if n > MOST_SHOWN else ""
        listed = "; ".join(wrong[:MOST_SHOWN])
        raise InvalidRequest(f"{path}: {n} label{'s are' if n > 1 else ' is'} unknown: {listed}{more}")
    if not found:
        raise InvalidRequest(f"{path}: none of its {n_rows} rows has a label; {REMEDY}")
    ways: dict[tuple[ReadAs, str | None], int] = {}
    for row in found:
        ways.setdefault((ReadAs.of(row.request), row.request.x_method), row.line)
    if len(ways) > 1:
        first, second = list(ways.values())[:2]
        raise InvalidRequest(
            f"{path}: lines {first} and {second} are to be read in different ways: joint and the x_ fields of all rows "
            "must be alike; take them off the rows, and give options instead"
        )
