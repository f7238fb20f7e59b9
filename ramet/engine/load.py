"""From a checkpoint to a model on a device."""

from __future__ import annotations

from pathlib import Path

import torch

from ramet.config import rope_frequencies
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.layers.shape import AttentionShape, MLPShape, Shape
from ramet.ops import choose
from ramet.ops.attention.cpu import takes
from ramet.ops.experts.cpu import packs
from ramet.ops.native import library
from ramet.weights import Checkpoint, load, open_checkpoint


def open_known(source: str | Path) -> Checkpoint:
    """Open a checkpoint of a family that is known here. Raises CheckpointError, which lists them."""
    return open_checkpoint(source, known=FAMILIES)


def load_model(checkpoint: Checkpoint, settings: EngineSettings) -> Decoder:
    """Read a checkpoint's weights. Raises CheckpointError."""
    family = FAMILIES[checkpoint.model_type]
    config = checkpoint.config.get_text_config()
    shape = family.shape(config)
    if settings.batch_invariant:
        _check_invariant(checkpoint.name, shape, DTYPES[settings.dtype])
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


def _check_invariant(name: str, shape: Shape, dtype: torch.dtype) -> None:
    """Raise CheckpointError for layers that go through plain torch, whose bits depend on a round."""
    sizes: set[int] = set()
    for layer in shape.layers:
        own = layer.mixer
        sizes |= {own.head_dim} if isinstance(own, AttentionShape) else {own.key_dim, own.value_dim}
    odd, kernels = {size for size in sizes if not takes(size)}, library()
    experts = any(not isinstance(layer.mlp, MLPShape) for layer in shape.layers)
    if odd or (experts and kernels is not None and not packs(kernels, dtype)):
        what = f"heads of {sorted(odd)}" if odd else f"experts in {str(dtype).removeprefix('torch.')} on this processor"
        raise CheckpointError(f"{name}: {what} cannot be batch-invariant; load without batch_invariant")
