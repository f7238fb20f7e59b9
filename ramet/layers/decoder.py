"""A stack of layers over a stream: model(stream, cache) -> what was read."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

import torch

from ramet.cache.kv import PagedKeyValues
from ramet.layers.attention import Attention
from ramet.layers.mlp import GatedMLP
from ramet.ops import Linear, Ops
from ramet.round import Queries, Stream


@dataclass(frozen=True, slots=True)
class Shape:
    """What a family's configuration means to a decoder. `windows` has one entry a layer, 0 for full attention."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    eps: float
    max_positions: int
    windows: tuple[int, ...]
    qk_norm: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False

    @property
    def n_linear_parameters(self) -> int:
        """Parameters of all layers' products, the head left out."""
        heads = (2 * self.n_heads + 2 * self.n_kv_heads) * self.head_dim
        return self.n_layers * self.hidden_size * (heads + 3 * self.intermediate_size)


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    input_norm: torch.Tensor
    attention: Attention
    mlp_norm: torch.Tensor
    mlp: GatedMLP


class Decoder:
    """Embedding, layers, final norm and head on a device.

    Weights come by our names (see `families`) and are taken out of the mapping, so that no product's weight stays
    beside its packed form; `frequencies` [D/2] and `rotation_scale` are the family's rotary embedding.
    """

    def __init__(
        self,
        shape: Shape,
        weights: MutableMapping[str, torch.Tensor],
        frequencies: torch.Tensor,
        rotation_scale: float,
        ops: Ops,
    ) -> None:
        self.shape, self.ops = shape, ops
        self.embedding = weights.pop("embedding")
        self.frequencies, self.rotation_scale = frequencies.to(self.embedding.device), rotation_scale
        self.layers = [_layer(shape, i, weights, ops) for i in range(shape.n_layers)]
        self.final_norm = weights.pop("final_norm").float()
        self.head = ops.prepare(weights.pop("head", self.embedding))

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @torch.inference_mode()
    def __call__(self, stream: Stream, cache: PagedKeyValues | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [C] of the columns and logsumexp [R] of the reads, float32."""
        if not len(stream.read.rows):
            self.hidden(stream, cache)
            return torch.empty(0), torch.empty(0)
        return self.ops.read(self.hidden(stream, cache), self.head, stream)

    @torch.inference_mode()
    def hidden(self, stream: Stream, cache: PagedKeyValues | None) -> torch.Tensor:
        """The final hidden states [N, C] of the rows that are read. The last layer computes keys and values of
        all rows, and all else of these alone."""
        x = self.embedding[stream.tokens.long()]
        rotation = self._rotation(stream.positions)
        for i, layer in enumerate(self.layers):
            queries = stream.every if i + 1 < len(self.layers) else stream.read
            x = self._run(layer, x, rotation, stream, queries, cache, i)
        if not len(x):
            return x
        return self.ops.rms_norm(x, self.final_norm, self.shape.eps)

    def _run(
        self, layer: Layer, x: torch.Tensor, rotation: torch.Tensor, stream: Stream, queries: Queries,
        cache: PagedKeyValues | None, i: int,
    ) -> torch.Tensor:  # fmt: skip
        eps = self.shape.eps
        residual = x if queries is stream.every else x[queries.rows.long()]
        pages = cache.layers[i] if cache is not None else None
        normed = self.ops.rms_norm(x, layer.input_norm, eps)
        x = layer.attention(normed, residual, rotation, stream, queries, pages)
        if not len(x):  # nothing is read: the last layer only leaves its keys and values
            return x
        return layer.mlp(self.ops.rms_norm(x, layer.mlp_norm, eps), x)

    def _rotation(self, positions: torch.Tensor) -> torch.Tensor:
        """[T, 2, D/2] float32: cosines and sines of each row's angles, times the rotary scale."""
        angles = positions[:, None].float() * self.frequencies
        return torch.stack((angles.cos(), angles.sin()), 1) * self.rotation_scale


def _layer(shape: Shape, i: int, weights: MutableMapping[str, torch.Tensor], ops: Ops) -> Layer:
    def linear(name: str) -> Linear:
        return ops.pack(weights.pop(f"{i}.{name}"), weights.pop(f"{i}.{name}_bias", None))

    def norm(name: str) -> torch.Tensor | None:
        weight = weights.pop(f"{i}.{name}", None)
        return None if weight is None else weight.float()

    attention = Attention(
        q_proj=linear("q_proj"), kv_proj=linear("kv_proj"), o_proj=linear("o_proj"),
        q_norm=norm("q_norm"), k_norm=norm("k_norm"), n_heads=shape.n_heads, n_kv_heads=shape.n_kv_heads,
        eps=shape.eps, scale=shape.head_dim**-0.5, window=shape.windows[i], ops=ops,
    )  # fmt: skip
    mlp = GatedMLP(linear("gate_up_proj"), linear("down_proj"), ops)
    return Layer(weights.pop(f"{i}.input_norm").float(), attention, weights.pop(f"{i}.mlp_norm").float(), mlp)
