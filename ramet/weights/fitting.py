"""The check that a tokenizer and a chat template give ids within the model's embedding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramet.errors import CheckpointError
from ramet.text.chat import Frame, frame
from ramet.text.library import library_errors
from ramet.text.tokenizer import Tokenizer


def check_fits(tokenizer: Tokenizer, n_rows: int, where: str) -> Tokenizer:
    """Return the tokenizer. Raises CheckpointError where an id that a text may have, or one that begins or ends it,
    lies behind the embedding's last row. Control tokens may, as that of images does in Gemma 3's text models."""
    _check_ids("the vocabulary", [tokenizer.last], n_rows, where)
    _check_ids("the begin of a text", [] if tokenizer.bos is None else [tokenizer.bos], n_rows, where)
    _check_ids("the end of a text", tokenizer.stop_ids, n_rows, where)
    return tokenizer


def fitting_frame(
    tokenizer: Tokenizer, template: str | None, variables: Mapping[str, Any], n_rows: int, where: str
) -> Frame:
    """The text that the template, if there is one, writes around a user's content. Raises CheckpointError."""
    try:
        with library_errors("chat template"):
            found = frame(tokenizer, template, variables)
    except CheckpointError as error:
        raise CheckpointError(f"{where}: {error}") from error
    _check_ids("the chat template", [*found.head, *found.tail, found.end], n_rows, where)
    return found


def _check_ids(what: str, ids: Sequence[int], n_rows: int, where: str) -> None:
    for i in ids:
        if not 0 <= i < n_rows:
            raise CheckpointError(
                f"{where}: {what} has the id {i}, but the embedding has {n_rows} rows: the tokenizer and the weights "
                "belong to different models; download both again"
            )
