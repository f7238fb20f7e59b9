"""Store: all tensors that rounds leave to later ones: pages of keys and values, and slots of recurrent states."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.cache.kv import KeyValue
from ramet.cache.state import Recurrent


@dataclass(frozen=True, slots=True, eq=False)
class Store:
    """A layer's entry is its pages, its states, or None where it reads another layer's."""

    layers: tuple[KeyValue | Recurrent | None, ...]
    page_size: int

    def pages(self, layer: int) -> KeyValue:
        """The pages of an attention layer that has its own keys and values."""
        own = self.layers[layer]
        assert isinstance(own, KeyValue)
        return own

    def states(self, layer: int) -> Recurrent:
        """The states of a recurrent layer."""
        own = self.layers[layer]
        assert isinstance(own, Recurrent)
        return own

    def copy_page(self, source: int, target: int) -> None:
        """Copy one page in all layers: a fork in the middle of a page writes into its own copy."""
        for layer in self.layers:
            if isinstance(layer, KeyValue):
                layer.copy(source, target)
