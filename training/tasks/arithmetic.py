"""Arithmetic in words: sums, differences, products and short stories, the working written out."""

from __future__ import annotations

import random

from training.tasks.example import Example
from training.tasks.numbers import in_words
from training.tasks.words import FIRST_NAMES, GOODS, counted

_PLAIN = ("What is {}?", "How much is {}?", "Work out {}.")
_SIGNS = {"plus": "+", "minus": "-", "times": "*"}
_MONEY = ("euros", "dollars", "pounds", "francs")


def make(rng: random.Random) -> Example:
    """One of four kinds."""
    prompt, answer = rng.choice((_plain, _boxes, _story, _story, _bill))(rng)
    return Example("arithmetic", prompt, answer)


def _plain(rng: random.Random) -> tuple[str, str]:
    """Two or three numbers, from left to right."""
    name = rng.choice(("plus", "plus", "minus", "minus", "times"))
    a, b = _operands(name, rng)
    words, total, shown = f"{in_words(a)} {name} {in_words(b)}", _result(name, a, b), f"{a} {_SIGNS[name]} {b}"
    lines = [f"{shown} = {total}."]
    if name != "times" and rng.random() < 0.4:
        c = rng.randint(0, total)
        words, lines, total = f"{words} minus {in_words(c)}", [*lines, f"{total} - {c} = {total - c}."], total - c
    return rng.choice(_PLAIN).format(words), " ".join([*lines, f"The answer is {in_words(total)}."])


def _operands(name: str, rng: random.Random) -> tuple[int, int]:
    if name == "times":
        return rng.randint(2, 9), rng.randint(2, 20)
    a, b = rng.randint(1, 99), rng.randint(1, 99)
    return (max(a, b), min(a, b)) if name == "minus" else (a, b)


def _result(name: str, a: int, b: int) -> int:
    return {"plus": a + b, "minus": a - b, "times": a * b}[name]


def _boxes(rng: random.Random) -> tuple[str, str]:
    n, each, noun = rng.randint(2, 9), rng.randint(2, 20), rng.choice(GOODS)
    box = rng.choice(("box", "crate", "shelf"))
    boxes = {"box": "boxes", "crate": "crates", "shelf": "shelves"}[box]
    asked = rng.choice((
        f"Each {box} holds {in_words(each)} {noun}s. How many {noun}s do {in_words(n)} {boxes} hold?",
        f"There are {in_words(n)} {boxes} with {in_words(each)} {noun}s each. How many {noun}s are there?",
    ))  # fmt: skip
    return asked, f"{n} * {each} = {n * each}. {in_words(n).capitalize()} {boxes} hold {in_words(n * each)} {noun}s."


def _story(rng: random.Random) -> tuple[str, str]:
    """Somebody has some, gets more or gives away, up to three times."""
    name, noun, has = rng.choice(FIRST_NAMES), rng.choice(GOODS), rng.randint(5, 60)
    told, worked = [f"{name} has {in_words(has)} {noun}s."], [f"{name} starts with {has} {noun}s."]
    for _ in range(rng.randint(1, 3)):
        gets = rng.random() < 0.5 or has < 12
        n = rng.randint(2, 40 if gets else has - 2)
        verb = rng.choice(("buys", "finds", "gets") if gets else ("sells", "loses", "gives away"))
        then = has + n if gets else has - n
        told.append(f"{name} {verb} {in_words(n)}{' more' if gets else ''}.")
        worked.append(f"{name} {verb} {n}: {has} {'+' if gets else '-'} {n} = {then}.")
        has = then
    told.append(rng.choice((f"How many {noun}s does {name} have now?", f"How many {noun}s are left with {name}?")))
    return " ".join(told), " ".join([*worked, f"{name} has {counted(in_words(has), noun)}."])


def _bill(rng: random.Random) -> tuple[str, str]:
    """Two kinds of goods at prices, and their total."""
    money, nouns = rng.choice(_MONEY), rng.sample(GOODS, 2)
    lines = [(rng.randint(2, 9), noun, rng.randint(2, 20)) for noun in nouns]
    bought = [f"{in_words(n)} {noun}s at {in_words(price)} {money} each" for n, noun, price in lines]
    worked = [f"{n} {noun}s cost {n} * {price} = {n * price} {money}." for n, noun, price in lines]
    first, second = (n * price for n, _, price in lines)
    total = first + second
    worked.append(f"{first} + {second} = {total}.")
    name = rng.choice(FIRST_NAMES)
    goods = " and ".join(bought)
    asked = rng.choice((
        f"{name} buys {goods}. What is the total?", f"What do {goods} cost together?",
        f"A bill lists {goods}. How much must {name} pay?",
    ))  # fmt: skip
    return asked, " ".join([*worked, f"The total is {in_words(total)} {money}."])
