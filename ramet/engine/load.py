"""From a checkpoint to a model on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from ramet.config import rope_frequencies
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.families import FAMILIES
from ramet.families.family import head_weight
from ramet.layers.decoder import Decoder
from ramet.ops import choose
from ramet.weights import Checkpoint, load, open_checkpoint


def open_known(source: str | Path) -> Checkpoint:
    """Open a checkpoint of a family that is known here. Raises CheckpointError, which lists them."""
    return open_checkpoint(source, known=FAMILIES)


def load_model(checkpoint: Checkpoint, settings: EngineSettings) -> Decoder:
    """Read a checkpoint's weights. Raises CheckpointError."""
    family = FAMILIES[checkpoint.model_type]
    shape = family.shape(checkpoint.config)
    plan = family.plan(shape)
    if "lm_head.weight" in checkpoint.names:
        plan["head"] = head_weight(shape)
    weights = load(
        checkpoint,
        {name: weight.parts for name, weight in plan.items()},
        shapes={name: weight.shape for name, weight in plan.items()},
        dtype=DTYPES[settings.dtype],
    )
    device = torch.device(settings.device)
    for name in weights:
        weights[name] = weights[name].to(device)
    frequencies, scale = rope_frequencies(checkpoint.config)
    return Decoder(shape, weights, frequencies, scale, choose(device, settings.ops))
