"""Layer: a mixer and what works on each row by itself; and its shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ramet.layers.attention import AttentionMixer, AttentionShape
from ramet.layers.dense_experts import DenseExperts, DenseExpertsShape
from ramet.layers.experts import ChosenExperts, ExpertsShape
from ramet.layers.gated_delta import DeltaShape, GatedDeltaMixer
from ramet.layers.mlp import GatedMLP, MLPShape
from ramet.layers.parts import LayerParts
from ramet.layers.per_layer import PerLayer, PerLayerShape
from ramet.layers.run import LayerRun
from ramet.ops import OpShape
from ramet.round import Queries


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
        return self.mixer.op_shape(dtype, has_experts=self.mlp.has_experts)

    def build(self, parts: LayerParts, per_layer: PerLayerShape | None) -> Layer:
        """per_layer: the model's embeddings of each layer's own, if there are any."""
        scale = parts.take("scale").float() if self.scaled else None  # for what the layer ends with
        mixer = self.mixer.build(parts)
        if per_layer is None:
            return Layer(mixer, self.mlp.build(parts, scale))
        return Layer(mixer, self.mlp.build(parts, None), per_layer.build(parts, scale))


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A mixer, which alone looks at other rows, and what works on each row by itself."""

    mixer: AttentionMixer | GatedDeltaMixer
    mlp: GatedMLP | ChosenExperts | DenseExperts
    per_layer: PerLayer | None = None

    def __call__(self, x: torch.Tensor, run: LayerRun, given: Queries, queries: Queries) -> torch.Tensor:
        """x [N', C] float32, the rows of `given`; returns [N, C], the rows of `queries`."""
        x = self.mixer(x, run, given, queries)
        if not len(x):  # nothing is read: the layer only leaves its keys, values or state
            return x
        x = self.mlp(x, run, queries)
        return x if self.per_layer is None else self.per_layer(x, run, queries)
