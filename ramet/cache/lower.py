"""The levels below the device: pages and states as entries of the tiers, and back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from ramet.cache.kv import KeyValue
from ramet.cache.state import Recurrent
from ramet.cache.store import Store
from ramet.cache.tiers import Tiers


@dataclass(frozen=True, slots=True, eq=False)
class LowerLevels:
    """A `prefix_index.Lower`: copies between a store's tensors and the tiers, at once."""

    store: Store
    tiers: Tiers

    def __contains__(self, key: bytes) -> bool:
        return key in self.tiers

    def spill_page(self, key: bytes, page: int) -> None:
        self._put(key, self._page(page))

    def spill_state(self, key: bytes, slot: int) -> None:
        self._put(key, self._state(slot))

    def fetch_page(self, key: bytes, page: int) -> bool:
        return self._get(key, self._page(page))

    def fetch_state(self, key: bytes, slot: int) -> bool:
        return self._get(key, self._state(slot))

    def check(self, key: bytes) -> None:
        self.tiers.get(key)

    def has_lost(self, key: bytes) -> bool:
        return self.tiers.has_lost(key)

    def _put(self, key: bytes, parts: Iterator[tuple[str, torch.Tensor]]) -> None:
        if key not in self.tiers:
            self.tiers.put(key, {name: part.to("cpu", copy=True) for name, part in parts})

    def _get(self, key: bytes, parts: Iterator[tuple[str, torch.Tensor]]) -> bool:
        """Fill the parts from an entry, if it has them all in their shapes and dtypes."""
        entry = self.tiers.get(key)
        wanted = dict(parts)
        if entry is None or entry.keys() != wanted.keys():
            return False
        if any(entry[name].shape != part.shape or entry[name].dtype != part.dtype for name, part in wanted.items()):
            return False
        for name, part in wanted.items():
            part.copy_(entry[name])
        return True

    def _page(self, page: int) -> Iterator[tuple[str, torch.Tensor]]:
        for i, layer in enumerate(self.store.layers):
            if isinstance(layer, KeyValue):
                yield f"{i}.keys", layer.keys[page]
                yield f"{i}.values", layer.values[page]

    def _state(self, slot: int) -> Iterator[tuple[str, torch.Tensor]]:
        for i, layer in enumerate(self.store.layers):
            if isinstance(layer, Recurrent):
                yield f"{i}.window", layer.window[slot]
                yield f"{i}.state", layer.state[slot]
