"""The tensors that a shape needs for what rounds leave to later ones."""

from __future__ import annotations

import torch

from ramet.cache.store import Store
from ramet.layers.shape import ModelShape


def allocate(
    shape: ModelShape, n_pages: int, page_size: int, n_states: int, dtype: torch.dtype, device: torch.device
) -> Store:
    """Pages and slots for every layer, uninitialised."""
    mixers = (layer.mixer for layer in shape.layers)
    return Store(tuple(own.allocate(n_pages, page_size, n_states, dtype, device) for own in mixers), page_size)


def row_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of one row's keys and values over all layers."""
    return sum(layer.mixer.row_bytes(dtype) for layer in shape.layers)


def state_bytes(shape: ModelShape, dtype: torch.dtype) -> int:
    """Bytes of one recurrent state over all layers; 0 where there is none."""
    return sum(layer.mixer.state_bytes(dtype) for layer in shape.layers)
