"""An answer as it is compared: named options and their probabilities."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from ramet.values import as_json

Kind = Literal["noul", "choice", "score"]
KINDS: tuple[Kind, ...] = get_args(Kind)
YES, NO = "yes", "no"

SUM_ATOL = 0.01  # servers round their probabilities; what is further from 1 is no distribution


@dataclass(frozen=True, slots=True)
class Answer:
    """`probabilities` [n] of the `options` [n], in the order of the file; of a noul, yes and no.

    The options of a score are its levels' numbers, and `legend` [n] has their descriptions.
    """

    kind: Kind
    options: tuple[str, ...]
    probabilities: tuple[float, ...]
    legend: tuple[str, ...] = ()

    @classmethod
    def parse(cls, data: Any) -> Answer:
        """From the wire form. Raises ValueError that says what is wrong."""
        kind = data.get("type") if isinstance(data, dict) else None
        if kind == "noul":
            p = _probability("noul", data.get("noul"))
            return cls("noul", (YES, NO), (p, 1.0 - p))
        if kind not in ("choice", "score"):
            raise ValueError(f"it has no `type` among {', '.join(KINDS)}")
        given = data.get("probabilities")
        if not isinstance(given, dict) or not given:
            raise ValueError(f"a {kind} needs `probabilities`, an object of numbers")
        options = tuple(map(sys.intern, given))  # the same few names in every row
        probabilities = tuple(_probability(name, p) for name, p in given.items())
        if abs(math.fsum(probabilities) - 1.0) > SUM_ATOL:
            raise ValueError(f"its probabilities sum to {math.fsum(probabilities):.4g}, not to 1")
        return cls(kind, options, probabilities, _legend(data.get("legend"), options))

    @property
    def best(self) -> int:
        """Where the likeliest option is; of equals, the first."""
        return max(range(len(self.options)), key=self.probabilities.__getitem__)

    @property
    def thresholded(self) -> range:
        """The options that a threshold is held against: all of them, but of a noul yes alone."""
        return range(1 if self.kind == "noul" else len(self.options))

    def in_order_of(self, other: Answer) -> Answer:
        """The same answer with its options in another's order; both must have the same ones."""
        if self.options == other.options:
            return self
        places = {option: i for i, option in enumerate(self.options)}
        p = tuple(self.probabilities[places[option]] for option in other.options)
        return Answer(self.kind, other.options, p, other.legend)

    def option_of(self, label: Any) -> str:
        """The option that a gold label names; text of CSV may spell true, false and a level's number. Raises ValueError
        that lists what it may be."""
        if self.kind == "noul":
            if isinstance(label, bool) or (isinstance(label, str) and label.lower() in ("true", "false")):
                return YES if label is True or str(label).lower() == "true" else NO
            raise ValueError(f"{label!r} is no label of a noul: true or false")
        if self.kind == "score" and type(label) is int and str(label) in self.options:
            return str(label)
        names = self.options if self.kind == "choice" else self.legend
        if isinstance(label, str) and names.count(label) == 1:
            return self.options[names.index(label)]
        if self.kind == "score" and isinstance(label, str) and label in self.options:
            return label
        known = ", ".join(map(repr, names))
        numbers = f"a number among {', '.join(self.options)}, or one of " if self.kind == "score" else ""
        raise ValueError(f"{label!r} is no label of this {self.kind}: {numbers}{known}")


def _probability(name: str, value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= 1.0:
        return float(value)
    raise ValueError(f"{name!r} has {value!r} for a probability")


def _legend(given: Any, options: tuple[str, ...]) -> tuple[str, ...]:
    if not isinstance(given, Mapping):
        return ()
    return tuple(sys.intern(as_json(given.get(option, option))) for option in options)
