"""Masking: the blocks of a model that fills in masks, resolved once, and where each part was found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from ramet.errors import CheckpointError, InvalidRequest

_IN_NAME = re.compile(r"-b(\d+)$")
# LLaDA2.1 and 2.2 go back to what they have written. Their config.json may be that of 2.0, so names tell.
_EDITS = re.compile(r"llada-?2[.-][1-9]", re.IGNORECASE)
_EDITING = ("edit_threshold", "editing_threshold", "max_post_edit_steps", "max_post_steps")


class Defaults(Protocol):
    """What a family says, see families/family.py."""

    @property
    def size(self) -> int: ...
    @property
    def mask(self) -> int: ...
    @property
    def stops(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Masking:
    """size: rows of a block, two at least. mask: the id of what is not known yet. eos: ids that end a reply. found:
    where each of them was, in words."""

    size: int
    mask: int
    eos: frozenset[int]
    found: Mapping[str, str] = field(default_factory=dict, compare=False)

    @classmethod
    def of(
        cls,
        name: str,
        config: Any,
        generation: Mapping[str, Any],
        defaults: Defaults,
        *,
        control: Mapping[str, int],
        eos: tuple[int, ...],
        size: int | None = None,
    ) -> Masking:
        """Of the checkpoint `name`, its configuration and what generation_config.json holds; control and eos: the
        tokenizer's. `size` is an option and wins. Raises CheckpointError; InvalidRequest for the option."""
        _check_editing(name, generation)
        rows, rows_from = _size(name, config, defaults, size)
        if not 2 <= rows <= config.max_position_embeddings:
            wrong = f"a block of {rows} rows; there are from 2 to {config.max_position_embeddings}"
            if size is not None:
                raise InvalidRequest(wrong, field="block_size")
            raise CheckpointError(f"{name}: {wrong} ({rows_from})")
        mask, mask_from = defaults.mask, f"{config.model_type}'s own"
        if config.mask_token_id is not None:
            mask, mask_from = config.mask_token_id, "config.json"
        if not 0 <= mask < config.vocab_size:
            raise CheckpointError(
                f"{name}: the mask's id is {mask} ({mask_from}), but ids run from 0 to {config.vocab_size - 1}; "
                "set mask_token_id in config.json"
            )
        stops = {control[text] for text in defaults.stops if text in control} | set(eos)
        if not stops - {mask}:
            raise CheckpointError(f"{name}: no id ends a reply; set eos_token_id in config.json")
        found = {"size": rows_from, "mask": mask_from, "eos": "config.json, generation_config.json and the tokenizer"}
        return cls(size=rows, mask=mask, eos=frozenset(stops - {mask}), found=found)

    def describe(self) -> dict[str, str]:
        """What was resolved, for people."""
        told = {"size": self.size, "mask": self.mask, "eos": ", ".join(map(str, sorted(self.eos)))}
        names = {"size": "block_size", "mask": "mask_token_id", "eos": "stop_token_ids"}
        return {names[part]: f"{value} ({self.found[part]})" for part, value in told.items()}

    def n_masks(self, n_rows: int) -> int:
        """How many rows it takes from row `n_rows` of a sequence to the end of the block: one at least."""
        return self.size - n_rows % self.size


def _size(name: str, config: Any, defaults: Defaults, asked: int | None) -> tuple[int, str]:
    if asked is not None:
        return asked, "the option"
    if config.block_size is not None:
        return config.block_size, "config.json"
    if named := _IN_NAME.search(name):
        return int(named[1]), "the model's name"
    return defaults.size, f"{config.model_type}'s default"


def _check_editing(name: str, generation: Mapping[str, Any]) -> None:
    keys = [key for key in _EDITING if generation.get(key) is not None]
    if _EDITS.search(name) or keys:
        told = f"generation_config.json has {keys[0]}" if keys else "LLaDA2.1 and 2.2 do"
        raise CheckpointError(f"{name}: models that edit what they have written are not served ({told})")
