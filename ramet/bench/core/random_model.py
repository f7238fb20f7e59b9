"""A decoder of a named shape with random weights, and engines on it: no checkpoint is needed.

Experts may be chosen evenly, in place of a router's random weights. Those send nearly all rows to the same few experts:
the first layers make alike what random embeddings tell apart, and masked rows all have the same one. Routers are
trained to balance, so with random weights a pass would read too few experts, and have too many rows of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import psutil
import torch

from ramet.bench.core.named_shapes import config_of, names_of
from ramet.bench.core.random_weights import RandomWeights
from ramet.config import rope_frequencies
from ramet.decide.decider import Decider
from ramet.engine.engine import Engine
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape
from ramet.layers.storage import row_bytes
from ramet.ops import Ops, OpsFor, OpShape, choose

if TYPE_CHECKING:
    from transformers import PretrainedConfig


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
        """The shape of that name, on the device and in the dtype of resolved settings. rounded: the dtype that the
        weights are rounded to before (None: that of the settings)."""
        config = config_of(name)
        device = torch.device(settings.device)
        dtype = DTYPES[settings.dtype]
        family = FAMILIES[config.model_type]
        text = config.get_text_config()
        shape = family.shape(text)
        plan = family.plan(shape, names_of(name))
        weights = RandomWeights(plan, dtype, device, rounded=DTYPES[rounded or settings.dtype])
        rotaries = [rope_frequencies(text, kind) for kind in shape.rotaries]
        choice = choose(device, settings.ops, invariant=settings.batch_invariant)
        decoder = Decoder(shape, weights, rotaries, evenly(choice, shape) if even else choice, weights.fingerprint)
        return cls(name, config, weights, decoder, even)

    @property
    def vocab_size(self) -> int:
        return self.decoder.shape.vocab_size

    def bytes_of(self, n_tokens: int) -> int:
        """Keys and values of so many tokens."""
        return n_tokens * row_bytes(self.decoder.shape, self.decoder.dtype)

    def engine(self, settings: EngineSettings, *more: Any) -> Engine:
        """An engine for requests of ids, which needs no tokenizer. more: as `Engine` takes it behind its settings."""
        settings_of_none = SimpleNamespace(method="reads of random ids", calibration=None)
        nobody = cast(Decider, SimpleNamespace(settings=settings_of_none))
        return Engine(self.name, self.decoder, nobody, settings, *more)

    def describe(self) -> str:
        """Its size in words."""
        shape, n = self.decoder.shape, self.weights.n_parameters
        experts = [layer.mlp for layer in shape.layers if not isinstance(layer.mlp, MLPShape)]
        n_idle = sum(3 * each.size * shape.hidden_size * (each.n_experts - each.n_chosen) for each in experts)
        found = f"{self.name}: {_millions(n)} parameters, {self.weights.n_bytes / 1e9:.3g} GB"
        if experts:
            each = experts[-1]
            found += f", {_millions(n - n_idle)} on a row's way; {each.n_experts} experts of {each.size}, "
            found += f"{each.n_chosen} chosen"
        return f"{found}; {len(shape.layers)} layers of {shape.hidden_size}, vocabulary {shape.vocab_size}"


def free_bytes(device: torch.device) -> int:
    """Of the device's memory."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def _millions(n: int) -> str:
    return f"{n / 1e9:.3g} B" if n >= 1e9 else f"{n / 1e6:.3g} M"


_FACTORS = {torch.int16: -25033, torch.int32: -1640531535}  # odd, by the golden ratio: numbers in a row spread evenly
Routed = tuple[torch.Tensor, torch.Tensor]


def scrambled(logits: torch.Tensor) -> torch.Tensor:
    """Logits of any shape, bfloat16 or float32 -> as many float32 numbers from -1 to 1, made of all their digits: as
    good as random, but the same for logits that are the same. Two launches."""
    whole = torch.int16 if logits.dtype.itemsize == 2 else torch.int32
    return logits.view(whole) * _FACTORS[whole] * 2.0 ** (1 - 8 * logits.dtype.itemsize)


@dataclass(frozen=True, slots=True, eq=False)
class EvenRoute:
    """`route` or `route_grouped` by scrambled logits. Rows that are the same, as those are that fill a recorded pass
    up, choose alike."""

    route: Callable[..., Routed]

    def __call__(self, logits: torch.Tensor, *rest: Any) -> Routed:
        return self.route(scrambled(logits), *rest)


def evenly(choice: OpsFor, shape: ModelShape) -> OpsFor:
    """A choice of ops by which experts are chosen evenly, where a shape has such."""
    if all(isinstance(own.mlp, MLPShape) for own in shape.layers):
        return choice

    def even(wanted: OpShape) -> Ops:
        ops = choice(wanted)
        why = {**ops.why, "routing": "even"}
        return replace(ops, route=EvenRoute(ops.route), route_grouped=EvenRoute(ops.route_grouped), why=why)

    return even
