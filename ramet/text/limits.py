"""RenderLimits: how many steps, letters and seconds one rendering of a chat template may take.

Steps and letters are counted, so that a template ends at the same place on every machine. Seconds are the thread's own
time, a last resort against operations that are counted as cheap.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable
from typing import Any

LETTERS = 1 << 25  # what a template may write, kept or not, however short its messages are
LETTERS_A_LETTER = 16  # and for each letter of the messages
STEPS = 1 << 19
STEPS_A_LETTER = 8
SECONDS = 5.0  # of one thread; a published template that looks at all messages for each takes 3 s for 1000
LETTERS_A_SECOND = 1 << 16
MAX_SECONDS = 30.0
DEPTH = 200  # of values in values: comparing or hashing deeper ones can overflow the interpreter's stack
BITS = 1 << 16  # of a whole number
ENTRY = 16  # letters that one entry of a list or dict counts for: what it takes in memory, at 4 bytes a letter
OBJECT = 64  # and a list or dict itself

_CLOCK = 1 << 16  # letters at which one operation is slow enough to look at the clock
CONTAINERS: tuple[Any, ...] = (list, tuple, dict, type({}.keys()), type({}.values()), type({}.items()))
_MEASURED = (*CONTAINERS, range)


class LimitReached(Exception):
    """A rendering met one of its limits; the text says which."""


class RenderLimits:
    """What one rendering may still use. Its `values`, plain JSON, come from a caller. It belongs to one thread."""

    def __init__(self, *values: Any) -> None:
        self._known: dict[int, tuple[int, int, Any]] = {}  # by id: weight, depth, and the value, which keeps its id
        self.max_letters = sys.maxsize  # while what a caller sent is weighed
        weight = sum(map(self.weight, values))
        self.max_letters = LETTERS + LETTERS_A_LETTER * weight
        self.max_steps = STEPS + STEPS_A_LETTER * weight
        self.max_seconds = min(MAX_SECONDS, SECONDS + weight // LETTERS_A_SECOND)
        self._letters = self.max_letters
        self._steps = self.max_steps
        self._ends = time.thread_time() + self.max_seconds

    def step(self) -> None:
        """Count one turn of a loop, or one call."""
        self._steps -= 1
        if not self._steps & 255:
            self._look()

    def write(self, letters: int) -> None:
        """Count letters that the template writes now, or that the next operation may write."""
        self._letters -= letters
        if letters > _CLOCK or self._letters < 0:
            self._look()

    def read(self, value: Any) -> None:
        """Look at the clock before an operation reads a long value."""
        if isinstance(value, str):
            long = len(value) > _CLOCK
        elif isinstance(value, _MEASURED):
            long = self.weight(value) > _CLOCK
        else:
            long = hasattr(type(value), "__next__")
        if long:
            self._look()

    def made(self, value: Any, source: Any = None) -> Any:
        """Count a value that an operation made of `source`, and return it."""
        if isinstance(value, str):
            self.write(len(value))
        elif isinstance(value, CONTAINERS):
            self.write(OBJECT + ENTRY * len(value))
            self._measured(value)
        elif isinstance(value, int):
            self.number(value)
        elif hasattr(type(value), "__next__"):  # its entries are counted as they come, what it holds is not seen
            self.write(OBJECT)
            self._keep(value, ENTRY, 1 + self.depth(source))
        return value

    def number(self, value: Any) -> None:
        """Raise LimitReached for a whole number that is too large to calculate with."""
        if isinstance(value, int):
            self.bits(value.bit_length())

    def bits(self, n: int) -> None:
        """Raise LimitReached for a whole number of more than BITS bits."""
        if n > BITS:
            raise LimitReached(f"reckons with numbers of more than {BITS} bits, the limit")

    def weight(self, value: Any) -> int:
        """The letters of a value and of all that it holds, counted as often as it holds them."""
        if isinstance(value, str):
            return len(value)
        if isinstance(value, CONTAINERS):
            return self._measured(value)[0]
        if isinstance(value, range):
            return ENTRY * len(value)
        return ENTRY + (value.bit_length() // 3 if isinstance(value, int) else 0)

    def depth(self, value: Any) -> int:
        """How deeply values are nested in a value; 0 where it holds none."""
        if isinstance(value, CONTAINERS):
            return self._measured(value)[1]
        found = self._known.get(id(value))
        return found[1] if found else 0

    def _measured(self, value: Any) -> tuple[int, int, Any]:
        if found := self._known.get(id(value)):
            return found
        weight, depth = ENTRY, 0
        for item in _entries(value):
            if type(item) is str:
                weight += ENTRY + len(item)
            elif isinstance(item, CONTAINERS):
                inner = self._measured(item)
                weight = weight + inner[0]
                depth = max(depth, inner[1])
            else:
                weight = weight + ENTRY + self.weight(item)
                depth = max(depth, self.depth(item))
        return self._keep(value, weight, depth + 1)

    def _keep(self, value: Any, weight: int, depth: int) -> tuple[int, int, Any]:
        if weight > self.max_letters:
            raise LimitReached(self._too_long())
        if depth > DEPTH:
            raise LimitReached(f"meets values nested more than {DEPTH} deep, the limit")
        found = self._known[id(value)] = (weight, depth, value)
        return found

    def _look(self) -> None:
        if self._letters < 0:
            raise LimitReached(self._too_long())
        if self._steps <= 0:
            raise LimitReached(f"takes more than {self.max_steps} steps, the limit for these messages")
        if time.thread_time() > self._ends:
            raise LimitReached(f"takes more than {self.max_seconds:g} seconds, the limit for these messages")

    def _too_long(self) -> str:
        return f"writes more than {self.max_letters} letters, the limit for these messages"


def _entries(value: Any) -> Iterable[Any]:
    """What a container holds: of a dict its keys and values."""
    if isinstance(value, dict):
        return itertools.chain(value.keys(), value.values())
    return itertools.chain.from_iterable(value) if isinstance(value, type({}.items())) else value
