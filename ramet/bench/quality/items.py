"""Labelled items: a state, a question about it, and what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    @property
    def to_choose(self) -> Sequence[Item]:
        """The half by which settings are chosen."""
        return self.items[::2]

    @property
    def to_report(self) -> Sequence[Item]:
        """The half that is reported."""
        return self.items[1::2]
