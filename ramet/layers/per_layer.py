"""Token embeddings that each layer has of its own, as Gemma 3n and Gemma 4 have them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from ramet.layers.output import OutputProjection
from ramet.layers.parts import LayerParts, Weights
from ramet.layers.run import LayerRun
from ramet.ops import Linear, Ops
from ramet.round import Queries, Stream


@dataclass(frozen=True, slots=True)
class PerLayerShape:
    """Embeddings of `size` for each token and layer, of the first `vocab_size` ids (Gemma 3n, Gemma 4)."""

    vocab_size: int
    size: int

    def inputs(self, weights: Weights, n_every: int, hidden_size: int, eps: float, ops: Ops) -> PerLayerInputs:
        """What layers of `hidden_size` are given; the MLPs of the first `n_every` but one work on all rows."""
        table, proj = weights.pop("per_layer_embedding"), weights.pop("per_layer_model_proj")
        norm = weights.pop("per_layer_norm").float()
        cut = (n_every - 1) * self.size

        def part(columns: slice) -> PerLayerPart:
            return PerLayerPart(table[:, columns], ops.pack(proj[columns]), norm, hidden_size, eps, ops)

        return PerLayerInputs(part(slice(cut)) if cut else None, part(slice(cut, None)))

    def build(self, parts: LayerParts, scale: torch.Tensor | None) -> PerLayer:
        """What joins a layer's own embedding; scale: what leaves the layer is multiplied by it."""
        output = parts.output("per_layer_proj", "per_layer_post_norm", scale)
        return PerLayer(parts.layer, parts.linear("per_layer_gate"), output, parts.ops)


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerPart:
    """What some layers, one behind the other, are given of each row: table [V, L * P] and proj [L * P, C] have the
    parts of these layers alone."""

    table: torch.Tensor
    proj: Linear
    norm: torch.Tensor
    hidden_size: int
    eps: float
    ops: Ops

    def __call__(self, tokens: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
        """tokens [N], their embeddings x [N, C] float32 -> for each layer [N, P], rounded where transformers rounds."""
        size = len(self.norm)
        known = functional.embedding(tokens, self.table)
        known = known * torch.tensor(size**0.5, dtype=known.dtype)
        context = self.proj(x.to(known.dtype)) * self.hidden_size**-0.5
        context = self.ops.rms_norm(context.view(-1, size), self.norm, self.eps).view(known.shape)
        return list(((context + known) * 2**-0.5).unflatten(1, (-1, size)).unbind(1))


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerInputs:
    """What every layer is given: `every` for the layers whose MLPs work on all rows, None where there are none, and
    `read` for those behind, on the rows that are read alone."""

    every: PerLayerPart | None
    read: PerLayerPart

    def __call__(self, stream: Stream, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """x [T, C] float32, the embeddings of the stream; for each layer [N, P], of the rows on which its MLP works."""
        inputs = [] if self.every is None else self.every(stream.tokens, x)
        rows = stream.read.rows
        if not len(rows):
            return inputs
        return [*inputs, *self.read(stream.tokens.index_select(0, rows), x.index_select(0, rows))]


@dataclass(frozen=True, slots=True, eq=False)
class PerLayer:
    """Joins layer number `layer`'s own embedding to what its MLP left: gate [P, C], and the output's product [C, P]."""

    layer: int
    gate: Linear
    output: OutputProjection
    ops: Ops

    def __call__(self, x: torch.Tensor, run: LayerRun, queries: Queries) -> torch.Tensor:
        """x [N, C] float32, the rows of `queries`; returns [N, C]."""
        gated = torch.cat((self.gate(x.to(run.dtype)), run.per_layer[self.layer]), 1)
        return self.output(self.ops.gated(gated, "gelu_tanh"), x, run, queries)
