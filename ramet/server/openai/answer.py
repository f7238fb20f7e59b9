"""The answers of the routes for text: whole, and as the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ramet.generation import Finish
from ramet.server.openai.reply_counts import ReplyCounts


class _Answer(BaseModel):
    model_config = ConfigDict(allow_inf_nan=False)


_WHERE_KNOWN: Any = Field(default=None, exclude_if=lambda value: value is None)


class PromptDetails(_Answer):
    cached_tokens: int


class TextUsage(_Answer):
    """The tokens of all replies together, and what it took to write them. x_steps counts passes, for each reply in
    them; x_canvases counts canvases. Without canvases there are x_tokens_per_step, the mean tokens that a reply gained
    in a pass, and x_mean_chunk, the mean rows that it ran. x_chunk_size is the most rows of a chunk, where all of the
    replies have one size at any load."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    x_steps: int
    x_canvases: int | None = _WHERE_KNOWN
    x_tokens_per_step: float | None = _WHERE_KNOWN
    x_mean_chunk: float | None = _WHERE_KNOWN
    x_chunk_size: int | None = _WHERE_KNOWN

    @classmethod
    def of(cls, counts: Sequence[ReplyCounts]) -> TextUsage:
        n_prompt, n_tokens, n_steps, n_rows, n_canvases = (
            sum(getattr(each, name) for each in counts)
            for name in ("n_prompt", "n_tokens", "n_steps", "n_rows", "n_canvases")
        )
        sizes = {each.chunk_size for each in counts}
        return cls(
            prompt_tokens=n_prompt,
            completion_tokens=n_tokens,
            total_tokens=n_prompt + n_tokens,
            prompt_tokens_details=PromptDetails(cached_tokens=sum(t.n_cached for t in counts)),
            x_steps=n_steps,
            x_canvases=n_canvases or None,
            x_tokens_per_step=None if n_canvases else round(n_tokens / max(n_steps, 1), 4),
            x_mean_chunk=None if n_canvases else round(n_rows / max(n_steps, 1), 4),
            x_chunk_size=sizes.pop() if len(sizes) == 1 else None,
        )


@dataclass(slots=True)
class TokenLogprob:
    """A token by its id: two tokens of the same text differ in their bytes. It is a dataclass, since an answer may hold
    a thousand."""

    token: str
    logprob: float
    bytes: list[int]


@dataclass(slots=True)
class PositionLogprobs(TokenLogprob):
    """The token of a position, and those that the request wanted beside it."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(_Answer):
    content: list[PositionLogprobs]


class CompletionLogprobs(_Answer):
    """Lists of one length, an entry a token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class Message(_Answer):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class MessageDelta(_Answer):
    role: Literal["assistant"] | None = _WHERE_KNOWN
    content: str | None = _WHERE_KNOWN


class ChatChoice(_Answer):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | None


class ChatChunkChoice(_Answer):
    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | None = _WHERE_KNOWN


class CompletionChoice(_Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | None = None


class ChatCompletion(_Answer):
    """A whole reply."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: TextUsage


class ChatChunk(_Answer):
    """An event of a stream."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: TextUsage | None = _WHERE_KNOWN


class Completion(_Answer):
    """Whole replies in the order of the prompts, or an event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: TextUsage | None = _WHERE_KNOWN
