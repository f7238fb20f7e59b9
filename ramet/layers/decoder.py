"""A stack of layers over a stream: model(stream, store) -> what was read."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass

import torch

from ramet.cache.store import Store
from ramet.layers.attention import Attention
from ramet.layers.gated_delta import GatedDelta
from ramet.layers.mlp import GatedMLP
from ramet.layers.output import Output
from ramet.layers.run import Rotary, Run
from ramet.layers.shape import AttentionShape, DeltaShape, LayerShape, Shape
from ramet.ops import Linear, Ops
from ramet.round import Queries, Stream

Weights = MutableMapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A mixer, which alone looks at other rows, and what works on each row by itself."""

    mixer: Attention | GatedDelta
    mlp: GatedMLP

    def __call__(self, x: torch.Tensor, run: Run, given: Queries, queries: Queries) -> torch.Tensor:
        """x [N', C], the rows of `given`; returns [N, C], the rows of `queries`."""
        x = self.mixer(x, run, given, queries)
        if not len(x):  # nothing is read: the layer only leaves its keys, values or state
            return x
        return self.mlp(x, run, queries)


class Decoder:
    """Embedding, layers, final norm and head on a device.

    Weights come by our names (see `families`) and are taken out of the mapping, so that no product's weight stays
    beside its packed form. `rotaries` are the rotary embeddings of shape.rotaries.
    """

    def __init__(self, shape: Shape, weights: Weights, rotaries: Sequence[Rotary], ops: Ops) -> None:
        self.shape, self.ops = shape, ops
        self.embedding = weights.pop("embedding")
        self.rotaries = [(frequencies.to(self.embedding.device), scale) for frequencies, scale in rotaries]
        self.layers = [_Parts(shape, i, weights, ops).layer() for i in range(len(shape.layers))]
        self.final_norm = weights.pop("final_norm").float()
        self.head = ops.prepare(weights.pop("head", self.embedding))

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @torch.inference_mode()
    def __call__(self, stream: Stream, store: Store | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [C] of the columns and logsumexp [R] of the reads, float32."""
        hidden = self.hidden(stream, store)
        if not len(hidden):
            return torch.empty(0), torch.empty(0)
        return self.ops.read(hidden, self.head, stream)

    @torch.inference_mode()
    def hidden(self, stream: Stream, store: Store | None) -> torch.Tensor:
        """The final hidden states [N, C] of the rows that are read. Layers that leave nothing to later rows compute
        these rows alone."""
        run, n_every = Run(stream, store, self.rotaries), self.shape.n_every
        x, given = self._embed(stream), stream.every
        for i, layer in enumerate(self.layers):
            queries = stream.every if i + 1 < n_every else stream.read
            x = layer(x, run, given, queries)
            given = queries
            if not len(x):
                return x
        return self.ops.rms_norm(x, self.final_norm, self.shape.eps)

    def _embed(self, stream: Stream) -> torch.Tensor:
        x = self.embedding[stream.tokens.long()]
        scale = self.shape.embedding_scale
        return x if scale == 1 else x * torch.tensor(scale, dtype=x.dtype)  # the scale is rounded as in transformers


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Layer `i` of a shape, made of its weights."""

    shape: Shape
    i: int
    weights: Weights
    ops: Ops

    def layer(self) -> Layer:
        own = self.shape.layers[self.i]
        mixer = self._attention(own.mixer, own) if isinstance(own.mixer, AttentionShape) else self._delta(own.mixer, own)
        mlp = GatedMLP(
            self._norm("mlp_norm"), self._linear("gate_up_proj"), self._output("down_proj", "mlp_post_norm", own),
            own.mlp.activation, self.shape.eps, self.ops,
        )  # fmt: skip
        return Layer(mixer, mlp)

    def _attention(self, shape: AttentionShape, own: LayerShape) -> Attention:
        return Attention(
            layer=self.i, shape=shape, norm=self._norm("input_norm"), q_proj=self._linear("q_proj"),
            kv_proj=self._linear("kv_proj") if shape.keys_of is None else None,
            q_norm=self._norm("q_norm") if shape.qk_norm else None,
            k_norm=self._norm("k_norm") if shape.qk_norm and shape.keys_of is None else None,
            output=self._output("o_proj", "mixer_post_norm", own), eps=self.shape.eps, ops=self.ops,
        )  # fmt: skip

    def _delta(self, shape: DeltaShape, own: LayerShape) -> GatedDelta:
        return GatedDelta(
            layer=self.i, shape=shape, norm=self._norm("input_norm"), in_proj=self._linear("in_proj"),
            conv=self._take("conv").float().view(shape.n_channels, shape.conv_width),
            rate=-self._take("a_log").float().exp(), dt_bias=self._take("dt_bias").float(),
            value_norm=self._norm("value_norm"), output=self._output("o_proj", "mixer_post_norm", own),
            eps=self.shape.eps, ops=self.ops,
        )  # fmt: skip

    def _output(self, name: str, norm: str, own: LayerShape) -> Output:
        return Output(self._linear(name), self._norm(norm) if own.post_norms else None, self.shape.eps, self.ops)

    def _linear(self, name: str) -> Linear:
        return self.ops.pack(self._take(name), self.weights.pop(f"{self.i}.{name}_bias", None))

    def _norm(self, name: str) -> torch.Tensor:
        return self._take(name).float()

    def _take(self, name: str) -> torch.Tensor:
        return self.weights.pop(f"{self.i}.{name}")
