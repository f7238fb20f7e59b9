"""What a family's configuration means to a decoder: shapes without weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from ramet.ops.shape import OpShape

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Softmax attention. window 0 sees all. rotary: which of the model's rotary embeddings. qk_norm: a norm on each
    query and key head; unit_values: one without a weight on each value head; gated: the output times the sigmoid of
    a gate, whose rows stand behind the queries' in q_proj. keys_of: the earlier layer whose keys and values this one
    reads, None where it has its own; keys_are_values: values are the keys' projection, before norm and rotation."""

    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    rotary: int = 0
    bias: bool = False
    qk_norm: bool = False
    unit_values: bool = False
    gated: bool = False
    keys_are_values: bool = False
    keys_of: int | None = None

    def op_shape(self, dtype: torch.dtype, *, has_experts: bool) -> OpShape:
        return OpShape(dtype, head_dim=self.head_dim, has_experts=has_experts)


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """A gated delta rule behind a short convolution (Gated DeltaNet, Yang et al. 2025)."""

    n_key_heads: int
    n_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def n_channels(self) -> int:
        """Channels of the convolution: queries, keys and values of all heads."""
        return 2 * self.n_key_heads * self.key_dim + self.n_value_heads * self.value_dim

    def op_shape(self, dtype: torch.dtype, *, has_experts: bool) -> OpShape:
        return OpShape(
            dtype, n_key_heads=self.n_key_heads, n_value_heads=self.n_value_heads, key_dim=self.key_dim,
            value_dim=self.value_dim, n_channels=self.n_channels, conv_width=self.conv_width, has_experts=has_experts,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MLPShape:
    size: int
    activation: Activation = "silu"
    bias: bool = False


@dataclass(frozen=True, slots=True)
class GroupsShape:
    """Experts chosen by sigmoids with a bias, of the `n_kept` best of `n_groups` groups alone, and weighed without it;
    weights come to `scale` (LLaDA2)."""

    n_groups: int
    n_kept: int
    scale: float


@dataclass(frozen=True, slots=True)
class ExpertsShape:
    """`n_experts` of `size`, of which each row takes `n_chosen` by a softmax, or by `groups`, and one of `shared_size`
    that all rows take (0: there is none), which may be gated (Qwen3.5-MoE)."""

    n_experts: int
    n_chosen: int
    size: int
    shared_size: int = 0
    shared_gated: bool = False
    groups: GroupsShape | None = None
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class DenseExpertsShape:
    """A gated MLP beside `n_experts` of `size`, of which each row takes `n_chosen` (Gemma 4)."""

    dense: MLPShape
    n_experts: int
    n_chosen: int
    size: int


@dataclass(frozen=True, slots=True)
class LayerShape:
    """post_norms: a norm on what each half of the layer adds (Gemma). scaled: what leaves the layer is multiplied by a
    number of its own (Gemma 4), or by one of two, that of canvases or that of other rows (DiffusionGemma)."""

    mixer: AttentionShape | DeltaShape
    mlp: MLPShape | ExpertsShape | DenseExpertsShape
    post_norms: bool = False
    scaled: bool = False

    def op_shape(self, dtype: torch.dtype) -> OpShape:
        """What the layer needs of its ops, with weights of this dtype."""
        return self.mixer.op_shape(dtype, has_experts=not isinstance(self.mlp, MLPShape))


@dataclass(frozen=True, slots=True)
class PerLayerShape:
    """Embeddings of `size` for each token and layer, of the first `vocab_size` ids (Gemma 3n, Gemma 4)."""

    vocab_size: int
    size: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder. rotaries: the layer types whose rotary embeddings it has (None: the configuration's only one).
    embedding_scale: what embeddings are multiplied by. softcap: logits become softcap * tanh(logits / softcap); 0
    leaves them. per_layer: token embeddings that each layer has of its own. conditioning: the MLP by which a canvas
    begins from what the step before made of it (DiffusionGemma)."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerShape, ...]
    eps: float
    max_positions: int
    rotaries: tuple[str | None, ...] = (None,)
    embedding_scale: float = 1.0
    softcap: float = 0.0
    per_layer: PerLayerShape | None = None
    conditioning: MLPShape | None = None

    @property
    def n_every(self) -> int:
        """How many layers, from the first, need every row: up to the last whose keys, values or state later rows
        may want. What lies behind them, and the rest of that last one, computes the rows that are read alone."""
        return 1 + max(i for i, layer in enumerate(self.layers) if keeps(layer.mixer))

    @property
    def lenders(self) -> frozenset[int]:
        """The layers whose keys and values others read."""
        mixers = (layer.mixer for layer in self.layers)
        return frozenset(m.keys_of for m in mixers if isinstance(m, AttentionShape) and m.keys_of is not None)

    @property
    def recurrent(self) -> bool:
        """Whether some layer folds what it has seen into a state."""
        return any(isinstance(layer.mixer, DeltaShape) for layer in self.layers)


def keeps(mixer: AttentionShape | DeltaShape) -> bool:
    """Whether a layer leaves something of each row to later ones."""
    return isinstance(mixer, DeltaShape) or mixer.keys_of is None
