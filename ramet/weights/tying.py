"""Tying: whether a model's head is its embedding, decided from the file, since configurations say it wrongly."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ramet.errors import CheckpointError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HEAD = "lm_head.weight"
_EMBEDDINGS = ("embed_tokens.weight", "word_embeddings.weight")


def resolve_tying(
    names: frozenset[str], tensor: Callable[[str], torch.Tensor], config: PretrainedConfig, where: str
) -> frozenset[str]:
    """Set `config.tie_word_embeddings` to what the file needs; returns the names of the parameters to load.

    No head in the file: tied, with a warning if the configuration says otherwise. A head in the file: used, with a
    warning if the configuration calls it tied; but dropped from the names if it then equals the embedding.
    """
    embeddings = [name for name in names if f".{name}".endswith(tuple(f".{each}" for each in _EMBEDDINGS))]
    if not embeddings:
        raise CheckpointError(f"{where}: no tensor is named ...{_EMBEDDINGS[0]}; this is no causal language model")
    if HEAD not in names:
        if not config.tie_word_embeddings:
            text = f"the files hold no {HEAD}, so the embedding serves as head, though config.json says otherwise"
            warnings.warn(f"{where}: {text} (tie_word_embeddings false)", stacklevel=2)
        config.tie_word_embeddings = True
        return names
    if config.tie_word_embeddings:
        if torch.equal(tensor(HEAD), tensor(embeddings[0])):
            return names - {HEAD}
        text = f"{HEAD} differs from the embedding, so it is used, though config.json says otherwise"
        warnings.warn(f"{where}: {text} (tie_word_embeddings true)", stacklevel=2)
    config.tie_word_embeddings = False
    return names
