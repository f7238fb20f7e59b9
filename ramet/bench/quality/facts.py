"""The set of facts: short texts made of facts, and questions that one of them answers with yes or no."""

from __future__ import annotations

import random
from collections.abc import Callable

from ramet.bench.core.samples import JsonObject
from ramet.bench.quality.items import Item, ItemSet

Fact = tuple[str, str]  # a question that is to be answered with yes, and one with no
Story = tuple[str, list[Fact]]

_NAMES = ("Mara", "Jonas", "Priya", "Tom", "Elena", "Kofi", "Ines", "Dmitri", "Yuki", "Samuel")
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_GOODS = ("lamps", "kettles", "keyboards", "chairs", "tents", "mugs", "speakers", "shelves")
_CITIES = ("Lisbon", "Oslo", "Vienna", "Naples", "Dublin", "Prague", "Ghent", "Turin")
_PAYMENTS = ("credit card", "bank transfer", "gift card", "invoice")
_SYSTEMS = ("the payment service", "the search index", "the login page", "the mail queue", "the image store")
_CAUSES = ("an expired certificate", "a full disk", "a faulty cable", "a wrong configuration", "a memory leak")
_TASKS = ("the budget", "the brochure", "the contract", "the interview plan", "the poster", "the survey")


def facts(n: int, seed: int = 0) -> ItemSet:
    """n items, of which half are to be answered with yes."""
    draw = random.Random(f"facts {seed}")  # noqa: S311
    items = []
    for number in range(n):
        text, found = _STORIES[number % len(_STORIES)](draw)
        fact = draw.choice(found)
        is_true = number // len(_STORIES) % 2 == 0
        question: JsonObject = {"type": "noul", "instructions": fact[0] if is_true else fact[1]}
        items.append(Item(text, question, "true" if is_true else "false"))
    draw.shuffle(items)
    return ItemSet("facts", "made by a script of Ramet's, Apache-2.0", items)


def _order(draw: random.Random) -> Story:
    name = draw.choice(_NAMES)
    goods, others = draw.sample(_GOODS, 2)
    sent, came, never = draw.sample(_DAYS, 3)
    paid, unused = draw.sample(_PAYMENTS, 2)
    count = draw.randint(3, 9)
    broken = draw.choice((True, False))
    state = "two of them were broken" if broken else "all of them were in perfect condition"
    wants, not_wanted = draw.sample(("a refund", "a replacement", "a discount on the next order"), 2)
    text = (
        f"{name} ordered {count} {goods} and paid by {paid}. The parcel was sent on {sent} and arrived on {came}; "
        f"{state}. {name} now asks for {wants}."
    )
    whole = ("Did something arrive broken?", "Did everything arrive intact?")
    return text, [
        (f"Did the parcel arrive on {came}?", f"Did the parcel arrive on {never}?"),
        (f"Did {name} order {goods}?", f"Did {name} order {others}?"),
        (f"Did {name} pay by {paid}?", f"Did {name} pay by {unused}?"),
        (f"Does {name} ask for {wants}?", f"Does {name} ask for {not_wanted}?"),
        (f"Did {name} order more than two items?", "Did the order consist of one single item?"),
        whole if broken else (whole[1], whole[0]),
    ]


def _incident(draw: random.Random) -> Story:
    system, unharmed = draw.sample(_SYSTEMS, 2)
    cause, wrong = draw.sample(_CAUSES, 2)
    begin = draw.randint(1, 9)
    length = draw.randint(2, 9) * 10
    first, other = draw.sample(_NAMES, 2)
    lost = draw.choice((True, False))
    text = (
        f"At {begin}:15 in the morning {system} stopped answering. {first} was on call and found {cause}. After "
        f"{length} minutes everything worked again. {'Some' if lost else 'No'} customer data was lost. {other} will "
        "write the report."
    )
    data = ("Was customer data lost?", "Was all customer data kept?")
    return text, [
        (f"Was {cause} the cause of the outage?", f"Was {wrong} the cause of the outage?"),
        (f"Did {system} fail?", f"Did {unharmed} fail?"),
        (f"Did {first} find the cause?", f"Did {other} find the cause?"),
        (f"Will {other} write the report?", f"Will {first} write the report?"),
        ("Did the outage begin in the morning?", "Did the outage begin in the evening?"),
        ("Did the outage last less than two hours?", "Did the outage last longer than two hours?"),
        data if lost else (data[1], data[0]),
    ]


def _meeting(draw: random.Random) -> Story:
    first, second, absent = draw.sample(_NAMES, 3)
    done, due, other = draw.sample(_TASKS, 3)
    day, wrong = draw.sample(_DAYS, 2)
    agreed = draw.choice((True, False))
    vote = "Everybody agreed to the plan" if agreed else "They could not agree on the plan"
    text = (
        f"Notes of the meeting: {first} and {second} were there, {absent} was ill. {first} has finished {done}. "
        f"{second} takes care of {due} until {day}. {vote}."
    )
    plan = ("Was the plan agreed on?", "Was there disagreement about the plan?")
    return text, [
        (f"Is {second} responsible for {due}?", f"Is {first} responsible for {due}?"),
        (f"Is {done} finished?", f"Is {due} finished?"),
        (f"Was {absent} absent from the meeting?", f"Was {second} absent from the meeting?"),
        (f"Is {due} due on {day}?", f"Is {due} due on {wrong}?"),
        (f"Did they talk about {done}?", f"Did they talk about {other}?"),
        plan if agreed else (plan[1], plan[0]),
    ]


def _journey(draw: random.Random) -> Story:
    name = draw.choice(_NAMES)
    start, change, end, elsewhere = draw.sample(_CITIES, 4)
    day, back, wrong = draw.sample(_DAYS, 3)
    nights = draw.randint(2, 6)
    by_train = draw.choice((True, False))
    text = (
        f"{name} travels from {start} to {end} on {day}, by {'train' if by_train else 'plane'}, and changes in "
        f"{change}. The hotel in {end} is booked for {nights} nights; breakfast is not included. The way back is on "
        f"{back}."
    )
    rail = (f"Does {name} take the train?", f"Does {name} fly?")
    return text, [
        (f"Is {end} the destination?", f"Is {change} the destination?"),
        (f"Does {name} change in {change}?", f"Does {name} change in {elsewhere}?"),
        (f"Does {name} leave on {day}?", f"Does {name} leave on {wrong}?"),
        (f"Does {name} return on {back}?", f"Does {name} return on {day}?"),
        ("Does breakfast cost extra?", "Is breakfast included?"),
        rail if by_train else (rail[1], rail[0]),
    ]


def _stock(draw: random.Random) -> Story:
    few, many, none = draw.sample(_GOODS, 3)
    low, high = draw.randint(2, 5), draw.randint(40, 90)
    place, wrong = draw.sample(_CITIES, 2)
    day, never = draw.sample(_DAYS, 2)
    text = (
        f"The warehouse in {place} has {high} {many} and {low} {few}. There are no {none} left; new ones will come on "
        f"{day}. The roof leaks, but nothing has become wet so far."
    )
    return text, [
        (f"Are there more {many} than {few}?", f"Are there more {few} than {many}?"),
        (f"Are {none} sold out?", f"Are {many} sold out?"),
        (f"Is the warehouse in {place}?", f"Is the warehouse in {wrong}?"),
        (f"Will new {none} come on {day}?", f"Will new {none} come on {never}?"),
        ("Is the roof damaged?", "Has the stock become wet?"),
        (f"Are there fewer than ten {few}?", f"Are there fewer than ten {many}?"),
    ]


_STORIES: tuple[Callable[[random.Random], Story], ...] = (_order, _incident, _meeting, _journey, _stock)
