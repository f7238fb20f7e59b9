"""Log-probabilities of a reply's positions, in nats. Tokens differ by their ids, never by their text alone."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from ramet.generation import Position
from ramet.server.openai.answer import ChatLogprobs, CompletionLogprobs, PositionLogprobs, TokenLogprob
from ramet.server.openai.text_reply import Delta
from ramet.server.openai.text_request import TextRequest
from ramet.text.tokenizer import Tokenizer

LOWEST = -9999.0  # stands for minus infinity, which JSON has not

Pair = tuple[int, float]


def chat_logprobs(request: TextRequest, tokenizer: Tokenizer, delta: Delta) -> ChatLogprobs | None:
    """Those of a delta's positions; None where the request wants none."""
    if request.n_best is None:
        return None

    @cache
    def spelled(token: int) -> tuple[str, list[int]]:
        return _text(request, tokenizer, token), list(tokenizer.spelling[token])

    content = []
    for position in delta.positions:
        token, logprob = _own(position)
        text, spelling = spelled(token)
        top = _reported(request, position) if request.n_best or request.logprob_token_ids else {}
        listed = [TokenLogprob(spelled(i)[0], p, spelled(i)[1]) for i, p in top.items()]
        content.append(PositionLogprobs(text, logprob, spelling, listed))
    return ChatLogprobs(content=content)


def completion_logprobs(request: TextRequest, tokenizer: Tokenizer, delta: Delta) -> CompletionLogprobs | None:
    """The same in the older form, whose keys are the likeliest tokens' texts. Of two tokens with one text the second's
    key is its id."""
    if request.n_best is None:
        return None
    own = [_own(position) for position in delta.positions]
    return CompletionLogprobs(
        tokens=[_key(request, tokenizer, token) for token, _ in own],
        token_logprobs=[logprob for _, logprob in own],
        top_logprobs=[_keyed(request, tokenizer, _reported(request, position)) for position in delta.positions],
        text_offset=list(delta.offsets),
    )


def _own(position: Position) -> Pair:
    """The position's token with its log-probability, which every position reports."""
    return next((i, max(p, LOWEST)) for i, p in (*position.best, *position.listed) if i == position.token)


def _reported(request: TextRequest, position: Position) -> dict[int, float]:
    """The log-probabilities that a position reports: the likeliest, descending, and its own token's where that is not
    among them; where the request names ids, the likeliest one and these."""
    named = request.logprob_token_ids is not None
    pairs = [*position.best[: 1 if named else request.n_best], *(position.listed if named else ()), _own(position)]
    found: dict[int, float] = {}
    for token, logprob in pairs:
        found.setdefault(token, max(logprob, LOWEST))
    return found


def _text(request: TextRequest, tokenizer: Tokenizer, token: int) -> str:
    if request.return_tokens_as_token_ids:
        return _by_id(token)
    return tokenizer.spelling[token].decode("utf-8", "replace")


def _key(request: TextRequest, tokenizer: Tokenizer, token: int) -> str:
    """As OpenAI spells a token of this form: bytes that are no text are written out."""
    if request.return_tokens_as_token_ids:
        return _by_id(token)
    spelled = tokenizer.spelling[token]
    try:
        return spelled.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def _keyed(request: TextRequest, tokenizer: Tokenizer, logprobs: Mapping[int, float]) -> dict[str, float]:
    keyed: dict[str, float] = {}
    for token, logprob in logprobs.items():
        key = _key(request, tokenizer, token)
        keyed[_by_id(token) if key in keyed else key] = logprob
    return keyed


def _by_id(token: int) -> str:
    return f"token_id:{token}"
