"""Tying: decides from the file whether a model's head is its embedding, since configurations are wrong about it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import torch

from ramet.errors import CheckpointError
from ramet.families import Family

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HEAD = "lm_head.weight"


def embedding_of(names: Collection[str], family: Family, where: str) -> str:
    """The name of the embedding. Raises CheckpointError."""
    due = f"{family.embedding}.weight"
    found = next((name for name in names if f".{name}".endswith(f".{due}")), None)
    if found is None:
        raise CheckpointError(f"{where}: no tensor is named ...{due}; this is no causal language model")
    return found


def resolve_tying(
    names: frozenset[str], tensor: Callable[[str], torch.Tensor], config: PretrainedConfig, family: Family, where: str
) -> frozenset[str]:
    """Set `config.tie_word_embeddings` as the file needs it. Returns the names of the parameters to load.

    Without a head in the file it is tied, with a warning if the configuration says otherwise. A head in the file is
    used, with a warning if the configuration calls it tied; then it is left out if it equals the embedding.
    """
    if HEAD not in names:
        if not config.tie_word_embeddings:
            text = f"the files hold no {HEAD}, so the embedding serves as head, though config.json says otherwise"
            warnings.warn(f"{where}: {text} (tie_word_embeddings false)", stacklevel=2)
        config.tie_word_embeddings = True
        return names
    if config.tie_word_embeddings:
        head, embedding = tensor(HEAD), tensor(embedding_of(names, family, where))
        if head.dtype == embedding.dtype and torch.equal(head, embedding):
            return names - {HEAD}
        text = f"{HEAD} differs from the embedding, so it is used, though config.json says otherwise"
        warnings.warn(f"{where}: {text} (tie_word_embeddings true)", stacklevel=2)
    config.tie_word_embeddings = False
    return names
