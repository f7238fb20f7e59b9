"""Family: all that sets the models of one architecture apart, in data and functions that its file gives."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ramet.config_schema import ConfigSchema
from ramet.errors import CheckpointError
from ramet.families.check import check_shape
from ramet.families.gguf import GgufArchitecture
from ramet.families.weight import Plan
from ramet.layers.shape import ModelShape

_OLD_NAMES = {  # of multimodal checkpoints
    "language_model.lm_head.": "lm_head.",
    "language_model.model.": "model.language_model.",
    "vision_tower.": "model.vision_tower.",
    "multi_modal_projector.": "model.multi_modal_projector.",
}
THOUGHTLESS: Mapping[str, Any] = MappingProxyType({"enable_thinking": False})


def _none(*_: object) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class BlockDefaults:
    """What the checkpoints of models that fill in blocks of masks leave open.

    size: rows of a block; None where releases differ in them. mask: the mask's id. stops: the texts of the control
    tokens that end a reply. plain: releases on the hub whose names tell no size, and theirs. editing: releases that go
    back to what they have written, in words, and what their names look like; their config.json may be that of others.
    """

    size: int | None
    mask: int
    stops: tuple[str, ...]
    plain: Mapping[str, int] = field(default_factory=dict)
    editing: Mapping[str, re.Pattern[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """Models that share their layers, and all that sets them apart from other families'.

    model_types: what config.json calls them. aliases: what training frameworks call the first of these instead.
    shape: reads transformers' configuration object, that of the text model where there are several.
    plan: names the weights of a checkpoint that has such a shape and these parameters.
    schema: the keys of config.json, for model types that transformers does not know.
    gguf: how GGUF files hold such models, where any do.
    embedding: what the embedding is called below the model's own name.
    old_names: how some checkpoints begin names that transformers begins otherwise, and how it begins them.
    unused: how the names of parameters begin that are left alone: towers for images and sound, heads for speculation.
    idle: names the parameters that a layer of such a shape has no use for.
    blocks: for models whose rows see their whole block, what holds where a checkpoint leaves it open.
    template_variables: of the chat template, as the models' cards set them for replies without thoughts.
    tower: the family of the model that turns pictures into rows of the stream; no family has one so far.
    """

    model_types: tuple[str, ...]
    shape: Callable[[Any], ModelShape]
    plan: Callable[[ModelShape, Collection[str]], Plan]
    aliases: tuple[str, ...] = ()
    schema: type[ConfigSchema] | None = None
    gguf: GgufArchitecture | None = None
    embedding: str = "embed_tokens"
    old_names: Mapping[str, str] = field(default_factory=lambda: _OLD_NAMES)
    unused: tuple[str, ...] = ()
    idle: Callable[[ModelShape, Collection[str]], tuple[str, ...]] = _none
    blocks: BlockDefaults | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    tower: Family | None = None

    def read(self, config: Any) -> ModelShape:
        """The shape that transformers' configuration of a checkpoint describes. Raises CheckpointError, also where the
        configuration holds what `shape` cannot count with."""
        try:
            shape = self.shape(config.get_text_config())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json describes no {config.model_type} model: {error}") from error
        check_shape(shape)
        return shape
