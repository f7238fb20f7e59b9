"""The tensors that a shape needs for what rounds leave to later ones."""

from __future__ import annotations

import torch

from ramet.cache.kv import KeyValue
from ramet.cache.state import Recurrent
from ramet.cache.store import Store
from ramet.layers.shape import AttentionShape, DeltaShape, Shape, keeps


def allocate(
    shape: Shape, n_pages: int, page_size: int, n_states: int, dtype: torch.dtype, device: torch.device
) -> Store:
    """Pages and slots for every layer, uninitialised."""

    def pages(own: AttentionShape) -> KeyValue:
        size = (n_pages, page_size, own.n_kv_heads, own.head_dim)
        return KeyValue(*(torch.empty(size, dtype=dtype, device=device) for _ in "kv"))

    def states(own: DeltaShape) -> Recurrent:
        window = (n_states, own.conv_width - 1, own.n_channels)
        state = (n_states, own.n_value_heads, own.key_dim, own.value_dim)
        return Recurrent(torch.empty(window, dtype=dtype, device=device), torch.empty(state, device=device))

    made: list[KeyValue | Recurrent | None] = []
    for layer in shape.layers:
        own = layer.mixer
        if isinstance(own, DeltaShape):
            made.append(states(own))
        else:
            made.append(pages(own) if keeps(own) else None)
    return Store(tuple(made), page_size)


def row_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of one row's keys and values over all layers."""
    owners = [m for m in _mixers(shape) if isinstance(m, AttentionShape) and keeps(m)]
    return sum(2 * own.n_kv_heads * own.head_dim * dtype.itemsize for own in owners)


def state_bytes(shape: Shape, dtype: torch.dtype) -> int:
    """Bytes of one recurrent state over all layers; 0 where there is none."""
    owners = [m for m in _mixers(shape) if isinstance(m, DeltaShape)]
    return sum(
        4 * own.n_value_heads * own.key_dim * own.value_dim + (own.conv_width - 1) * own.n_channels * dtype.itemsize
        for own in owners
    )


def _mixers(shape: Shape) -> list[AttentionShape | DeltaShape]:
    return [layer.mixer for layer in shape.layers]
