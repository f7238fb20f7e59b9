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
