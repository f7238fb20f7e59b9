"""A stack of layers over a stream: model(stream, store) -> what was read."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from ramet.cache.store import Store
from ramet.layers.attention import Attention
from ramet.layers.conditioning import SelfConditioning, Soft
from ramet.layers.dense_experts import DenseExperts, ScaledRouter
from ramet.layers.experts import ChosenExperts, GroupsRouter, SharedExpert, TopKRouter
from ramet.layers.fingerprint import fingerprint_of
from ramet.layers.gated_delta import GatedDelta
from ramet.layers.mlp import GatedMLP
from ramet.layers.output import Output
from ramet.layers.per_layer import PerLayer, PerLayerInputs, PerLayerPart
from ramet.layers.run import Rotary, Run
from ramet.layers.shape import AttentionShape, DeltaShape, DenseExpertsShape, ExpertsShape, LayerShape, MLPShape, Shape
from ramet.ops import Linear, Ops, OpsFor, reasons
from ramet.ops.head.reference import Drawn, Sampled, Vocabulary
from ramet.ops.planning import Planner
from ramet.round import Queries, Stream
from ramet.tree import Sampling, Step

Weights = MutableMapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A mixer, which alone looks at other rows, and what works on each row by itself."""

    mixer: Attention | GatedDelta
    mlp: GatedMLP | ChosenExperts | DenseExperts
    per_layer: PerLayer | None = None

    def __call__(self, x: torch.Tensor, run: Run, given: Queries, queries: Queries) -> torch.Tensor:
        """x [N', C] float32, the rows of `given`; returns [N, C], the rows of `queries`."""
        x = self.mixer(x, run, given, queries)
        if not len(x):  # nothing is read: the layer only leaves its keys, values or state
            return x
        x = self.mlp(x, run, queries)
        return x if self.per_layer is None else self.per_layer(x, run, queries)


class Decoder:
    """Embedding, layers, final norm and head on a device.

    Weights come by our names (see `families`) and are taken out of the mapping, so that no product's weight stays
    beside its packed form. `rotaries` are the rotary embeddings of shape.rotaries. `choice` gives the ops for the shape
    of each layer (`ramet.ops.choose`). `fingerprint` says which weights these are; None: made here of their numbers.
    """

    def __init__(
        self, shape: Shape, weights: Weights, rotaries: Sequence[Rotary], choice: OpsFor, fingerprint: str | None = None
    ) -> None:
        self.shape = shape
        self.fingerprint = fingerprint or fingerprint_of(weights)
        self.embedding = weights.pop("embedding")
        self.rotaries = [(frequencies.to(self.embedding.device), scale) for frequencies, scale in rotaries]
        of_layers = [choice(layer.op_shape(self.dtype)) for layer in shape.layers]
        self.ops = ops = replace(of_layers[0], why=reasons(of_layers))
        self.per_layer = None if shape.per_layer is None else _per_layer(shape, weights, ops)
        self.conditioning = None if shape.conditioning is None else _conditioning(shape, weights, ops)
        self.layers = [_Parts(shape, i, weights, own).layer() for i, own in enumerate(of_layers)]
        self.final_norm = weights.pop("final_norm").float()
        self.head = ops.prepare(weights.pop("head", self.embedding))

    def planners(self) -> list[Planner]:
        """What makes the work lists of a pass: one for each op and kind of layer."""
        planning, found = self.ops.planning, self.ops.planning.head()
        for i, layer in enumerate(self.shape.layers):
            own = layer.mixer
            if isinstance(own, DeltaShape):
                found |= planning.recurrent(own.conv_width)
            else:
                heads = {"n_heads": own.n_heads, "n_kv_heads": own.n_kv_heads, "head_dim": own.head_dim}
                found |= planning.attention(**heads, window=own.window, read=i + 1 >= self.shape.n_every)
        return list(found.values())

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    @torch.inference_mode()
    def __call__(
        self, stream: Stream, store: Store | None, soft: Soft | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [C] of the columns and logsumexp [R] of the reads, float32. soft: as in `hidden`."""
        return self.read(self.hidden(stream, store, soft=soft), stream)

    @torch.inference_mode()
    def read(self, hidden: torch.Tensor, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
        """As a call, from the final hidden states of the rows that are read."""
        if not len(stream.normalize):
            return torch.empty(0), torch.empty(0)
        return self.ops.read(hidden, self.head, stream, self.shape.softcap)

    @torch.inference_mode()
    def draw(self, hidden: torch.Tensor, step: Step) -> Drawn:
        """A step of denoising, from the final hidden states [N, C] of its rows."""
        uniforms = torch.from_numpy(step.uniforms).to(self.device)
        head, embedding, which = self.head, self.embedding, None
        if step.columns is not None:
            which = torch.from_numpy(step.columns).long().to(self.device)
            head, embedding = Vocabulary(head.weight[which]), embedding[which]
        drawn = self.ops.draw(
            hidden, head, uniforms, temperature=step.temperature, n_best=step.n_best,
            embedding=embedding if step.leaves_soft else None, softcap=self.shape.softcap,
        )  # fmt: skip
        if which is not None:
            drawn = replace(drawn, tokens=which[drawn.tokens], best=which[drawn.best])
        return drawn if drawn.soft is None else replace(drawn, soft=self._scaled(drawn.soft))

    @torch.inference_mode()
    def sample(self, hidden: torch.Tensor, rows: torch.Tensor, sampling: Sampling, excluded: int = -1) -> Sampled:
        """Draw an id for each of the rows [N] of the final hidden states [R, C]; never the excluded one."""
        return self.ops.sample(hidden, rows, self.head, sampling, excluded=excluded, softcap=self.shape.softcap)

    def kinds(self) -> list[int]:
        """Layers of which every other is a repetition: a pass through these alone launches all kernels of a pass."""
        kinds: dict[object, int] = {}
        for i, own in enumerate(self.shape.layers):
            shared = isinstance(own.mixer, AttentionShape) and own.mixer.keys_of is not None
            mixer = replace(own.mixer, keys_of=None) if isinstance(own.mixer, AttentionShape) else own.mixer
            place = (i + 1 > self.shape.n_every) - (i + 1 < self.shape.n_every)
            kinds.setdefault((replace(own, mixer=mixer), shared, i in self.shape.lenders, place), i)
        return sorted({*kinds.values(), *self.shape.lenders})

    @torch.inference_mode()
    def hidden(
        self, stream: Stream, store: Store | None, which: Sequence[int] | None = None, soft: Soft | None = None
    ) -> torch.Tensor:
        """The final hidden states [N, C] of the rows that are read. Layers that leave nothing to later rows compute
        these rows alone. which: ascending, the layers to go through instead of all. soft: what the step before made of
        canvases, where there was one; for models that are conditioned on it."""
        run, n_every = Run(stream, store, self.rotaries, self.dtype, self.ops), self.shape.n_every
        x, given = self._embed(stream, soft), stream.every
        if self.per_layer is not None:
            run.per_layer = self.per_layer(stream, x)
        for i in range(len(self.layers)) if which is None else which:
            queries = stream.every if i + 1 < n_every else stream.read
            x = self.layers[i](x, run, given, queries)
            given = queries
            if not len(x):
                return x
        return self.ops.rms_norm(x, self.final_norm, self.shape.eps, self.dtype)

    def _embed(self, stream: Stream, soft: Soft | None) -> torch.Tensor:
        assert soft is None or self.conditioning is not None
        x = self._scaled(functional.embedding(stream.tokens, self.embedding).float())
        return x if self.conditioning is None else self.conditioning(x, stream.whole, soft)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings as the layers take them."""
        scale = self.shape.embedding_scale
        return x if scale == 1 else x * float(torch.tensor(scale, dtype=self.dtype))  # rounded as in transformers


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """Layer `i` of a shape, made of its weights."""

    shape: Shape
    i: int
    weights: Weights
    ops: Ops

    def layer(self) -> Layer:
        own = self.shape.layers[self.i]
        scale = self._take("scale").float() if own.scaled else None  # for what the layer ends with
        if self.shape.per_layer is None:
            return Layer(self._mixer(own), self._rowwise(own, scale))
        return Layer(self._mixer(own), self._rowwise(own, None), self._per_layer(own, scale))

    def _mixer(self, own: LayerShape) -> Attention | GatedDelta:
        if isinstance(own.mixer, AttentionShape):
            return self._attention(own.mixer, own)
        return self._delta(own.mixer, own)

    def _rowwise(self, own: LayerShape, scale: torch.Tensor | None) -> GatedMLP | ChosenExperts | DenseExperts:
        if isinstance(own.mlp, MLPShape):
            return self._mlp(own.mlp, own, scale)
        if isinstance(own.mlp, DenseExpertsShape):
            return self._dense_experts(own.mlp, scale)
        assert scale is None
        return self._experts(own.mlp)

    def _mlp(self, shape: MLPShape, own: LayerShape, scale: torch.Tensor | None) -> GatedMLP:
        output = self._output("down_proj", "mlp_post_norm", own, scale)
        norm, gate_up_proj = self._norm("mlp_norm"), self._linear("gate_up_proj")
        return GatedMLP(norm, gate_up_proj, output, shape.activation, self.shape.eps, self.ops)

    def _experts(self, shape: ExpertsShape) -> ChosenExperts:
        return ChosenExperts(
            norm=self._norm("mlp_norm"), router=self._router(shape),
            experts=self.ops.pack_experts(self._take("gate_up_experts"), self._take("down_experts"), shape.activation),
            shared=self._shared(shape) if shape.shared_size else None, eps=self.shape.eps, ops=self.ops,
        )  # fmt: skip

    def _router(self, shape: ExpertsShape) -> TopKRouter | GroupsRouter:
        proj = self._linear("router")
        if shape.groups is None:
            return TopKRouter(proj, shape.n_chosen, self.ops)
        return GroupsRouter(proj, self._take("expert_bias"), shape.n_chosen, shape.groups, self.ops)

    def _shared(self, shape: ExpertsShape) -> SharedExpert:
        gate = self._linear("shared_gate") if shape.shared_gated else None
        gate_up_proj, down_proj = self._linear("gate_up_proj"), self._linear("down_proj")
        return SharedExpert(gate_up_proj, down_proj, gate, shape.activation, self.ops)

    def _dense_experts(self, shape: DenseExpertsShape, scale: torch.Tensor | None) -> DenseExperts:
        eps, activation, ops = self.shape.eps, shape.dense.activation, self.ops
        router = ScaledRouter(
            scale=self._take("router_scale"), proj=self._linear("router"),
            expert_scale=self._take("expert_scale").float(), n_chosen=shape.n_chosen, ops=ops,
        )  # fmt: skip
        return DenseExperts(
            norm=self._norm("mlp_norm"), gate_up_proj=self._linear("gate_up_proj"), down_proj=self._linear("down_proj"),
            dense_post_norm=self._norm("dense_post_norm"), router=router, experts_norm=self._norm("experts_norm"),
            experts=ops.pack_experts(self._take("gate_up_experts"), self._take("down_experts"), activation),
            experts_post_norm=self._norm("experts_post_norm"), post_norm=self._norm("mlp_post_norm"),
            scale=scale, activation=activation, eps=eps, ops=ops,
        )  # fmt: skip

    def _per_layer(self, own: LayerShape, scale: torch.Tensor | None) -> PerLayer:
        output = self._output("per_layer_proj", "per_layer_post_norm", own, scale)
        return PerLayer(self.i, self._linear("per_layer_gate"), output, self.ops)

    def _attention(self, shape: AttentionShape, own: LayerShape) -> Attention:
        has_keys = shape.keys_of is None
        merged = has_keys and not shape.keys_are_values and self.i + 1 < self.shape.n_every
        return Attention(
            layer=self.i, shape=shape, lends=self.i in self.shape.lenders, norm=self._norm("input_norm"),
            qkv_proj=self._qkv(shape) if merged else None, q_proj=None if merged else self._linear("q_proj"),
            kv_proj=self._linear("kv_proj") if has_keys and not merged else None,
            q_norm=self._norm("q_norm") if shape.qk_norm else None,
            k_norm=self._norm("k_norm") if shape.qk_norm and shape.keys_of is None else None,
            output=self._output("o_proj", "mixer_post_norm", own), eps=self.shape.eps, ops=self.ops,
        )  # fmt: skip

    def _qkv(self, shape: AttentionShape) -> Linear:
        """q_proj and kv_proj as one product; rows of a gate, which follow the queries', come behind the rest."""
        width, merged = shape.n_heads * shape.head_dim, []
        for ending in ("", "_bias") if f"{self.i}.q_proj_bias" in self.weights else ("",):
            q, kv = self._take(f"q_proj{ending}"), self._take(f"kv_proj{ending}")
            merged.append(torch.cat((q[:width], kv, q[width:])))
        return self.ops.pack(*merged)

    def _delta(self, shape: DeltaShape, own: LayerShape) -> GatedDelta:
        return GatedDelta(
            layer=self.i, shape=shape, norm=self._norm("input_norm"), in_proj=self._linear("in_proj"),
            conv=self._take("conv").float().view(shape.n_channels, shape.conv_width).t().contiguous().t(),
            rate=-self._take("a_log").float().exp(), dt_bias=self._take("dt_bias").float(),
            value_norm=self._norm("value_norm"), output=self._output("o_proj", "mixer_post_norm", own),
            eps=self.shape.eps, ops=self.ops,
        )  # fmt: skip

    def _output(self, name: str, norm: str, own: LayerShape, scale: torch.Tensor | None = None) -> Output:
        post_norm = self._norm(norm) if own.post_norms else None
        return Output(self._linear(name), post_norm, scale, self.shape.eps, self.ops)

    def _linear(self, name: str) -> Linear:
        return self.ops.pack(self._take(name), self.weights.pop(f"{self.i}.{name}_bias", None))

    def _norm(self, name: str) -> torch.Tensor:
        return self._take(name).float()

    def _take(self, name: str) -> torch.Tensor:
        return self.weights.pop(f"{self.i}.{name}")


def _conditioning(shape: Shape, weights: Weights, ops: Ops) -> SelfConditioning:
    own = shape.conditioning
    assert own is not None
    gate_up, down = (ops.pack(weights.pop(f"conditioning.{name}_proj")) for name in ("gate_up", "down"))
    norm = weights.pop("conditioning.norm").float()
    return SelfConditioning(norm, gate_up, down, own.activation, shape.eps, ops)


def _per_layer(shape: Shape, weights: Weights, ops: Ops) -> PerLayerInputs:
    """The inputs of the layers before the last that leaves something to later rows, and of those from it on."""
    assert shape.per_layer is not None
    table, proj = weights.pop("per_layer_embedding"), weights.pop("per_layer_model_proj")
    norm = weights.pop("per_layer_norm").float()
    cut = (shape.n_every - 1) * shape.per_layer.size

    def part(columns: slice) -> PerLayerPart:
        return PerLayerPart(table[:, columns], ops.pack(proj[columns]), norm, shape.hidden_size, shape.eps, ops)

    return PerLayerInputs(part(slice(cut)) if cut else None, part(slice(cut, None)))
