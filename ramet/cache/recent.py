"""A mapping in the order of last use, which knows how many bytes it holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Values by key, least recently used first. `measure` gives a value's bytes. Not thread-safe."""

    def __init__(self, measure: Callable[[V], int]) -> None:
        self.n_bytes = 0
        self._measure = measure
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: K) -> bool:
        """Whether the key is there. Does not count as a use."""
        return key in self._values

    def items(self) -> list[tuple[K, V]]:
        """All keys and values, least recently used first. Does not count as a use."""
        return list(self._values.items())

    def get(self, key: K) -> V | None:
        """The value, now the most recently used; None where there is none."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: K, value: V) -> None:
        """Set a value as the most recently used."""
        self.drop(key)
        self._values[key] = value
        self.n_bytes += self._measure(value)

    def drop(self, key: K) -> None:
        """Take a key out, if it is there."""
        value = self._values.pop(key, None)
        if value is not None:
            self.n_bytes -= self._measure(value)

    def oldest(self) -> tuple[K, V]:
        """The least recently used key. Raises StopIteration when there is none."""
        return next(iter(self._values.items()))

    def clear(self) -> None:
        self._values.clear()
        self.n_bytes = 0
