"""From a checkpoint to a model on a device."""

from __future__ import annotations

import torch

from ramet.config import rope_frequencies
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.ops import choose
from ramet.weights import Checkpoint, load


def load_model(checkpoint: Checkpoint, settings: EngineSettings) -> Decoder:
    """Read the weights of a checkpoint of a known family. Raises CheckpointError."""
    family = FAMILIES.get(checkpoint.model_type)
    if family is None:
        known = ", ".join(sorted(FAMILIES))
        raise CheckpointError(f"{checkpoint.name}: model_type {checkpoint.model_type!r} is not known; known are {known}")
    shape = family.shape(checkpoint.config)
    plan = family.plan(shape)
    if "lm_head.weight" in checkpoint.names:
        plan["head"] = ("lm_head.weight",)
    weights = load(checkpoint, plan, dtype=DTYPES[settings.dtype])
    device = torch.device(settings.device)
    frequencies, scale = rope_frequencies(checkpoint.config)
    weights = {name: weight.to(device) for name, weight in weights.items()}
    return Decoder(shape, weights, frequencies, scale, choose(device, settings.ops))
