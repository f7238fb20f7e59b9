"""Rewriting: sentences in another tense, voice, order or case, by rules with one right result."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from training.tasks.example import Example
from training.tasks.words import (
    ADJECTIVES,
    COLOURS,
    FIRST_NAMES,
    GOODS,
    JOBS,
    PLACES,
    VERBS,
    Verb,
    article,
    counted,
)  # fmt: skip


class _Sentence(NamedTuple):
    subject: str
    plural: bool
    verb: Verb
    thing: str
    where: str

    def present(self) -> str:
        return self._with(self.verb.base if self.plural else self.verb.third)

    def past(self) -> str:
        return self._with(self.verb.past)

    def future(self) -> str:
        return self._with(f"will {self.verb.base}")

    def negated(self) -> str:
        return self._with(f"{'do' if self.plural else 'does'} not {self.verb.base}")

    def asked(self) -> str:
        told = f"{'Do' if self.plural else 'Does'} {_inside(self.subject)} {self.verb.base} {self.thing}"
        return f"{told} {self.where}?"

    def _with(self, verb: str) -> str:
        return f"{self.subject} {verb} {self.thing} {self.where}."


def _inside(subject: str) -> str:
    """As it stands within a sentence."""
    return subject if subject in FIRST_NAMES or subject == "I" else subject[0].lower() + subject[1:]


def _sentence(rng: random.Random) -> _Sentence:
    kind = rng.random()
    if kind < 0.3:
        subject, plural = rng.choice(FIRST_NAMES), False
    elif kind < 0.5:
        subject, plural = rng.choice(
            (("I", True), ("You", True), ("We", True), ("They", True), ("He", False), ("She", False))
        )
    else:
        plural = rng.random() < 0.4
        subject = f"The {rng.choice(JOBS)}{'s' if plural else ''}"
    return _Sentence(subject, plural, rng.choice(VERBS), _thing(rng), rng.choice(PLACES))


def _thing(rng: random.Random) -> str:
    adjective = rng.choice((rng.choice(ADJECTIVES), rng.choice(COLOURS)))
    return f"the {adjective} {rng.choice(GOODS)}{'s' if rng.random() < 0.3 else ''}"


def _text(rng: random.Random) -> list[_Sentence]:
    return [_sentence(rng) for _ in range(rng.randint(1, 4))]


def _turned(rng: random.Random, turn: Callable[[_Sentence], str]) -> tuple[str, str]:
    text = _text(rng)
    return " ".join(each.present() for each in text), " ".join(turn(each) for each in text)


def _past(rng: random.Random) -> tuple[str, str]:
    return _turned(rng, _Sentence.past)


def _future(rng: random.Random) -> tuple[str, str]:
    return _turned(rng, _Sentence.future)


def _negated(rng: random.Random) -> tuple[str, str]:
    return _turned(rng, _Sentence.negated)


def _question(rng: random.Random) -> tuple[str, str]:
    return _turned(rng, _Sentence.asked)


def _passive(rng: random.Random) -> tuple[str, str]:
    """The agents are people with a job, so that no pronoun changes."""
    given, wanted = [], []
    for _ in range(rng.randint(1, 4)):
        verb, thing, where = rng.choice(VERBS), _thing(rng), rng.choice(PLACES)
        agent = rng.choice((rng.choice(FIRST_NAMES), f"the {rng.choice(JOBS)}"))
        was = "were" if thing.endswith("s") else "was"
        given.append(f"{agent[0].upper()}{agent[1:]} {verb.past} {thing} {where}.")
        wanted.append(f"{thing.capitalize()} {was} {verb.participle} by {agent} {where}.")
    return " ".join(given), " ".join(wanted)


def _polite(rng: random.Random) -> tuple[str, str]:
    given, wanted = [], []
    for _ in range(rng.randint(1, 4)):
        order = f"{rng.choice(VERBS).base} {_thing(rng)} {rng.choice(PLACES)}"
        given.append(f"{order.capitalize()}!")
        wanted.append(f"Could you please {order}?")
    return " ".join(given), " ".join(wanted)


def _upper(rng: random.Random) -> tuple[str, str]:
    text = " ".join(rng.sample(_flat(rng), rng.randint(3, 8)))
    return text, text.upper()


def _reversed(rng: random.Random) -> tuple[str, str]:
    words = rng.sample(_flat(rng), rng.randint(3, 9))
    return " ".join(words), " ".join(words[::-1])


def _flat(rng: random.Random) -> list[str]:
    """Words without an order."""
    return [*rng.sample(GOODS, 5), *rng.sample(ADJECTIVES, 5), *rng.sample(COLOURS, 3)]


def _listed(rng: random.Random) -> tuple[str, str]:
    things = []
    for noun in rng.sample(GOODS, rng.randint(3, 8)):
        named = f"{rng.choice(ADJECTIVES)} {noun}"
        n = rng.choice(("one", "two", "three", "four", "five", "six"))
        things.append(article(named) if n == "one" else counted(n, named))
    lines = [f"{number}. {thing}" for number, thing in enumerate(things, 1)]
    return f"{', '.join(things[:-1])} and {things[-1]}", "\n".join(lines)


class _Kind(NamedTuple):
    make: Callable[[random.Random], tuple[str, str]]
    asked: tuple[str, ...]


_KINDS = (
    _Kind(_past, ("Rewrite in the past tense", "Put this into the past tense")),
    _Kind(_future, ("Rewrite in the future tense", "Put this into the future tense")),
    _Kind(_negated, ("Make every sentence negative", "Negate each sentence")),
    _Kind(_question, ("Turn every sentence into a question", "Ask it as questions")),
    _Kind(_passive, ("Rewrite in the passive voice", "Put this into the passive")),
    _Kind(_polite, ("Make it polite", "Rewrite as polite requests")),
    _Kind(_upper, ("Write in capital letters", "Put this into upper case")),
    _Kind(_reversed, ("Reverse the order of the words", "Write the words backwards")),
    _Kind(_listed, ("Write as a numbered list", "Make a numbered list of this")),
)


def make(rng: random.Random) -> Example:
    kind = rng.choice(_KINDS)
    given, wanted = kind.make(rng)
    asked = rng.choice(kind.asked)
    prompt = rng.choice((f"{asked}: {given}", f"{asked}:\n\n{given}"))
    return Example("rewriting", prompt, wanted)
