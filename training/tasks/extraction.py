"""Extraction: what a short text says, as JSON with the keys that are asked for."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable, Mapping
from typing import NamedTuple

from training.tasks.example import Example
from training.tasks.numbers import in_words
from training.tasks.words import CITIES, COLOURS, FIRST_NAMES, GOODS, LAST_NAMES, MONTHS, counted

Facts = dict[str, object]
_ASKED = ("Extract {} as JSON.", "Give {} as a JSON object.", "Return {} in JSON.")
_PAID = ("card", "cash", "invoice", "transfer", "voucher")


class _Record(NamedTuple):
    """facts draws what is known; texts tell all of it."""

    facts: Callable[[random.Random], Facts]
    texts: tuple[str, ...]


def _name(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def _date(rng: random.Random) -> str:
    return f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(6, 22):02}:{rng.choice((0, 5, 10, 15, 20, 25, 30, 35, 40, 45, 50, 55)):02}"


def _code(rng: random.Random) -> str:
    letters = "".join(rng.choices(string.ascii_uppercase, k=2))
    return f"{letters}-{rng.randint(100, 9999)}"


def _order(rng: random.Random) -> Facts:
    return {
        "order": rng.randint(10_000, 99_999), "name": _name(rng), "city": rng.choice(CITIES),
        "quantity": rng.randint(2, 90), "item": rng.choice(GOODS), "colour": rng.choice(COLOURS), "date": _date(rng),
        "payment": rng.choice(_PAID),
    }  # fmt: skip


def _meeting(rng: random.Random) -> Facts:
    host, guest = rng.sample(FIRST_NAMES, 2)
    topic = rng.choice(("budget", "contract", "design", "launch", "plan", "report", "schedule", "survey"))
    return {
        "host": host, "guest": guest, "topic": topic, "room": f"{rng.choice('ABCDE')}{rng.randint(1, 30)}",
        "date": _date(rng), "time": _time(rng), "minutes": rng.choice((15, 20, 30, 45, 60, 90)),
    }  # fmt: skip


def _trip(rng: random.Random) -> Facts:
    start, end = rng.sample(CITIES, 2)
    return {
        "name": _name(rng), "from": start, "to": end, "date": _date(rng), "time": _time(rng), "train": _code(rng),
        "seat": f"{rng.randint(1, 90)}{rng.choice('ABCD')}", "price": rng.randint(9, 250),
    }  # fmt: skip


def _invoice(rng: random.Random) -> Facts:
    return {
        "invoice": _code(rng), "company": f"{rng.choice(LAST_NAMES)} and {rng.choice(LAST_NAMES)}",
        "amount": rng.randint(20, 9999), "due": _date(rng), "city": rng.choice(CITIES), "contact": _name(rng),
    }  # fmt: skip


def _person(rng: random.Random) -> Facts:
    phone = f"{rng.randint(100, 999)}-{rng.randint(1000, 9999)}"
    return {
        "name": _name(rng), "age": rng.randint(18, 90), "city": rng.choice(CITIES), "phone": phone,
    }  # fmt: skip


_RECORDS = (
    _Record(_order, (
        "Order {order}: {name} from {city} wants {quantity} {colour} {item}s by {date}, paid by {payment}.",
        "{name} in {city} ordered {quantity} {colour} {item}s. The order number is {order}. It is due on {date} and "
        "will be paid by {payment}.",
        "On {date} we have to ship {quantity} {item}s, all of them {colour}, to {city}. The customer is {name}, the "
        "order {order}, the payment by {payment}.",
    )),
    _Record(_meeting, (
        "{host} invites {guest} to talk about the {topic} in room {room} on {date} at {time}, for {minutes} minutes.",
        "On {date} at {time} there is a meeting of {minutes} minutes about the {topic}. {host} leads it, {guest} is "
        "the guest. The room is {room}.",
        "Room {room} is booked by {host} on {date} from {time} on. {guest} comes too. Topic: {topic}. Length: "
        "{minutes} minutes.",
    )),
    _Record(_trip, (
        "{name} takes the train {train} from {from} to {to} on {date} at {time}. Seat {seat}, {price} euros.",
        "Ticket for {name}: {date}, {time}, from {from} to {to} by {train}, seat {seat}. The price is {price} euros.",
        "For {price} euros {name} travels to {to} on {date}. The train {train} leaves {from} at {time}; the seat is "
        "{seat}.",
    )),
    _Record(_invoice, (
        "Invoice {invoice} of {company}, {city}: {amount} euros, due on {date}. Ask {contact}.",
        "{company} in {city} must be paid {amount} euros by {due}. The invoice is {invoice}. The contact is {contact}.",
        "{contact} of {company} ({city}) sent us the invoice {invoice}. The amount is {amount} euros, due {due}.",
    )),
    _Record(_person, (
        "{name} is {age} years old and lives in {city}. Phone {phone}.",
        "My name is {name}, I am {age} and I live in {city}. You reach me at {phone}.",
        "Call {phone}: that is {name}, {age}, from {city}.",
    )),
)  # fmt: skip
_KEYS = tuple(sorted({key for record in _RECORDS for key in record.facts(random.Random(0))}))  # noqa: S311


def make(rng: random.Random) -> Example:
    """One record, or a list of what was bought."""
    prompt, answer = (_basket if rng.random() < 0.2 else _single)(rng)
    return Example("extraction", prompt, json.dumps(answer))


def _single(rng: random.Random) -> tuple[str, object]:
    """Some keys in any order; at times one that the text does not tell: null."""
    record = rng.choice(_RECORDS)
    facts = record.facts(rng)
    keys = rng.sample(sorted(facts), rng.randint(2, len(facts)))
    if rng.random() < 0.15:
        keys.insert(rng.randint(0, len(keys)), rng.choice([key for key in _KEYS if key not in facts]))
    text = rng.choice(record.texts).format_map({**facts, "date": facts.get("date", facts.get("due"))})
    return _asked(rng, text, keys), {key: facts.get(key) for key in keys}


def _basket(rng: random.Random) -> tuple[str, object]:
    """Several things in one list."""
    name, goods = rng.choice(FIRST_NAMES), rng.sample(GOODS, rng.randint(2, 5))
    counts = [rng.randint(2, 20) for _ in goods]
    said = [counted(in_words(n) if rng.random() < 0.5 else n, noun) for n, noun in zip(counts, goods, strict=True)]
    text = f"{name} {rng.choice(('buys', 'orders', 'packs', 'sells'))} {', '.join(said[:-1])} and {said[-1]}."
    items: list[Mapping[str, object]] = [{"item": g, "quantity": n} for n, g in zip(counts, goods, strict=True)]
    return _asked(rng, text, ["name", "items"]), {"name": name, "items": items}


def _asked(rng: random.Random, text: str, keys: list[str]) -> str:
    asked = rng.choice(_ASKED).format(", ".join(keys))
    return rng.choice((f"{asked}\n\n{text}", f"{text}\n\n{asked}", f"{asked} Text: {text}"))
