"""The sampling parameters of generation_config.json."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ramet.errors import CheckpointError
from ramet.foreign import MOST_INT32, is_real
from ramet.quoting import shown
from ramet.weights.checkpoint import Checkpoint

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
_DRAWN: dict[str, Callable[[float], bool]] = {  # keys of draws, and whether a value may be
    "temperature": lambda value: value >= 0,
    "top_k": lambda value: 0 <= value <= MOST_INT32 and value == int(value),
    "top_p": lambda value: 0 < value <= 1,
}


def draws_of(checkpoint: Checkpoint, *, likeliest: bool) -> dict[str, Any]:
    """temperature, top_k and top_p, as far as the file has them. `likeliest`: whether a temperature that the file
    leaves open is 0. Warns of settings that have no effect here. Raises CheckpointError."""
    generation = checkpoint.generation
    unheld = [f"{key} {shown(generation[key])}" for key, idle in _UNHELD.items() if generation.get(key) not in idle]
    if unheld:
        warnings.warn(f"{checkpoint.name}: generation_config.json's {', '.join(unheld)}: not held to", stacklevel=3)
    found = {name: value for name in _DRAWN if (value := generation.get(name)) is not None}
    for name, value in found.items():
        if not is_real(value) or not _DRAWN[name](value):
            raise CheckpointError(f"{checkpoint.name}: generation_config.json: {name} is {shown(value)}")
    samples = generation.get("do_sample")
    if samples is False or (likeliest and "temperature" not in found and samples is None):
        return {"temperature": 0.0}
    return found
