"""A stack of layers over a stream: model(stream, store) -> what was read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.nn import functional

from ramet.cache.store import Store
from ramet.layers.conditioning import SelfConditioning, Soft
from ramet.layers.fingerprint import fingerprint_of
from ramet.layers.parts import LayerParts, Weights
from ramet.layers.run import LayerRun, Rotary
from ramet.layers.shape import ModelShape
from ramet.ops import Ops, OpsFor, reasons
from ramet.ops.head.reference import Drawn, Sampled, Vocabulary
from ramet.ops.planning import Planner
from ramet.round import Stream
from ramet.tree import Sampling, Step


class Decoder:
    """Embedding, layers, final norm and head on a device.

    Weights come by our names (see `families`) and are taken out of the mapping, so that no product's weight stays
    beside its packed form. `rotaries` are the rotary embeddings of shape.rotaries. `choice` gives the ops for the shape
    of each layer (`ramet.ops.choose`). `fingerprint` says which weights these are; None: made here of their numbers.
    """

    def __init__(
        self,
        shape: ModelShape,
        weights: Weights,
        rotaries: Sequence[Rotary],
        choice: OpsFor,
        fingerprint: str | None = None,
    ) -> None:
        self.shape = shape
        self.fingerprint = fingerprint or fingerprint_of(weights)
        self.embedding = weights.pop("embedding")
        self.rotaries = [(frequencies.to(self.embedding.device), scale) for frequencies, scale in rotaries]
        of_layers = [choice(layer.op_shape(self.dtype)) for layer in shape.layers]
        self.ops = ops = replace(of_layers[0], why=reasons(of_layers))
        self.per_layer = (
            None
            if shape.per_layer is None
            else shape.per_layer.inputs(weights, shape.n_every, shape.hidden_size, shape.eps, ops)
        )
        self.conditioning = (
            None
            if shape.conditioning is None
            else SelfConditioning.of(shape.conditioning, LayerParts(weights, "conditioning", shape.eps, ops))
        )
        parts = (self._parts(i, weights, own) for i, own in enumerate(of_layers))
        self.layers = [layer.build(own, shape.per_layer) for layer, own in zip(shape.layers, parts, strict=True)]
        self.final_norm = weights.pop("final_norm").float()
        self.head = ops.prepare(weights.pop("head", self.embedding))

    def planners(self) -> list[Planner]:
        """What makes the work lists of a pass: one for each op and kind of layer."""
        found = self.ops.planning.head()
        for i, layer in enumerate(self.shape.layers):
            found |= layer.mixer.planners(self.ops.planning, read=i + 1 >= self.shape.n_every)
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
            hidden,
            head,
            uniforms,
            temperature=step.temperature,
            n_best=step.n_best,
            embedding=embedding if step.leaves_soft else None,
            softcap=self.shape.softcap,
        )
        if which is not None:
            drawn = replace(drawn, tokens=which[drawn.tokens], best=which[drawn.best])
        return drawn if drawn.soft is None else replace(drawn, soft=self._scaled(drawn.soft))

    @torch.inference_mode()
    def sample(self, hidden: torch.Tensor, rows: torch.Tensor, sampling: Sampling, excluded: int = -1) -> Sampled:
        """Draw an id for each of the rows [N] of the final hidden states [R, C]; never the excluded one."""
        return self.ops.sample(hidden, rows, self.head, sampling, excluded=excluded, softcap=self.shape.softcap)

    @torch.inference_mode()
    def hidden(
        self, stream: Stream, store: Store | None, which: Sequence[int] | None = None, soft: Soft | None = None
    ) -> torch.Tensor:
        """The final hidden states [N, C] of the rows that are read. Layers that leave nothing to later rows compute
        these rows alone. which: ascending, the layers to go through instead of all. soft: what the step before made of
        canvases, where there was one; for models that are conditioned on it."""
        run = LayerRun(stream, store, self.rotaries, self.dtype, self.ops)
        n_every = self.shape.n_every
        x = self._embed(stream, soft)
        given = stream.every
        if self.per_layer is not None:
            run.per_layer = self.per_layer(stream, x)
        for i in range(len(self.layers)) if which is None else which:
            queries = stream.every if i + 1 < n_every else stream.read
            x = self.layers[i](x, run, given, queries)
            given = queries
            if not len(x):
                return x.to(self.dtype)
        return self.ops.rms_norm(x, self.final_norm, self.shape.eps, self.dtype)

    def _embed(self, stream: Stream, soft: Soft | None) -> torch.Tensor:
        assert soft is None or self.conditioning is not None
        x = self._scaled(functional.embedding(stream.tokens, self.embedding).float())
        return x if self.conditioning is None else self.conditioning(x, stream.whole, soft)

    def _scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Embeddings as the layers take them."""
        scale = self.shape.embedding_scale
        return x if scale == 1 else x * float(torch.tensor(scale, dtype=self.dtype))  # rounded as in transformers

    def _parts(self, i: int, weights: Weights, ops: Ops) -> LayerParts:
        """Those of layer `i`."""
        shape = self.shape
        lends, every = i in shape.lenders, i + 1 < shape.n_every
        return LayerParts(weights, f"{i}", shape.eps, ops, i, lends, every, shape.layers[i].post_norms)
