"""Cells of tables that are text: which of them are JSON."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ramet.quoting import shown
from ramet.rows.json_rows import DECODER
from ramet.rows.names import steps_of

# Fields of requests and of answers, by how their text is read; columns of all other names stay the text that they are.
TEXTS = frozenset(("id", "request", "model", "cache_salt", "text", "finish_reason", "stop_reason", "x_calibration"))
JSON = frozenset(("index", "questions", "messages", "gold", "answers", "usage", "error", "logprobs"))
# Those that are text unless they are JSON: an object or an array where text is allowed, numbers, true and false.
EITHER = frozenset((
    "seed", "joint", "max_tokens", "max_completion_tokens", "temperature", "top_k", "top_p", "top_logprobs",
    "stop", "stop_token_ids", "stream", "stream_options", "ignore_eos", "skip_special_tokens", "logprob_token_ids",
    "return_tokens_as_token_ids", "vllm_xargs", "confidence_threshold", "unmasking_strategy", "denoising_steps",
    "entropy_bound", "chunk_size", "chat_template_kwargs",
))  # fmt: skip
STATE = frozenset(("state", "prompt"))  # where only what a bracket begins is JSON: 17 is a text too
_TEXT_STATISTICS = frozenset(("type", "choice"))


def is_field(column: str) -> bool:
    """Whether a column is that of a request's or an answer's field: a cell in which there is nothing is none."""
    first = steps_of(column)[0]
    return first in TEXTS | JSON | EITHER | STATE or first.startswith("x_")


def value_of(column: str, cell: str) -> Any:
    """What a cell means; None where it is empty and its column's values are no text. Raises ValueError where JSON is
    due and it is none."""
    return _reader(column)(cell)


@lru_cache(1 << 14)
def _reader(column: str) -> Callable[[str], Any]:
    first, *inner = steps_of(column)
    if inner:
        is_text = first in ("gold", "error") or (
            first == "answers" and len(inner) == 2 and inner[1] in _TEXT_STATISTICS
        )
        return _text if is_text else _json
    if first in STATE:
        return _bracketed
    if first in TEXTS:
        return _text
    if first in EITHER or first.startswith("x_"):
        return _either
    return _json if first in JSON else str


def _text(cell: str) -> str | None:
    return cell or None


def _json(cell: str) -> Any:
    if not cell.strip():
        return None
    try:
        return DECODER.decode(cell.strip())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{shown(cell)} is no JSON ({error})") from error


def _bracketed(cell: str) -> Any:
    if not cell.lstrip().startswith(("{", "[")):
        return cell
    try:
        return DECODER.decode(cell.strip())
    except (ValueError, RecursionError):
        return cell


def _either(cell: str) -> Any:
    try:
        return DECODER.decode(cell.strip()) if cell.strip() else None
    except (ValueError, RecursionError):
        return cell
