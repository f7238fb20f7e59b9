"""Loading: all that an engine is made of, from a checkpoint and settings."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ramet.decide.canvas import Canvas, thoughtless
from ramet.decide.decider import Decider
from ramet.decide.settings import settings_for
from ramet.denoise.block_config import BlockConfig
from ramet.denoise.canvas_config import CanvasConfig
from ramet.engine.load import (
    asked_of,
    check_kind,
    check_limits,
    denoising_of,
    load_model,
    masking_of,
    open_known,
    sampled_of,
    shape_of,
    with_blocks,
)
from ramet.engine.reply_writer import SamplingDefaults
from ramet.engine.settings import EngineSettings
from ramet.errors import CheckpointError, InvalidRequest
from ramet.layers.decoder import Decoder
from ramet.request import Method
from ramet.text.conversation import Conversation


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


def load_engine(source: str | Path, name: str | None, method: Method | None, given: dict[str, Any]) -> Loaded:
    """Load a model; given: fields of EngineSettings. Raises as `Engine.load`, what is wrong with names and settings
    before any file is read."""
    if not isinstance(source, str | Path):
        raise InvalidRequest(f"is a name or a path, not {source!r}", field="source")
    if name is not None and not name.strip():
        raise InvalidRequest("is empty: give the model a name, or leave it away", field="name")
    for unknown in given.keys() - {each.name for each in fields(EngineSettings)}:
        raise InvalidRequest("is no setting of an engine; docs/settings.md lists them", field=unknown)
    settings = EngineSettings(**given).resolved()
    assert settings.threads
    torch.set_num_threads(settings.threads)
    checkpoint = open_known(source)
    variables, tokenizer = asked_of(checkpoint), checkpoint.tokenizer()
    frame = checkpoint.frame(variables)
    check_kind(checkpoint, settings)
    canvas = canvases = None
    blocks, shape = masking_of(checkpoint, settings), shape_of(checkpoint)
    diffuses = shape.conditioning is not None
    if blocks is not None or diffuses:
        if method == "options":
            raise CheckpointError(f'{checkpoint.name}: a diffusion model takes the method "letters" alone')
        method = "letters"
    if blocks is not None:
        settings = with_blocks(settings, blocks.size)
    if diffuses:
        canvases = denoising_of(checkpoint, settings)
        frame = thoughtless(tokenizer, frame)
        canvas = Canvas.of(tokenizer, frame, canvases)
    check_limits(shape, canvases, blocks, settings)
    asking = settings_for(checkpoint.template(), method=method, chat=bool(frame.tail))
    if settings.batch_invariant and not (tokenizer.splits_before_words or tokenizer.splits_before_breaks):
        raise CheckpointError(
            f"{checkpoint.name}: its tokens may span the cut between state and question, so the cut depends on all "
            "the questions of a request, and answers cannot be batch-invariant; load without batch_invariant"
        )
    sampling = sampled_of(checkpoint, blocks)
    decider = Decider(tokenizer, frame, asking, canvas, blocks)
    model = load_model(checkpoint, settings)
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
