"""From a checkpoint to a model on a device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ramet.cache.store import Store
from ramet.config import rope_frequencies
from ramet.denoise.block_config import BlockConfig
from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.elastic import AUTO, BLOCK, Tiers
from ramet.engine.allocator import keep_freed
from ramet.engine.graphs import Graphs
from ramet.engine.host import host_for
from ramet.engine.reply_writer import SamplingDefaults
from ramet.engine.runner import Runner
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.errors import CheckpointError, InvalidRequest
from ramet.families import FAMILIES
from ramet.foreign import MOST_INT32, is_real
from ramet.layers.decoder import Decoder
from ramet.layers.shape import Shape
from ramet.ops import OpChoice, choose
from ramet.quoting import shown
from ramet.weights import Checkpoint, Fingerprint, load, open_checkpoint

_UNHELD: dict[str, tuple[object, ...]] = {  # keys of generation_config.json, and the values that ask for nothing
    "bad_words_ids": (None, []),
    "begin_suppress_tokens": (None, []),
    "encoder_repetition_penalty": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "guidance_scale": (None, 1),
    "length_penalty": (None, 1),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "min_p": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "num_beams": (None, 1),
    "penalty_alpha": (None, 0),
    "repetition_penalty": (None, 1),
    "sequence_bias": (None, []),
    "stop_strings": (None, []),
    "suppress_tokens": (None, []),
    "top_h": (None,),
    "typical_p": (None, 1),
}
_DRAWN: dict[str, Callable[[float], bool]] = {  # what it says of draws, and whether that may be
    "temperature": lambda value: value >= 0,
    "top_k": lambda value: 0 <= value <= MOST_INT32 and value == int(value),
    "top_p": lambda value: 0 < value <= 1,
}
_OF_CANVASES = ("canvas_length", "max_denoising_steps", "single_pass_reads")
_OF_MASKS = (
    "block_size", "mode", "chunk_size", "chunk_tiers", "ahead", "unmasking_strategy", "confidence_threshold",
    "denoising_steps", "latency_cache",
)  # fmt: skip


def open_known(source: str | Path) -> Checkpoint:
    """Open a checkpoint of a family that is known here. Raises CheckpointError, which lists them."""
    return open_checkpoint(source, known=FAMILIES)


def shape_of(checkpoint: Checkpoint) -> Shape:
    """What its configuration says. Raises CheckpointError."""
    return FAMILIES[checkpoint.model_type].read(checkpoint.config)


def denoising_of(checkpoint: Checkpoint, settings: EngineSettings) -> CanvasConfig:
    """How a diffusion model writes: as its checkpoint says, within the settings. Raises CheckpointError,
    InvalidRequest."""
    own = CanvasConfig.of(checkpoint.config, checkpoint.generation)
    length, n_steps = settings.canvas_length or own.canvas_length, settings.max_denoising_steps or own.max_steps
    if length > own.canvas_length:
        raise InvalidRequest(f"the model's canvases have {own.canvas_length} rows, not {length}", field="canvas_length")
    return replace(own, canvas_length=length, max_steps=n_steps)


def check_kind(checkpoint: Checkpoint, settings: EngineSettings) -> None:
    """Raise InvalidRequest for a setting of models that write in another way than this one."""
    usual, family = EngineSettings(), checkpoint.model_type
    others = {} if FAMILIES[family].blocks else dict.fromkeys(_OF_MASKS, "blocks of masks")
    if shape_of(checkpoint).conditioning is None:
        others |= dict.fromkeys(_OF_CANVASES, "canvases")
    for name, what in others.items():
        if getattr(settings, name) != getattr(usual, name) and not (name == "chunk_size" and not settings.gives_chunks):
            raise InvalidRequest(f"{family} has no {what}", field=name)


def with_blocks(settings: EngineSettings, block: int) -> EngineSettings:
    """For blocks of so many rows. The load chooses no chunks where it is to decide nothing. Raises InvalidRequest for
    `ahead` where no chunk is as large as a block, so that none would reach into the next."""
    is_block = settings.chunk_size == BLOCK or (settings.chunk_size == AUTO and settings.batch_invariant)
    is_told = settings.mode == "block" or settings.chunk_tiers is not None  # in another way
    size = str(block) if is_block and not is_told else settings.chunk_size
    tiers = Tiers.parse(settings.chunk_tiers, block) if settings.chunk_tiers is not None else None
    largest = max(rows for _, rows in tiers.tiers) if tiers else int(size) if size.isdecimal() else block
    if settings.ahead and largest < block:
        raise InvalidRequest(
            f"has no effect: chunks of {block} rows, whole blocks, alone reach into the next, and the largest here "
            f"have {largest}; raise chunk_size or chunk_tiers to {block}, or leave it away",
            field="ahead",
        )
    return replace(settings, block_size=block, chunk_size=size)


def masking_of(checkpoint: Checkpoint, settings: EngineSettings) -> BlockConfig | None:
    """The blocks of a model that fills in masks; None of another. Raises CheckpointError, InvalidRequest."""
    defaults = FAMILIES[checkpoint.model_type].blocks
    if defaults is None:
        return None
    tokenizer = checkpoint.tokenizer()
    return BlockConfig.of(
        checkpoint.name, checkpoint.config, checkpoint.generation, defaults, control=tokenizer.control,
        stop_ids=tokenizer.stop_ids, size=settings.block_size, paths=checkpoint.paths,
    )  # fmt: skip


def check_limits(
    shape: Shape, denoising: CanvasConfig | None, masking: BlockConfig | None, settings: EngineSettings
) -> None:
    """Raise InvalidRequest for limits that the model cannot have."""
    length, most = settings.max_model_len, settings.max_round_tokens
    assert most
    if length is not None and length > shape.max_positions:
        raise InvalidRequest(f"the model has {shape.max_positions} positions, not {length}", field="max_model_len")
    if masking is not None and most < 4 * masking.size:
        raise InvalidRequest(
            f"must be at least {4 * masking.size} for blocks of {masking.size} rows, not {most}",
            field="max_round_tokens",
        )
    if denoising is not None and most < 2 * denoising.canvas_length:
        raise InvalidRequest(
            f"a canvas of {denoising.canvas_length} rows takes half of a round at most: must be at least "
            f"{2 * denoising.canvas_length}, not {most}, or canvas_length be less",
            field="max_round_tokens",
        )


def load_model(checkpoint: Checkpoint, settings: EngineSettings) -> Decoder:
    """Read a checkpoint's weights. Raises CheckpointError."""
    family, shape = FAMILIES[checkpoint.model_type], shape_of(checkpoint)
    device, dtype = torch.device(settings.device), DTYPES[settings.dtype]
    ops = choose(device, settings.ops, invariant=settings.batch_invariant)
    if settings.batch_invariant:
        _check_invariant(checkpoint.name, shape, dtype, ops)
    plan = family.plan(shape, checkpoint.names)
    rotaries = [rope_frequencies(checkpoint.config.get_text_config(), kind) for kind in shape.rotaries]
    with Fingerprint(checkpoint.files) as fingerprint:  # while they are read
        weights = load(
            checkpoint,
            {name: weight.parts for name, weight in plan.items()},
            shapes={name: weight.shape for name, weight in plan.items()},
            wide={name for name, weight in plan.items() if weight.wide},
            dtype=dtype,
            unused=(*family.unused, *family.idle(shape, checkpoint.names)),
        )
        for name, weight in plan.items():
            made = weights[name] if weight.transform is None else weight.transform(weights[name])
            weights[name] = made.to(device)
        found = fingerprint.result()
    return Decoder(shape, weights, rotaries, ops, found)


def runner_for(model: Decoder, store: Store, settings: EngineSettings) -> Runner:
    """The runner of a model; on CUDA its passes are recorded first. Raises CheckpointError where they do not fit."""
    assert settings.max_round_tokens
    host = host_for(model.device)
    if model.device.type == "cpu":
        keep_freed()
    if not model.ops.recordable:
        return Runner(model, store, host)
    try:
        graphs = Graphs(model, store, host, settings.max_round_tokens)
        graphs.record(every=settings.block_size is not None)  # chunks of masks are read at most of their rows
    except torch.OutOfMemoryError as error:
        raise CheckpointError(
            f"no room on {model.device} for the passes of rounds of {settings.max_round_tokens} tokens: {error}; "
            "lower max_round_tokens or cache_bytes"
        ) from error
    return Runner(model, store, host, graphs)


def _check_invariant(name: str, shape: Shape, dtype: torch.dtype, ops: OpChoice) -> None:
    """Raise CheckpointError for layers that go through plain torch, whose bits depend on a round."""
    for layer in shape.layers:
        if odd := ops.varies(layer.op_shape(dtype)):
            raise CheckpointError(f"{name}: {odd} cannot be batch-invariant; load without batch_invariant")


def asked_of(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """The variables of the chat template, as the cards of its family set them."""
    return FAMILIES[checkpoint.model_type].asked


def sampled_of(checkpoint: Checkpoint, masking: BlockConfig | None) -> SamplingDefaults:
    """How ids are drawn unless a request says it: as generation_config.json says. Where that leaves the temperature
    open, masks take the likeliest id, as those who publish such models measure them. Warns of what does not hold.
    Raises CheckpointError."""
    generation = checkpoint.generation
    unheld = [f"{key} {shown(generation[key])}" for key, idle in _UNHELD.items() if generation.get(key) not in idle]
    if unheld:
        warnings.warn(f"{checkpoint.name}: generation_config.json's {', '.join(unheld)}: not held to", stacklevel=2)
    told = {name: value for name in _DRAWN if (value := generation.get(name)) is not None}
    for name, value in told.items():
        if not is_real(value) or not _DRAWN[name](value):
            raise CheckpointError(f"{checkpoint.name}: generation_config.json: {name} is {shown(value)}")
    samples = generation.get("do_sample")
    if samples is False or (masking is not None and "temperature" not in told and samples is None):
        return SamplingDefaults(temperature=0.0)
    return SamplingDefaults(**told)
