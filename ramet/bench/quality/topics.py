"""The set of topics: short messages of users, and the intents among which theirs is."""

from __future__ import annotations

import csv
import io
import json
import random
from collections.abc import Sequence

from ramet.bench.core.samples import JsonObject
from ramet.bench.quality.items import Item, ItemSet
from ramet.bench.quality.sources import BANKING, CLINC, Sources

N_OPTIONS = 8
LICENCE = "CLINC150 (CC BY 3.0) and BANKING77 (CC BY 4.0), half each, from their repositories"


def topics(sources: Sources, n: int, seed: int = 0) -> ItemSet:
    """n messages, half of assistants' users and half of a bank's customers, each with the right intent and seven
    others, in an order by chance. Intents are called by their names, underscores as spaces."""
    draw = random.Random(f"topics {seed}")  # noqa: S311
    clinc = [(text, intent) for text, intent in json.loads(sources.text(CLINC))["test"]]
    banking = [(row["text"], row["category"]) for row in csv.DictReader(io.StringIO(sources.text(BANKING)))]
    items = [*_items(clinc, n // 2, draw), *_items(banking, n - n // 2, draw)]
    draw.shuffle(items)
    return ItemSet("topics", LICENCE, items)


def _items(labelled: Sequence[tuple[str, str]], n: int, draw: random.Random) -> list[Item]:
    intents = sorted({intent for _, intent in labelled})
    return [_item(text.strip(), intent, intents, draw) for text, intent in draw.sample(labelled, n)]


def _item(text: str, intent: str, intents: Sequence[str], draw: random.Random) -> Item:
    others = draw.sample([other for other in intents if other != intent], N_OPTIONS - 1)
    options = [intent, *others]
    draw.shuffle(options)
    criteria: JsonObject = {_words(option): None for option in options}
    question: JsonObject = {"type": "choice", "instructions": "What is the message about?", "criteria": criteria}
    return Item(text, question, _words(intent))


def _words(intent: str) -> str:
    return " ".join(intent.replace("_", " ").split())
