"""A decoder of a named shape with random weights: no checkpoint is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import torch

from ramet.bench.random_weights import RandomWeights
from ramet.bench.true_shapes import config_of
from ramet.config import rope_frequencies
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.ops import choose

if TYPE_CHECKING:
    from transformers import DiffusionGemmaConfig

_NAMES = ("model.decoder.embed_tokens.weight",)  # of which a plan asks how they begin, and whether a head is there


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A decoder, and what it was made from."""

    name: str
    config: DiffusionGemmaConfig
    weights: RandomWeights
    decoder: Decoder

    @classmethod
    def of(cls, name: str, settings: EngineSettings) -> Self:
        """Of the shape of that name, on the device and in the dtype of resolved settings."""
        config, device = config_of(name), torch.device(settings.device)
        family, text = FAMILIES[config.model_type], config.get_text_config()
        shape = family.shape(text)
        weights = RandomWeights(family.plan(shape, _NAMES), DTYPES[settings.dtype], device)
        rotaries = [rope_frequencies(text, kind) for kind in shape.rotaries]
        decoder = Decoder(shape, weights, rotaries, choose(device, settings.ops, invariant=settings.batch_invariant))
        return cls(name, config, weights, decoder)

    def describe(self) -> str:
        """Its size in words."""
        text, layers = self.config.get_text_config(), self.decoder.shape.layers
        n_active = self.weights.n_parameters - _n_idle(text)
        sizes = f"{_millions(self.weights.n_parameters)} parameters, {_millions(n_active)} of them on a row's way"
        return (
            f"{self.name}: {sizes}, "
            f"{self.weights.n_bytes / 1e9:.3g} GB; {len(layers)} layers of {text.hidden_size}, {text.num_experts} "
            f"experts of {text.moe_intermediate_size}, {text.top_k_experts} chosen, vocabulary {text.vocab_size}"
        )


def _millions(n: int) -> str:
    return f"{n / 1e9:.3g} B" if n >= 1e9 else f"{n / 1e6:.3g} M"


def _n_idle(text: object) -> int:
    """Parameters of experts that a row does not choose."""
    sizes = ("num_hidden_layers", "moe_intermediate_size", "hidden_size", "num_experts", "top_k_experts")
    n_layers, size, hidden, n_experts, n_chosen = (int(getattr(text, name)) for name in sizes)
    return 3 * n_layers * size * hidden * (n_experts - n_chosen)
