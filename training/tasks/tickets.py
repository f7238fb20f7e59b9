"""Tickets: short mails to a help desk, and the label that each must get."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import NamedTuple

from training.tasks.example import Example
from training.tasks.words import DAYS, FIRST_NAMES, GOODS

THINGS = (*GOODS, "headset", "laptop", "monitor", "phone", "router", "tablet")


class Topic(NamedTuple):
    """name: the label, with other names for it; told: what it means; said: what customers write."""

    name: str
    others: tuple[str, ...]
    told: tuple[str, ...]
    said: tuple[str, ...]


TOPICS = (
    Topic("billing", ("invoice", "payment"), ("A wrong charge or invoice", "The invoice is wrong."), (
        "I was charged twice for the {thing}.", "My invoice for the {thing} shows the wrong amount.",
        "You took {n} euros too much from my card.", "There is a charge of {n} euros that I do not know.",
        "The bill that I got on {day} is wrong.", "Why did I pay {n} euros for one {thing}?",
        "The discount is missing on my invoice.", "I got two invoices for the same {thing}.",
    )),
    Topic("delivery", ("delay", "shipping"), ("A late or lost parcel", "The delivery is late."), (
        "My {thing} has not arrived.", "The parcel was due on {day} and is still not here.",
        "I have waited {n} days for the {thing}.", "The tracking has not changed since {day}.",
        "Where is my parcel?", "The driver did not come on {day}.", "My {thing} went to the wrong address.",
        "The delivery of the {thing} is late.",
    )),
    Topic("damage", ("broken", "defect"), ("A damaged product", "The product is damaged."), (
        "The {thing} came broken.", "The screen of the {thing} is cracked.", "The {thing} has a big scratch.",
        "My new {thing} fell apart on {day}.", "The {thing} does not work any more.",
        "One part of the {thing} was broken when I opened the box.", "The {thing} arrived with a crack.",
        "After {n} days the {thing} stopped working.",
    )),
    Topic("login", ("account", "access"), ("Trouble with logging in", "The password does not work."), (
        "I cannot log in.", "My password does not work.", "The page says that my account is locked.",
        "I forgot my password.", "The reset link never came.", "Since {day} I cannot get into my account.",
        "The code for logging in is refused.", "My account was locked after {n} tries.",
    )),
    Topic("return", ("exchange", "send back"), ("Sending something back", "The customer sends it back."), (
        "I want to send the {thing} back.", "How do I return the {thing}?", "The {thing} is too small for me.",
        "I need a label to return the {thing}.", "The {thing} is not what I wanted, I will send it back.",
        "Can I change the {thing} for a larger one?", "I sent the {thing} back on {day}.",
        "Which address do I send the {thing} back to?",
    )),
    Topic("cancel", ("cancellation", "stop"), ("Ending a contract or an order", "The customer wants to end it."), (
        "I want to cancel my subscription.", "Please cancel my order of the {thing}.", "Please end my contract.",
        "I do not need the {thing} any more, please stop the order.", "Stop my subscription from {day} on.",
        "How do I cancel my plan?", "I want to leave, please close my contract.",
        "Cancel the {thing} before you send it.",
    )),
    Topic("product", ("question", "information"), ("A question about a product", "Somebody asks about a product."), (
        "Does the {thing} come in blue?", "How long does the {thing} last?", "Is the {thing} made of wood?",
        "What does the {thing} weigh?", "Do you still sell the {thing}?", "How large is the {thing}?",
        "Can the {thing} be used outside?", "When will you have the {thing} again?",
    )),
    Topic("app", ("website", "bug"), ("A fault of the app or the site", "The app does not work."), (
        "The app crashes when I open it.", "Your website shows an error.", "The search on your site finds nothing.",
        "The app is very slow since {day}.", "The button for paying does nothing.",
        "After the update the app is empty.",
        "Your site does not load on my phone.", "The app stops after {n} seconds.",
    )),
    Topic("address", ("moving", "contact"), ("A change of name or address", "The customer has moved."), (
        "I have moved, please change my address.", "My street is wrong in your files.",
        "Please change my name in my account, I have married.", "I have a new phone number.",
        "My new mail address must be changed in your files.", "From {day} on I live in another city.",
        "Please use my new address for all letters.", "I moved {n} days ago and need to change my address.",
    )),
    Topic("praise", ("thanks", "compliment"), ("Thanks and praise", "The customer is happy and says so."), (
        "The {thing} is wonderful.", "Thank you for the quick help.", "Your team did a great job on {day}.",
        "I love my new {thing}.", "Everything went very well with the {thing}.", "Great service, thank you!",
        "I only want to say thanks for the {thing}.", "This is the best {thing} that I ever had.",
    )),
)  # fmt: skip
MOODS = (  # from the mildest on
    ("calm", ("I hope you are well.", "Kind regards.", "No hurry on my side.", "Have a nice day.")),
    ("annoyed", ("This is a bit annoying.", "I am not happy about it.", "I expected more.", "That is disappointing.")),
    ("angry", ("I am really angry!", "This is a scandal!", "I have had enough of you!", "That makes me furious!")),
)
URGENCIES = (
    ("low", ("It can wait.", "Take your time.", "Whenever you find time.", "There is no rush.")),
    ("medium", ("Please answer this week.", "I need it by {day}.", "A reply in some days is fine.")),
    ("high", ("It is very urgent!", "I need an answer today.", "Please help me at once.", "It must be done now.")),
)
WISHES = (
    ("refund", ("I want my money back.", "Please give me a refund.", "Pay me back the {n} euros.")),
    ("replacement", ("Please send me a new one.", "I would like another one instead.", "Send a replacement, please.")),
    ("call", ("Please call me.", "Give me a call on {day}.", "I want to speak to somebody on the phone.")),
    ("none", ("That is all.", "I thought that you should know.", "There is nothing else.")),
)
_OPENINGS = ("Hello,", "Hi,", "Good morning,", "Dear team,", "Hello there.", "To whom it may concern:", "")


class Ticket(NamedTuple):
    """A mail, and what it holds: places in TOPICS, MOODS, URGENCIES and WISHES; -1 where it says nothing of that.
    signed: by whom, if by anybody."""

    text: str
    topic: int
    mood: int = -1
    urgency: int = -1
    wish: int = -1
    signed: str = ""


def draw(rng: random.Random, *, full: bool = False) -> Ticket:
    """full: one that says everything."""
    topic = rng.randrange(len(TOPICS))
    kinds = (MOODS, URGENCIES, WISHES)
    rest = [rng.randrange(len(each)) if full or rng.random() < 0.4 else -1 for each in kinds]
    said = [rng.choice(kind[at][1]) for kind, at in zip(kinds, rest, strict=True) if at >= 0]
    rng.shuffle(said)
    said.insert(0 if rng.random() < 0.7 else rng.randint(0, len(said)), rng.choice(TOPICS[topic].said))
    body = " ".join(said).format(thing=rng.choice(THINGS), n=rng.randint(2, 90), day=rng.choice(DAYS))
    opening, signed = rng.choice(_OPENINGS), rng.choice(FIRST_NAMES) if rng.random() < 0.4 else ""
    text = f"{opening} {body} {signed}".strip()
    mood, urgency, wish = rest
    return Ticket(text, topic, mood, urgency, wish, signed)


def names(rng: random.Random, topics: Sequence[int]) -> list[str]:
    """A label for each topic: mostly its name."""
    return [TOPICS[at].name if rng.random() < 0.6 else rng.choice(TOPICS[at].others) for at in topics]


def some_topics(rng: random.Random, right: int, least: int = 3, most: int = 8) -> list[int]:
    """Topics to choose from, the right one among them, in any order."""
    others = [at for at in range(len(TOPICS)) if at != right]
    found = [right, *rng.sample(others, rng.randint(least, most) - 1)]
    rng.shuffle(found)
    return found


def make(rng: random.Random) -> Example:
    """One label, one label a ticket, or all that a ticket says as JSON."""
    prompt, answer = rng.choice((_label, _labels, _triage))(rng)
    return Example("tickets", prompt, answer)


def _label(rng: random.Random) -> tuple[str, str]:
    ticket = draw(rng)
    topics = some_topics(rng, ticket.topic)
    labels = names(rng, topics)
    asked = rng.choice(
        ("Label this ticket with one of", "Which label fits this ticket", "Choose the label of this ticket")
    )
    listed = f"{asked}: {', '.join(labels)}{'?' if asked.startswith('Which') else '.'}"
    return _beside(rng, listed, f"Ticket: {ticket.text}"), labels[topics.index(ticket.topic)]


def _labels(rng: random.Random) -> tuple[str, str]:
    tickets = [draw(rng) for _ in range(rng.randint(2, 5))]
    topics = list(dict.fromkeys([*(each.topic for each in tickets), *some_topics(rng, tickets[0].topic, 2, 4)]))
    rng.shuffle(topics)
    labels = names(rng, topics)
    asked = rng.choice(("Label each ticket with one of", "Give each of these tickets one label of"))
    lines = [f"{number}. {each.text}" for number, each in enumerate(tickets, 1)]
    answer = "\n".join(f"{n}: {labels[topics.index(each.topic)]}" for n, each in enumerate(tickets, 1))
    return _beside(rng, f"{asked}: {', '.join(labels)}.", "\n".join(lines)), answer


def _triage(rng: random.Random) -> tuple[str, str]:
    """The topics by their own names; null where the ticket says nothing."""
    ticket = draw(rng, full=rng.random() < 0.3)
    found: dict[str, str | None] = {"topic": TOPICS[ticket.topic].name}
    rest = (("mood", MOODS, ticket.mood), ("urgency", URGENCIES, ticket.urgency), ("wish", WISHES, ticket.wish))
    found |= {key: kind[at][0] if at >= 0 else None for key, kind, at in rest}
    asked = rng.choice((
        "Triage this ticket: topic, mood, urgency and wish as JSON.", "Give topic, mood, urgency, wish as JSON.",
        "What are the topic, mood, urgency and wish of this ticket? Answer in JSON.",
    ))  # fmt: skip
    return _beside(rng, asked, f"Ticket: {ticket.text}"), json.dumps(found)


def _beside(rng: random.Random, asked: str, text: str) -> str:
    return f"{asked}\n\n{text}" if rng.random() < 0.7 else f"{text}\n\n{asked}"
