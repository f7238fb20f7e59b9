"""From a checkpoint and settings to all that an engine is made of."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ramet.cache.store import Store
from ramet.config import rope_frequencies
from ramet.decide.canvas import Canvas, thoughtless
from ramet.decide.decider import Decider
from ramet.decide.settings import settings_for
from ramet.denoise.block_config import BlockConfig
from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.elastic import AUTO, BLOCK, ChunkTiers
from ramet.engine.allocator import keep_freed
from ramet.engine.calibration import ChosenCalibration, Given
from ramet.engine.graphs import Graphs
from ramet.engine.host import host_for
from ramet.engine.reply_writer import SamplingDefaults
from ramet.engine.runner import Runner
from ramet.engine.settings import DTYPES, EngineSettings
from ramet.errors import CheckpointError, InvalidRequest
from ramet.layers.decoder import Decoder
from ramet.layers.shape import ModelShape
from ramet.ops import OpChoice, choose
from ramet.quoting import shown
from ramet.request import Method
from ramet.text.conversation import Conversation
from ramet.weights import Checkpoint, load_onto, open_checkpoint
from ramet.weights.generation_config import draws_of

_OF_CANVASES = ("canvas_length", "max_denoising_steps", "single_pass_reads")
_OF_MASKS = (
    "block_size", "mode", "chunk_size", "chunk_tiers", "ahead", "unmasking_strategy", "confidence_threshold",
    "denoising_steps", "latency_cache",
)  # fmt: skip


class Loaded(NamedTuple):
    """What `Engine` takes, in the same order."""

    name: str
    model: Decoder
    decider: Decider
    settings: EngineSettings
    canvases: CanvasConfig | None
    conversation: Conversation
    blocks: BlockConfig | None
    sampling: SamplingDefaults


def load_engine(
    source: str | Path,
    name: str | None,
    method: Method | None,
    calibration: Given,
    given: dict[str, Any],
) -> Loaded:
    """Load a model; given: fields of EngineSettings. Raises as `Engine.load`, what is wrong with names and settings
    before any file is read."""
    if not isinstance(source, str | Path):
        raise InvalidRequest(f"is a name or a path, not {source!r}", field="source")
    if name is not None and not name.strip():
        raise InvalidRequest("is empty: give the model a name, or leave it away", field="name")
    if calibration is not False and not isinstance(calibration, str | Path | None):
        raise InvalidRequest(f"is a file, not {shown(calibration)}", field="calibration")
    for unknown in given.keys() - {each.name for each in fields(EngineSettings)}:
        raise InvalidRequest("is no setting of an engine; docs/settings.md lists them", field=unknown)
    settings = EngineSettings(**given).resolved()
    assert settings.threads
    torch.set_num_threads(settings.threads)
    checkpoint = open_checkpoint(source)
    chosen = ChosenCalibration.of(source, checkpoint, calibration)
    variables, tokenizer = checkpoint.family.template_variables, checkpoint.tokenizer()
    frame = checkpoint.frame(variables)
    check_kind(checkpoint, settings)
    canvas = canvases = None
    blocks, shape = block_config_of(checkpoint, settings), checkpoint.family.read(checkpoint.config)
    diffuses = shape.conditioning is not None
    if blocks is not None or diffuses:
        if method == "options":
            raise CheckpointError(f'{checkpoint.name}: a diffusion model takes the method "letters" alone')
        method = "letters"
    if blocks is not None:
        settings = with_blocks(settings, blocks.size)
    if diffuses:
        canvases = canvas_config_of(checkpoint, settings)
        frame = thoughtless(tokenizer, frame)
        canvas = Canvas.of(tokenizer, frame, canvases)
    check_limits(shape, canvases, blocks, settings)
    asking = settings_for(checkpoint.template(), method=method, chat=bool(frame.tail), width=shape.hidden_size)
    if settings.batch_invariant and not (tokenizer.splits_before_words or tokenizer.splits_before_breaks):
        raise CheckpointError(
            f"{checkpoint.name}: its tokens may span the cut between state and question, so the cut depends on all "
            "the questions of a request, and answers cannot be batch-invariant; load without batch_invariant"
        )
    sampling = sampling_of(checkpoint, blocks)
    decider = Decider(tokenizer, frame, asking, canvas, blocks)
    chosen.check(decider)  # before the weights are read, which takes a while
    model = load_model(checkpoint, settings)
    chosen.apply(decider, model.fingerprint)
    most = settings.max_model_len or shape.max_positions
    return Loaded(
        name=name or checkpoint.name,
        model=model,
        decider=decider,
        settings=settings,
        canvases=canvases,
        conversation=Conversation(tokenizer, checkpoint.template(), variables, most),
        blocks=blocks,
        sampling=sampling,
    )


def canvas_config_of(checkpoint: Checkpoint, settings: EngineSettings) -> CanvasConfig:
    """How a diffusion model writes: as its checkpoint says, within the settings. Raises CheckpointError,
    InvalidRequest."""
    own = CanvasConfig.of(checkpoint.config, checkpoint.generation)
    length, n_steps = settings.canvas_length or own.canvas_length, settings.max_denoising_steps or own.max_steps
    if length > own.canvas_length:
        raise InvalidRequest(f"the model's canvases have {own.canvas_length} rows, not {length}", field="canvas_length")
    return replace(own, canvas_length=length, max_steps=n_steps)


def check_kind(checkpoint: Checkpoint, settings: EngineSettings) -> None:
    """Raise InvalidRequest for a setting of models that write in another way than this one."""
    usual = EngineSettings()
    others = {} if checkpoint.family.blocks else dict.fromkeys(_OF_MASKS, "blocks of masks")
    if checkpoint.family.read(checkpoint.config).conditioning is None:
        others |= dict.fromkeys(_OF_CANVASES, "canvases")
    for name, what in others.items():
        if getattr(settings, name) != getattr(usual, name) and not (name == "chunk_size" and not settings.gives_chunks):
            raise InvalidRequest(f"{checkpoint.model_type} has no {what}", field=name)


def with_blocks(settings: EngineSettings, block: int) -> EngineSettings:
    """For blocks of so many rows. The load chooses no chunks where it is to decide nothing. Raises InvalidRequest for
    `ahead` where no chunk is as large as a block, so that none would reach into the next."""
    is_block = settings.chunk_size == BLOCK or (settings.chunk_size == AUTO and settings.batch_invariant)
    is_told = settings.mode == "block" or settings.chunk_tiers is not None  # in another way
    size = str(block) if is_block and not is_told else settings.chunk_size
    tiers = ChunkTiers.parse(settings.chunk_tiers, block) if settings.chunk_tiers is not None else None
    largest = max(rows for _, rows in tiers.tiers) if tiers else int(size) if size.isdecimal() else block
    if settings.ahead and largest < block:
        raise InvalidRequest(
            f"has no effect: chunks of {block} rows, whole blocks, alone reach into the next, and the largest here "
            f"have {largest}; raise chunk_size or chunk_tiers to {block}, or leave it away",
            field="ahead",
        )
    return replace(settings, block_size=block, chunk_size=size)


def block_config_of(checkpoint: Checkpoint, settings: EngineSettings) -> BlockConfig | None:
    """The blocks of a model that fills in masks; None of another. Raises CheckpointError, InvalidRequest."""
    defaults = checkpoint.family.blocks
    if defaults is None:
        return None
    tokenizer = checkpoint.tokenizer()
    return BlockConfig.of(
        checkpoint.name, checkpoint.config, checkpoint.generation, defaults, control=tokenizer.control,
        stop_ids=tokenizer.stop_ids, size=settings.block_size, paths=checkpoint.paths,
    )  # fmt: skip


def check_limits(
    shape: ModelShape, denoising: CanvasConfig | None, masking: BlockConfig | None, settings: EngineSettings
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
    shape = checkpoint.family.read(checkpoint.config)
    device, dtype = torch.device(settings.device), DTYPES[settings.dtype]
    ops = choose(device, settings.ops, invariant=settings.batch_invariant)
    if settings.batch_invariant:
        _check_invariant(checkpoint.name, shape, dtype, ops)
    rotaries = [rope_frequencies(checkpoint.config.get_text_config(), kind) for kind in shape.rotaries]
    weights, fingerprint = load_onto(device, checkpoint, shape, dtype)
    return Decoder(shape, weights, rotaries, ops, fingerprint)


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


def _check_invariant(name: str, shape: ModelShape, dtype: torch.dtype, ops: OpChoice) -> None:
    """Raise CheckpointError for layers that go through plain torch, whose bits depend on a round."""
    for layer in shape.layers:
        if odd := ops.varies(layer.op_shape(dtype)):
            raise CheckpointError(f"{name}: {odd} cannot be batch-invariant; load without batch_invariant")


def sampling_of(checkpoint: Checkpoint, masking: BlockConfig | None) -> SamplingDefaults:
    """How ids are drawn unless a request says it: as generation_config.json says. Where that leaves the temperature
    open, masks take the likeliest id, as those who publish such models measure them. Raises CheckpointError."""
    return SamplingDefaults(**draws_of(checkpoint, likeliest=masking is not None))
