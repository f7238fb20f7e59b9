"""OpShape: what a layer needs of its ops."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class OpShape:
    """The sizes by which a variant of an op says whether it takes a layer; 0 for a part that the layer does not have.

    dtype: of weights, keys and values; the residual stream is float32 whatever it is. head_dim: of attention.
    n_key_heads to value_dim: of the gated delta rule. n_channels, conv_width: of the convolution before it.
    """

    dtype: torch.dtype
    head_dim: int = 0
    n_key_heads: int = 0
    n_value_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    n_channels: int = 0
    conv_width: int = 0
    has_experts: bool = False

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def takes_all(shape: OpShape) -> str | None:  # noqa: ARG001 - the signature of `Variant.takes`
    """The `takes` of a variant that computes every shape."""
    return None
