"""Ways to read the questions of the sets: the method, how many orders are averaged, how much of the prior goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from ramet.bench.core.samples import JsonObject
from ramet.errors import InvalidRequest

OWN = "own"  # the model's own method, orders and priors
_NUMBERS: Mapping[str, Callable[[str], float]] = {"x_debias": int, "x_prior": float}


@dataclass(frozen=True, slots=True)
class QuestionReading:
    """`fields` are those of a request; it says what they may be."""

    name: str
    fields: JsonObject

    @classmethod
    def parse(cls, text: str) -> Self:
        """Of ``own``, or ``METHOD[:ORDERS[:PRIOR]]``. Raises InvalidRequest."""
        if text == OWN:
            return cls(text, {})
        method, *numbers = text.split(":")
        fields: JsonObject = {"x_method": method}
        try:
            for name, number in zip(_NUMBERS, numbers, strict=False):
                fields[name] = _NUMBERS[name](number)
            if len(numbers) > len(_NUMBERS):
                raise ValueError(f"{numbers[-1]!r} is too much")
        except ValueError as error:
            raise InvalidRequest(f"{text!r} is no METHOD[:ORDERS[:PRIOR]]: {error}", field="as") from error
        return cls(text, fields)
