"""Fields of a row that are no part of its request: the output has them as they are."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Any

from ramet import media
from ramet.cli.reply_row import asks_for_text
from ramet.errors import InvalidRequest
from ramet.names import is_media, nearest
from ramet.quoting import shown
from ramet.request import DecisionRequest
from ramet.rows.columns import FIRST, LAST
from ramet.rows.names import steps_of
from ramet.server.openai.parameters import REFUSED, WITHOUT_EFFECT
from ramet.server.openai.request import ChatRequest, CompletionRequest

Row = dict[str, Any]
OUTPUTS = frozenset((*FIRST, *LAST)) - {"id"}  # fields that the output has of its own


def parted(data: Mapping[str, Any], keep: Collection[str] = ()) -> tuple[Row, Row]:
    """A row's request and what is kept of the row, neither with its `id`.

    Kept is what no request has, and what `keep` names, be it a part of the request too. What a request would refuse, a
    misspelt field among them, stays in it. Raises InvalidRequest for a field that the output has of its own.
    """
    kept = {name: value for name, value in data.items() if name != "id" and _is_kept(name, data, keep)}
    for name in kept:
        _check(name)
    known = _known(asks_for_text(data))
    return {name: data[name] for name in data if name != "id" and (name in known or name not in kept)}, kept


def kept_columns(columns: Iterable[str], keep: Collection[str] = ()) -> tuple[str, ...]:
    """Those of a table's columns that are kept. Raises InvalidRequest that names the column, and the remedy, for one
    that the output has of its own, or a request would refuse in every row."""
    fields = {column: steps_of(column)[0] for column in columns}
    named = dict.fromkeys(fields.values(), "")
    for name in named:
        why = _why_refused(name, asks_for_text(named))
        if name not in keep and why is not None:
            raise InvalidRequest(f"column {shown(name)} {why}; or pass it through as it is with --keep {name}")
    kept = tuple(column for column, name in fields.items() if name != "id" and _is_kept(name, named, keep))
    for column in kept:
        _check(fields[column])
    return kept


def _is_kept(name: str, data: Mapping[str, Any], keep: Collection[str]) -> bool:
    is_text = asks_for_text(data)
    return name in keep or (name not in _known(is_text) and _why_refused(name, is_text) is None)


def _check(name: str) -> None:
    if name in OUTPUTS:
        raise InvalidRequest("the output has a field of that name of its own: rename this one", field=name)


@cache
def _known(is_text: bool) -> frozenset[str]:
    requests = (ChatRequest, CompletionRequest) if is_text else (DecisionRequest,)
    return frozenset(name for request in requests for name in request.model_fields)


@cache
def _why_refused(name: str, is_text: bool) -> str | None:
    """Why a request does not take a field that it does not know; None where it may be anybody's."""
    if name in _known(is_text) or name == "id":
        return None
    if not is_text:
        return next((why for _, why in DecisionRequest.refused([name])), None)
    if name in WITHOUT_EFFECT:
        return None
    if is_media(name):
        return f"holds media: {media.WHY}"
    if name in REFUSED:
        return REFUSED[name].why
    near = nearest(name, (*sorted(_known(is_text)), *REFUSED))
    return None if near is None else f"is unknown; did you mean {near}?"
