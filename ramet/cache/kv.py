"""Keys and values in pages: the tensors behind the page numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, eq=False)
class KeyValue:
    """One layer's pages. keys, values [n_pages, page_size, Hk, D]."""

    keys: torch.Tensor
    values: torch.Tensor

    def write(self, k: torch.Tensor, v: torch.Tensor, rows: torch.Tensor, slots: torch.Tensor) -> None:
        """Store rows [K] of k, v [T, Hk, D] in slots [K] (page * page_size + offset)."""
        if len(rows):
            self.keys.view(-1, *k.shape[1:])[slots] = k[rows]
            self.values.view(-1, *v.shape[1:])[slots] = v[rows]

    def copy(self, source: int, target: int) -> None:
        """Copy one page: a fork in the middle of a page writes into its own copy."""
        self.keys[target] = self.keys[source]
        self.values[target] = self.values[source]


@dataclass(frozen=True, slots=True, eq=False)
class PagedKeyValues:
    """The pages of every layer, allocated at once."""

    layers: tuple[KeyValue, ...]
    page_size: int

    @classmethod
    def allocate(
        cls, n_layers: int, n_pages: int, page_size: int, n_heads: int, head_dim: int, dtype: torch.dtype,
        device: torch.device,
    ) -> PagedKeyValues:  # fmt: skip
        shape = (n_pages, page_size, n_heads, head_dim)
        made = [KeyValue(*(torch.empty(shape, dtype=dtype, device=device) for _ in "kv")) for _ in range(n_layers)]
        return cls(tuple(made), page_size)

    def copy(self, source: int, target: int) -> None:
        for layer in self.layers:
            layer.copy(source, target)


def bytes_a_page(n_layers: int, page_size: int, n_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that one page takes over all layers, keys and values."""
    return 2 * n_layers * page_size * n_heads * head_dim * dtype.itemsize
