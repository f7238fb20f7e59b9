"""LabelledDecisions: answered questions whose right options are known, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Self

import numpy as np
import numpy.typing as npt

from ramet.agree.answer import KINDS
from ramet.calibrate.rows import LabelledRow, options_of
from ramet.decide.calibration import Kind, content_digest, n_options
from ramet.decision import Answer, NoulAnswer
from ramet.errors import InvalidRequest
from ramet.values import as_json

LEAST = 10  # decisions of a type, and of a question that gets something of its own
FLOOR = 2.0**-53  # below it the less likely side of a noul is lost in 1 - p
NONE = -1e30  # the log-probability of an option that a question has not

IntColumn = npt.NDArray[np.intp]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question by its content. The name and the options are those of the first row that has it."""

    digest: str
    name: str
    kind: Kind
    options: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledDecisions:
    """`log_p` [D, N]: log-probabilities of the options at the temperature 1, NONE behind the last of `n` [D] options.
    Each [D]: the number of the `right` option, of the type among KINDS, of the question among `questions`, of the row,
    and of the group of decisions with the same state and question."""

    log_p: FloatArray
    n: IntColumn
    right: IntColumn
    kind: IntColumn
    question: IntColumn
    row: IntColumn
    group: IntColumn
    questions: tuple[AskedQuestion, ...]

    @classmethod
    def of(cls, answered: Iterable[tuple[LabelledRow, Mapping[str, Answer] | None]]) -> Self:
        """From rows and their answers, which were asked for at the temperature 1; all options are alike where there are
        none yet."""
        logs, lines = list[FloatArray](), list[tuple[int, ...]]()
        questions, groups = dict[str, int](), dict[tuple[str, str], int]()
        listed = list[AskedQuestion]()
        for number, (row, answers) in enumerate(answered):
            for name, right in row.right.items():
                asked, digest = row.request.questions[name], content_digest(row.request.questions[name])
                if digest not in questions:
                    questions[digest] = len(listed)
                    listed.append(AskedQuestion(digest, name, asked.type, options_of(asked)))
                group = groups.setdefault((as_json(row.request.state), digest), len(groups))
                logs.append(np.zeros(n_options(asked)) if answers is None else _logs(answers[name]))
                lines.append((len(logs[-1]), right, KINDS.index(asked.type), questions[digest], number, group))
        padded = np.full((len(logs), max(map(len, logs), default=1)), NONE)
        for place, log_p in enumerate(logs):
            padded[place, : len(log_p)] = log_p
        n, rights, kinds, places, rows, members = np.array(lines, np.intp).reshape(-1, 6).T
        return cls(padded, n, rights, kinds, places, rows, members, tuple(listed))

    def __len__(self) -> int:
        return len(self.n)

    def only(self, chosen: npt.NDArray[np.bool_] | IntColumn) -> LabelledDecisions:
        """Some of the decisions."""
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        kept = {name: value if name == "questions" else value[chosen] for name, value in columns.items()}
        return LabelledDecisions(**kept)

    def scaled(self, temperatures: FloatArray) -> FloatArray:
        """Log-probabilities [D, N] at these temperatures [D]."""
        powers = self.log_p / temperatures[:, None]
        top = powers.max(axis=1, keepdims=True)
        found: FloatArray = powers - (top + np.log(np.exp(powers - top).sum(axis=1, keepdims=True)))
        return found

    def conflicts(self) -> list[IntColumn]:
        """The numbers of decisions about the same state and question that have different labels, group by group."""
        order = np.argsort(self.group, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(self.group[order])) + 1)
        return [part for part in parts if len(set(self.right[part].tolist())) > 1]

    @property
    def n_duplicates(self) -> int:
        """Decisions beyond the first of each group."""
        return len(self) - len(np.unique(self.group))

    def check(self) -> None:
        """Raise InvalidRequest, with the count, for a type with fewer than LEAST decisions, duplicates counted once, or
        with one label alone."""
        for place, kind in enumerate(KINDS):
            own = self.only(self.kind == place)
            n_own = len(np.unique(own.group))
            if 0 < n_own < LEAST:
                raise InvalidRequest(
                    f"there {'is' if n_own == 1 else 'are'} {n_own} labelled {kind}{'s' * (n_own > 1)}, duplicates "
                    f"counted once, and a fit takes {LEAST} at least: label more, or take the labels of these away"
                )
            if n_own and (own.right == own.right[0]).all():
                label = self.questions[int(own.question[0])].options[int(own.right[0])]
                is_one = len(np.unique(own.question)) == 1
                what = f"are {label!r}" if is_one else f"name option {int(own.right[0]) + 1} of their question"
                raise InvalidRequest(
                    f"all {len(own)} labels of a {kind} {what}: one class alone has nothing to be told from; label "
                    "rows of the others too"
                )


def _logs(answer: Answer) -> FloatArray:
    """Log-probabilities [n] of the options, in the question's order."""
    if isinstance(answer, NoulAnswer):
        p, least = [answer.noul, 1.0 - answer.noul], FLOOR
    else:
        p, least = list(answer.probabilities.values()), float(np.finfo(np.float64).tiny)
    found: FloatArray = np.log(np.maximum(np.array(p), least))
    return found
