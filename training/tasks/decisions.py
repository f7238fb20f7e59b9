"""Decisions about tickets, in the words that the method "letters" asks in: the reply is one label."""

from __future__ import annotations

import random
from collections.abc import Sequence
from string import ascii_uppercase, digits

from ramet.decide import prompt
from ramet.question import Choice, Noul, Outcomes, Question, Score
from ramet.values import Text, as_json
from training.tasks.example import Example
from training.tasks.tickets import MOODS, TOPICS, URGENCIES, WISHES, Ticket, draw, names, some_topics
from training.tasks.words import FIRST_NAMES

_SUBJECTS = ("a question", "help", "my order", "please read", "problem", "your shop")
_MOODS = (
    ("calm", "not upset", "friendly"), ("annoyed", "a bit upset", "slightly annoyed"),
    ("angry", "very upset", "furious"),
)  # fmt: skip
_URGENCIES = (
    ("can wait", "low", "not urgent"), ("this week", "medium", "somewhat urgent"), ("at once", "high", "very urgent"),
)  # fmt: skip
_WISHED = {
    "refund": ("money back", "a refund", "a refund of what was paid"), "replacement": ("a new one", "a replacement"),
    "call": ("a call", "to be called", "a phone call"), "none": ("nothing", "nothing at all"),
}  # fmt: skip


def make(rng: random.Random) -> Example:
    """A choice, a yes or no, or a score."""
    (ask,) = rng.choices((_topic, _wish, _signed, _noul, _score), (0.33, 0.13, 0.09, 0.25, 0.2))
    ticket, question, right = ask(rng)
    state = _state(rng, ticket)
    words, answer = _words(question, right)
    text = as_json(state)
    content = f"{text}\n\n{words}"
    return Example("decisions", content, answer, text, question, right)


def _state(rng: random.Random, ticket: Ticket) -> str | dict[str, str]:
    kind = rng.random()
    if kind < 0.5:
        return ticket.text
    if kind < 0.75:
        return f"Subject: {rng.choice(_SUBJECTS)}\n\n{ticket.text}"
    return {"ticket": ticket.text} if kind < 0.9 else {"subject": rng.choice(_SUBJECTS), "body": ticket.text}


def _words(question: Question, right: int) -> tuple[str, str]:
    """As decide/letters.py asks, in the order given."""
    labels, texts = _options(question)
    lines = [prompt.line(label, *each) for label, each in zip(labels, texts, strict=False)]
    return prompt.alone(question, prompt.instructions(question), lines), labels[right]


def _options(question: Question) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Labels, those and more, and what stands behind each."""
    if isinstance(question, Choice):
        return ascii_uppercase, [(name, as_json(told or "")) for name, told in question.criteria.items()]
    if isinstance(question, Score):
        return digits, [(as_json(level),) for level in question.criteria]
    outcomes = question.criteria or Outcomes()
    return ("yes", "no"), [(as_json(each or ""),) for each in (outcomes.true, outcomes.false)]


def _topic(rng: random.Random) -> tuple[Ticket, Question, int]:
    ticket = draw(rng)
    topics = some_topics(rng, ticket.topic, 2, 8)
    described = rng.random()
    told = [rng.choice(TOPICS[at].told) if rng.random() < described * 1.5 - 0.25 else None for at in topics]
    asked = rng.choice((
        "What is it about?", "Which team should answer?", "What is the topic?", "What went wrong?",
        "What is the ticket about?", "Which label fits?", "Which option fits best?",
    ))  # fmt: skip
    criteria: dict[str, Text | None] = dict(zip(names(rng, topics), told, strict=True))
    return ticket, Choice(type="choice", instructions=asked, criteria=criteria), topics.index(ticket.topic)


def _wish(rng: random.Random) -> tuple[Ticket, Question, int]:
    while (ticket := draw(rng)).wish < 0:
        pass
    wishes = list(range(len(WISHES)))
    rng.shuffle(wishes)
    criteria: dict[str, Text | None] = {rng.choice(_WISHED[WISHES[at][0]]): None for at in wishes}
    asked = rng.choice(("What does the customer want?", "What is wanted?", "What does the writer ask for?"))
    return ticket, Choice(type="choice", instructions=asked, criteria=criteria), wishes.index(ticket.wish)


def _signed(rng: random.Random) -> tuple[Ticket, Question, int]:
    """Who has written."""
    while not (ticket := draw(rng)).signed:
        pass
    people = [ticket.signed, *rng.sample([name for name in FIRST_NAMES if name != ticket.signed], rng.randint(1, 7))]
    rng.shuffle(people)
    asked = rng.choice(("Who wrote it?", "Who is the customer?", "Which name is in the ticket?"))
    criteria: dict[str, Text | None] = dict.fromkeys(people)
    return ticket, Choice(type="choice", instructions=asked, criteria=criteria), people.index(ticket.signed)


def _noul(rng: random.Random) -> tuple[Ticket, Question, int]:
    """Half of them true. What a ticket does not say is not so."""
    true = rng.random() < 0.5
    ticket, asked = rng.choice((_is_about, _is_angry, _is_urgent, _wants))(rng, true)
    described = rng.random() < 0.2
    criteria = Outcomes(true="It is so.", false="It is not so.") if described else None
    return ticket, Noul(type="noul", instructions=asked, criteria=criteria), 0 if true else 1


def _is_about(rng: random.Random, true: bool) -> tuple[Ticket, str]:
    ticket = draw(rng)
    other = rng.choice([at for at in range(len(TOPICS)) if at != ticket.topic])
    (name,) = names(rng, [ticket.topic if true else other])
    return ticket, rng.choice(("Is it about {}?", "Is this ticket about {}?", "Is the topic {}?")).format(name)


def _is_angry(rng: random.Random, true: bool) -> tuple[Ticket, str]:
    while ((ticket := draw(rng, full=True)).mood > 0) != true:
        pass
    return ticket, rng.choice(("Is the customer unhappy?", "Is the writer upset?", "Is the customer annoyed or angry?"))


def _is_urgent(rng: random.Random, true: bool) -> tuple[Ticket, str]:
    last = len(URGENCIES) - 1
    while ((ticket := draw(rng)).urgency == last) != true:
        pass
    return ticket, rng.choice(("Is it urgent?", "Must it be answered at once?", "Is the ticket very urgent?"))


def _wants(rng: random.Random, true: bool) -> tuple[Ticket, str]:
    wish = rng.randrange(len(WISHES) - 1)
    while ((ticket := draw(rng)).wish == wish) != true:
        pass
    return ticket, f"Does the customer want {rng.choice(_WISHED[WISHES[wish][0]])}?"


def _score(rng: random.Random) -> tuple[Ticket, Question, int]:
    ticket = draw(rng, full=True)
    if rng.random() < 0.5:
        levels, right = _MOODS, ticket.mood
        asked = rng.choice(("How upset is the customer?", "How angry is the writer?", "What is the mood?"))
    else:
        levels, right = _URGENCIES, ticket.urgency
        asked = rng.choice(("How urgent is it?", "How soon must it be answered?", "What is the urgency?"))
    assert len(levels) == len(MOODS) == len(URGENCIES)
    criteria: list[Text] = [rng.choice(names) for names in levels]
    return ticket, Score(type="score", instructions=asked, criteria=criteria), right
