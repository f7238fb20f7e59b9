"""From a checkpoint to a model on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from ramet.config import rope_frequencies
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.ops import choose
from ramet.weights import Checkpoint, load, open_checkpoint


def open_known(source: str | Path) -> Checkpoint:
    """Open a checkpoint of a family that is known here. Raises CheckpointError, which lists them."""
    return open_checkpoint(source, known=FAMILIES)


def load_model(checkpoint: Checkpoint, settings: EngineSettings) -> Decoder:
    """Read a checkpoint's weights. Raises CheckpointError."""
    family = FAMILIES[checkpoint.model_type]
    config = checkpoint.config.get_text_config()
    shape = family.shape(config)
    plan = family.plan(shape, checkpoint.names)
    weights = load(
        checkpoint,
        {name: weight.parts for name, weight in plan.items()},
        shapes={name: weight.shape for name, weight in plan.items()},
        dtype=DTYPES[settings.dtype],
        unused=(*family.unused, *family.idle(shape, checkpoint.names)),
    )
    device = torch.device(settings.device)
    for name, weight in plan.items():
        made = weights[name] if weight.transform is None else weight.transform(weights[name])
        weights[name] = made.to(device)
    rotaries = [rope_frequencies(config, kind) for kind in shape.rotaries]
    return Decoder(shape, weights, rotaries, choose(device, settings.ops, invariant=settings.batch_invariant))
