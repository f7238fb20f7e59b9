"""Labelled items: a state, a question about it, and what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramet.bench.core.samples import JsonObject


@dataclass(frozen=True, slots=True)
class Item:
    """`question` as the wire format has it. gold: the name of the right option; "true" or "false" of a noul."""

    state: str
    question: JsonObject
    gold: str


@dataclass(frozen=True, slots=True)
class ItemSet:
    """Items of one kind, shuffled. `licence`: of the texts, and where they come from."""

    name: str
    licence: str
    items: Sequence[Item]

    def half(self, which: str) -> ItemSet:
        """The half by which settings are chosen, "choose", or that which is reported, "report"; or "all"."""
        first, step = {"all": (0, 1), "choose": (0, 2), "report": (1, 2)}[which]
        return replace(self, items=self.items[first::step])
