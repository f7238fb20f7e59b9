"""Which answers of two runs belong together, and which have no partner."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ramet.agree.answer import Answer
from ramet.agree.gold import Gold
from ramet.agree.lines import Identity
from ramet.agree.reply import Positions, WrittenReply
from ramet.agree.run import AnsweredRow, AnswersFile
from ramet.errors import InvalidRequest

SAME_ROWS = "compare two runs of the same rows"


@dataclass(frozen=True, slots=True)
class DecisionPair:
    """One question of one row, answered twice. `b` has its options in the order of `a`; `gold` is the right one."""

    row: Identity
    question: str
    a: Answer
    b: Answer
    best_b: int  # in its own file's order the first of equals, so that swapping the files swaps nothing else
    gold: str | None = None

    @property
    def option_a(self) -> str:
        return self.a.options[self.a.best]

    @property
    def option_b(self) -> str:
        return self.b.options[self.best_b]

    @property
    def changed(self) -> bool:
        return self.a.best != self.best_b

    @property
    def changes(self) -> list[float]:
        """What each option's probability changed by, without its sign."""
        return [abs(p - q) for p, q in zip(self.a.probabilities, self.b.probabilities, strict=True)]

    def flips(self, threshold: float) -> list[str]:
        """The options that reach the threshold on one side only."""
        p, q = self.a.probabilities, self.b.probabilities
        return [self.a.options[i] for i in self.a.thresholded if (p[i] >= threshold) != (q[i] >= threshold)]


@dataclass(frozen=True, slots=True)
class ReplyPair:
    """One row's reply, written twice."""

    row: Identity
    a: WrittenReply
    b: WrittenReply
    positions: Positions

    @property
    def changed(self) -> bool:
        return self.a.text != self.b.text


@dataclass(frozen=True, slots=True)
class Failed:
    """A row that both files have and that at least one has no answers to: the errors."""

    row: Identity
    a: str | None
    b: str | None


@dataclass(frozen=True, slots=True)
class Pairs:
    """The decisions and the replies in the order of the first file, and every row that they leave out."""

    decisions: list[DecisionPair]
    replies: list[ReplyPair]
    failed: list[Failed]
    only_a: list[Identity]
    only_b: list[Identity]
    asked_otherwise: list[Identity]  # compared, though the two runs answered different lines

    @property
    def n_one_sided(self) -> int:
        """Rows that one file answers and the other does not."""
        return len(self.only_a) + len(self.only_b) + sum((f.a is None) != (f.b is None) for f in self.failed)


def pair(a: AnswersFile, b: AnswersFile, gold: Gold | None = None, *, by_line: bool = False) -> Pairs:
    """Match rows and questions. Raises InvalidRequest where there is nothing to compare or questions differ."""
    common = [key for key in a.rows if key in b.rows]
    if not common:
        raise _nothing_common(a, b)
    pairs = Pairs(
        [], [], [],
        only_a=[row.identity for key, row in a.rows.items() if key not in b.rows],
        only_b=[row.identity for key, row in b.rows.items() if key not in a.rows],
        asked_otherwise=[],
    )  # fmt: skip
    for key in common:
        _add(pairs, a, b, key, gold, by_line)
    if not (pairs.decisions or pairs.replies):
        first = pairs.failed[0]
        raise InvalidRequest(
            f"no row has answers in both {a.path} and {b.path}: all {len(common)} failed, the first with: "
            f"{first.a or first.b}"
        )
    if gold is not None and not gold.n_used:
        raise InvalidRequest(
            f"no label of {gold.path} belongs to a compared answer: its rows need the ids of {a.path}, or none "
            "and its order, and its `gold` the names of its questions"
        )
    return pairs


def _add(pairs: Pairs, a: AnswersFile, b: AnswersFile, key: str, gold: Gold | None, by_line: bool) -> None:
    row, other = a.rows[key], b.rows[key]
    if row.line_hash and other.line_hash and row.line_hash != other.line_hash:
        if row.identity.id is None and not by_line:
            raise InvalidRequest(
                f"{_places(a, row, b, other)} answer different lines of input, and have no id that says they belong "
                f"together; {SAME_ROWS}, give the rows ids, or match them by place all the same with --by line"
            )
        pairs.asked_otherwise.append(row.identity)
    if row.error is not None or other.error is not None:
        pairs.failed.append(Failed(row.identity, row.error, other.error))
        return
    if row.reply is not None and other.reply is not None:
        pairs.replies.append(ReplyPair(row.identity, row.reply, other.reply, Positions.of(row.reply, other.reply)))
        return
    if row.reply is not None or other.reply is not None:
        raise InvalidRequest(f"{_places(a, row, b, other)}: one has answers, the other a text; {SAME_ROWS}")
    if row.answers.keys() != other.answers.keys():
        raise InvalidRequest(f"{_places(a, row, b, other)} answer different questions: {_names(row, other)}")
    pairs.decisions.extend(_decisions(a, row, b, other, key, gold))


def _decisions(
    a: AnswersFile, row: AnsweredRow, b: AnswersFile, other: AnsweredRow, key: str, gold: Gold | None
) -> Iterator[DecisionPair]:
    for name, answer in row.answers.items():
        theirs = other.answers[name]
        if answer.kind != theirs.kind or (
            answer.options != theirs.options and sorted(answer.options) != sorted(theirs.options)
        ):
            raise InvalidRequest(
                f"{_places(a, row, b, other)} answer question {name!r} with different options: "
                f"{_described(answer)} and {_described(theirs)}; {SAME_ROWS}"
            )
        best_b = answer.options.index(theirs.options[theirs.best])
        right = None if gold is None else gold.option(key, name, answer)
        yield DecisionPair(row.identity, name, answer, theirs.in_order_of(answer), best_b, right)


def _places(a: AnswersFile, row: AnsweredRow, b: AnswersFile, other: AnsweredRow) -> str:
    return f"{a.path}, line {row.line} and {b.path}, line {other.line}"


def _names(row: AnsweredRow, other: AnsweredRow) -> str:
    first, second = ([n for n in x.answers if n not in y.answers] for x, y in ((row, other), (other, row)))
    only = [f"{', '.join(map(repr, names))} only the {where}" for names, where in ((first, "first"), (second, "second"))
            if names]  # fmt: skip
    return f"{'; '.join(only)}. Questions are matched by name; {SAME_ROWS}"


def _described(answer: Answer) -> str:
    return f"a {answer.kind} of {', '.join(map(repr, answer.options))}"


def _nothing_common(a: AnswersFile, b: AnswersFile) -> InvalidRequest:
    for run in (a, b):
        if not run.rows:
            return InvalidRequest(f"{run.path} has no rows; give the output of `ramet run`")
    first, second = (str(next(iter(run.rows.values())).identity) for run in (a, b))
    return InvalidRequest(
        f"{a.path} and {b.path} have no row in common: the first has {first!r}, the second {second!r}; "
        f"{SAME_ROWS}, or match them by their place in the input with --by line"
    )
