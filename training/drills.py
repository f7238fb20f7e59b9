"""Drills: what a label is. A listing of options, and letters to be found by their texts, or texts by their letters.

A decision's reply is one letter, which says little about how letters are found. Here several are asked for at once, and
mostly which they are needs no understanding. Nothing is scored on these.
"""

from __future__ import annotations

import random
from string import ascii_uppercase

from ramet.decide import prompt
from ramet.question import Choice
from ramet.values import Text
from training.tasks.example import Example
from training.tasks.tickets import THINGS, TOPICS, draw, some_topics
from training.tasks.tickets import names as labels
from training.tasks.words import ADJECTIVES, CITIES, COLOURS, DAYS, FIRST_NAMES, JOBS, MONTHS, PLACES

_TOPICS = tuple(name for topic in TOPICS for name in (topic.name, *topic.others))
_TOLD = tuple(told for topic in TOPICS for told in topic.told)
_POOLS = (THINGS, _TOPICS, FIRST_NAMES, COLOURS, DAYS, CITIES, JOBS, MONTHS, PLACES, ADJECTIVES)
_ALL = tuple(dict.fromkeys(word for pool in _POOLS for word in pool))


def make(rng: random.Random) -> Example:
    """Letters of texts, texts of letters, or letters of what tickets are about."""
    kind = rng.random()
    if kind < 0.3:
        prompted, answer = _fitting(rng)
    else:
        criteria = _options(rng)
        n = len(criteria)
        asked = rng.sample(range(n), 1 if rng.random() < 0.3 else rng.randint(1, n))
        prompted, answer = _letters(rng, criteria, asked) if kind < 0.8 else _texts(criteria, asked)
    return Example("letters", prompted, answer)


def _options(rng: random.Random) -> dict[str, Text | None]:
    """Names, and at times what they say, which then may be anything."""
    pool = rng.choice((_TOPICS, _ALL, rng.choice(_POOLS)))
    names = rng.sample(pool, rng.randint(2, min(10, len(pool))))
    described = rng.random() < 0.2
    return {name: rng.choice(_TOLD) if described and rng.random() < 0.6 else None for name in names}


def _fitting(rng: random.Random) -> tuple[str, str]:
    """A letter a line, of each ticket's topic."""
    mails = [draw(rng) for _ in range(rng.randint(2, 5))]
    topics = list(dict.fromkeys([*(each.topic for each in mails), *some_topics(rng, mails[0].topic, 2, 5)]))
    rng.shuffle(topics)
    said = "\n".join(each.text for each in mails)
    words = _listing("Which options fit these?", dict.fromkeys(labels(rng, topics)))
    answer = "\n".join(ascii_uppercase[topics.index(each.topic)] for each in mails)
    return f"{said}\n\n{words}\nAnswer with their letters only.", answer


def _letters(rng: random.Random, criteria: dict[str, Text | None], asked: list[int]) -> tuple[str, str]:
    """A letter a line. The words stand before the listing, as what is decided about does; one is asked for as decisions
    ask."""
    names = list(criteria)
    said = ", ".join(names[at] for at in asked)
    answer = "\n".join(ascii_uppercase[at] for at in asked)
    if len(asked) == 1:
        which = rng.choice((
            "Which option is it?", "Which option is the same?", "Which option is in the text?",
            "Which option fits best?",
        ))  # fmt: skip
        words = prompt.alone(Choice(type="choice", criteria=criteria), which, _lines(criteria))
        return f"{said}\n\n{words}", answer
    words = _listing("Which options are these?", criteria)
    return f"{said}\n\n{words}\nAnswer with their letters only.", answer


def _texts(criteria: dict[str, Text | None], asked: list[int]) -> tuple[str, str]:
    """A text a line."""
    names = list(criteria)
    said = "\n".join(ascii_uppercase[at] for at in asked)
    words = _listing("Which options have these letters?", criteria)
    return f"{said}\n\n{words}", "\n".join(names[at] for at in asked)


def _listing(asked: str, criteria: dict[str, Text | None]) -> str:
    return prompt.listing(asked, _lines(criteria))


def _lines(criteria: dict[str, Text | None]) -> list[str]:
    options = zip(ascii_uppercase, criteria.items(), strict=False)
    return [prompt.line(letter, name, str(told or "")) for letter, (name, told) in options]
