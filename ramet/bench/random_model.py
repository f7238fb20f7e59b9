"""A decoder of a named shape with random weights: no checkpoint is needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from ramet.bench.even_routing import evenly
from ramet.bench.random_weights import RandomWeights
from ramet.bench.true_shapes import config_of
from ramet.config import rope_frequencies
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.layers.shape import DenseExpertsShape, ExpertsShape, MLPShape
from ramet.ops import choose

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_NAMES = ("model.decoder.embed_tokens.weight",)  # of which a plan asks how they begin, and whether a head is there


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A decoder, and what it was made from. even: rows choose their experts evenly, and not by random weights."""

    name: str
    config: PretrainedConfig
    weights: RandomWeights
    decoder: Decoder
    even: bool

    @classmethod
    def of(cls, name: str, settings: EngineSettings, even: bool = False, rounded: str | None = None) -> Self:
        """DiffusionGemma of the shape of that name, on the device and in the dtype of resolved settings. even: as in
        `made`. rounded: the dtype that the weights are rounded to before (None: that of the settings)."""
        return cls.made(name, config_of(name), _NAMES, settings, even, rounded)

    @classmethod
    def made(
        cls, name: str, config: PretrainedConfig, names: Collection[str], settings: EngineSettings, even: bool = False,
        rounded: str | None = None,
    ) -> Self:  # fmt: skip
        """Of any configuration. names: parameters that a checkpoint has, as far as a plan asks for them. even: experts
        are chosen evenly, and not by random weights. rounded: as in `of`."""
        device = torch.device(settings.device)
        family, text = FAMILIES[config.model_type], config.get_text_config()
        shape = family.shape(text)
        dtype = DTYPES[settings.dtype]
        weights = RandomWeights(
            family.plan(shape, names), dtype, device, rounded=dtype if rounded is None else DTYPES[rounded]
        )
        rotaries = [rope_frequencies(text, kind) for kind in shape.rotaries]
        ops = choose(device, settings.ops, invariant=settings.batch_invariant)
        if even:
            ops = evenly(ops, shape)
        decoder = Decoder(shape, weights, rotaries, ops, weights.fingerprint)
        return cls(name, config, weights, decoder, even)

    def describe(self) -> str:
        """Its size in words."""
        text, shape = self.config.get_text_config(), self.decoder.shape
        n_idle = sum(_n_idle(layer.mlp, shape.hidden_size) for layer in shape.layers)
        sizes = f"{_millions(self.weights.n_parameters)} parameters"
        experts = ""
        if n_idle:
            sizes += f", {_millions(self.weights.n_parameters - n_idle)} of them on a row's way"
            last = shape.layers[-1].mlp
            assert isinstance(last, ExpertsShape | DenseExpertsShape)
            experts = f", {last.n_experts} experts of {last.size}, {last.n_chosen} chosen"
        return (
            f"{self.name}: {sizes}, {self.weights.n_bytes / 1e9:.3g} GB; {len(shape.layers)} layers of "
            f"{text.hidden_size}{experts}, vocabulary {text.vocab_size}"
        )


def _millions(n: int) -> str:
    return f"{n / 1e9:.3g} B" if n >= 1e9 else f"{n / 1e6:.3g} M"


def _n_idle(mlp: MLPShape | ExpertsShape | DenseExpertsShape, hidden: int) -> int:
    """Parameters of a layer's experts that a row does not choose."""
    return 0 if isinstance(mlp, MLPShape) else 3 * mlp.size * hidden * (mlp.n_experts - mlp.n_chosen)
