"""BlockConfig: the blocks of a model that fills in masks, resolved once, and where each part was found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from ramet.errors import CheckpointError, InvalidRequest
from ramet.foreign import Fields

_IN_NAME = re.compile(r"-b(2|4|8|16|32|64|128)(?!\w)", re.IGNORECASE)
# Keys by which models go back to what they have written.
_EDITING = ("edit_threshold", "editing_threshold", "max_post_edit_steps", "max_post_steps")


class Defaults(Protocol):
    """The defaults of a family; see families/family.py."""

    @property
    def size(self) -> int | None: ...
    @property
    def mask(self) -> int: ...
    @property
    def stops(self) -> tuple[str, ...]: ...
    @property
    def plain(self) -> Mapping[str, int]: ...
    @property
    def editing(self) -> Mapping[str, re.Pattern[str]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockConfig:
    """size: rows of a block, two at least. mask: the id of a row that is not known yet. stop_ids: ids that end a reply.
    found: by the name of each of these, the place where it was found, in words."""

    size: int
    mask: int
    stop_ids: frozenset[int]
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
        stop_ids: tuple[int, ...],
        size: int | None = None,
        paths: Sequence[str] = (),
    ) -> BlockConfig:
        """Resolve the blocks of the checkpoint `name`, from its configuration and generation_config.json. control,
        stop_ids: the tokenizer's. `size` is the user's option, which wins. `paths`: the checkpoint's full paths. Raises
        CheckpointError; InvalidRequest for the option."""
        names = {"the model's name": [name], "its path": paths, "config.json's _name_or_path": [config.name_or_path]}
        _check_editing(name, generation, defaults, [*chain.from_iterable(names.values())])
        if size is None:
            rows, rows_from = _size(name, config, generation, defaults, names)
        else:
            rows, rows_from = size, "the option"
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
        stops = {control[text] for text in defaults.stops if text in control} | set(stop_ids)
        if not stops - {mask}:
            raise CheckpointError(f"{name}: no id ends a reply; set eos_token_id in config.json")
        found = {"size": rows_from, "mask": mask_from, "eos": "config.json, generation_config.json and the tokenizer"}
        return cls(size=rows, mask=mask, stop_ids=frozenset(stops - {mask}), found=found)

    def describe(self) -> dict[str, str]:
        """The resolved values and where they were found, for people."""
        values = {"size": self.size, "mask": self.mask, "eos": ", ".join(map(str, sorted(self.stop_ids)))}
        names = {"size": "block_size", "mask": "mask_token_id", "eos": "stop_token_ids"}
        return {names[part]: f"{value} ({self.found[part]})" for part, value in values.items()}

    def n_masks(self, n_rows: int) -> int:
        """How many rows there are from row `n_rows` of a sequence to the end of its block: one at least."""
        return self.size - n_rows % self.size


def _size(
    name: str, config: Any, generation: Mapping[str, Any], defaults: Defaults, names: Mapping[str, Sequence[str]]
) -> tuple[int, str]:
    """Rows of a block, and where that was found. Raises CheckpointError where it is found nowhere, or names differ."""
    for values, where in ((vars(config), "config.json"), (generation, "generation_config.json")):
        for key in ("block_size", "block_length"):
            if (rows := Fields(values, f"{name}: {where}").whole(key)) is not None:
                return rows, where
    found = {
        where: {int(match[1]) for text in texts for match in _IN_NAME.finditer(text)} for where, texts in names.items()
    }
    sizes = sorted(set().union(*found.values()))
    if len(sizes) == 1:
        return sizes[0], next(where for where, own in found.items() if own)
    if not sizes and name in defaults.plain:
        return defaults.plain[name], "the release of that name"
    if not sizes and defaults.size is not None:
        return defaults.size, f"{config.model_type}'s default"
    what = (
        f"its names speak of blocks of {' and of '.join(map(str, sizes))} rows"
        if sizes
        else "neither config.json nor its name and path say how many rows its blocks have"
    )
    raise CheckpointError(
        f"{name}: {what}, and with blocks that it was not trained for its answers are wrong: give --block-size "
        "(block_size in Python), or set block_size in config.json"
    )


def _check_editing(name: str, generation: Mapping[str, Any], defaults: Defaults, names: Sequence[str]) -> None:
    found = [f"generation_config.json has {key}" for key in _EDITING if generation.get(key) is not None]
    found += [who for who, pattern in defaults.editing.items() if any(pattern.search(each) for each in names)]
    if found:
        raise CheckpointError(f"{name}: models that edit what they have written are not served ({found[0]})")
