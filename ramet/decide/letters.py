"""The method "letters": options listed in the prompt under labels, and the label read as the reply's first token."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from string import ascii_uppercase
from typing import NamedTuple

from ramet.decide import prompt
from ramet.decide.debias import orders
from ramet.decide.question_text import QuestionText
from ramet.decide.reply import ReplyStart
from ramet.errors import InvalidRequest
from ramet.question import Choice, Noul, Outcomes, Question, Score
from ramet.text.tokenizer import Tokenizer
from ramet.values import Text, as_json


class Label(NamedTuple):
    text: str
    id: int


class VerifiedLabels:
    """Labels that were verified to be one token each where a reply begins, with ids of their own.

    yes and no, the digits and A to Z are verified when this is built, AA to ZZ at their first use: the 27th option of a
    choice is AA, or the first pair that is one token. Other pairs are skipped, so a tokenizer sets its own limit on
    options.
    """

    def __init__(self, tokenizer: Tokenizer, start: ReplyStart) -> None:
        self._tokenizer = tokenizer
        self._start = start
        self.yes_no = self._verified(("yes", "no"))
        self.digits = self._verified("0123456789")
        self.letters = self._verified(ascii_uppercase)

    @property
    def complete(self) -> bool:
        """Whether every label that needs no second letter was found."""
        return len(self.yes_no) == 2 and len(self.digits) == 10 and len(self.letters) == 26

    @cached_property
    def pairs(self) -> tuple[Label, ...]:
        """AA, AB ... ZZ, as far as they are single tokens."""
        return self._verified(a + b for a in ascii_uppercase for b in ascii_uppercase)

    def take(self, question: Question, count: int, field: str) -> tuple[Label, ...]:
        """Labels for `count` options, by the question's type. Raises InvalidRequest where the tokenizer has too few."""
        if isinstance(question, Choice):
            found = self.letters if count <= len(self.letters) else self.letters + self.pairs
        else:
            found = self.yes_no if isinstance(question, Noul) else self.digits
        if count > len(found):
            raise InvalidRequest(
                f"this model's tokenizer has single-token labels for {len(found)} options, not for {count}; "
                'x_method "options" needs no labels',
                field=field,
            )
        return found[:count]

    def _verified(self, texts: Iterable[str]) -> tuple[Label, ...]:
        found: dict[int, Label] = {}
        for text in texts:
            token = self._start.single(self._tokenizer, text)
            if token is not None:
                found.setdefault(token, Label(text, token))
        return tuple(found.values())


def form(question: Question, labels: VerifiedLabels, n_orders: int, field: str, *, alone: bool = True) -> QuestionText:
    """A question in words: its options on lines of their own, in each of up to `n_orders` cyclic orders.

    A choice's labels go by place; yes and no, and the digits of levels, stay with their meaning. `alone`: whether the
    reply is to this question, so that its words say how to answer.
    """
    options = _options(question)
    chosen = labels.take(question, len(options), f"{field}.criteria")
    instructions = prompt.instructions(question)
    by_place = isinstance(question, Choice)
    letters = all(len(label.text) == 1 for label in chosen) or not by_place
    prompts, ids = [], []
    for order in orders(len(options), n_orders):
        given = {option: chosen[place if by_place else option] for place, option in enumerate(order)}
        lines = [prompt.line(given[option].text, *options[option]) for option in order]
        words = (
            prompt.alone(question, instructions, lines, letters=letters)
            if alone
            else prompt.unnumbered(instructions, lines)
        )
        prompts.append(words)
        ids.append(tuple(given[option].id for option in range(len(options))))
    return QuestionText(tuple(prompts), labels=tuple(ids))


def _options(question: Question) -> list[tuple[str, ...]]:
    """The texts of each option's line."""
    if isinstance(question, Choice):
        return [(name, _said(text)) for name, text in question.criteria.items()]
    if isinstance(question, Score):
        return [(as_json(level),) for level in question.criteria]
    outcomes = question.criteria or Outcomes()
    return [(_said(outcomes.true),), (_said(outcomes.false),)]


def _said(description: Text | None) -> str:
    return "" if description is None else as_json(description)
