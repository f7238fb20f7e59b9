"""Rows of a run that ask for text: by the rules of the routes for text, answered whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ramet.errors import InvalidRequest, RequestError
from ramet.server.openai.answer import TextUsage
from ramet.server.openai.logprobs import chat_logprobs, completion_logprobs
from ramet.server.openai.request import ChatRequest, CompletionRequest
from ramet.server.openai.requested_replies import RequestedReplies

if TYPE_CHECKING:
    from ramet.engine import Engine

NO_EFFECT = frozenset({"stream", "stream_options"})  # a row is written whole


def asks_for_text(data: Mapping[str, Any]) -> bool:
    """Whether a row requests text. A row with a state or questions is a decision, whatever it has besides."""
    return not data.keys() & {"state", "questions"} and bool(data.keys() & {"messages", "prompt"})


def text_request(data: Mapping[str, Any], model: str) -> ChatRequest | CompletionRequest:
    """The request that a row spells, to the loaded model. Raises InvalidRequest."""
    kept = {name: value for name, value in data.items() if name not in NO_EFFECT} | {"model": model}
    if "messages" in data:
        return ChatRequest.parse(kept)
    request = CompletionRequest.parse(kept)
    if len(request.prompt) != 1:
        raise InvalidRequest("a row has one prompt: give each a row of its own", field="prompt")
    return request


async def reply_row(engine: Engine, request: ChatRequest | CompletionRequest) -> dict[str, Any]:
    """Write the reply, and return its row. Raises errors of `ramet.errors`, with the request's own names of fields."""
    try:
        requested = RequestedReplies.of(request, engine.name, engine.writer)
        (reply,) = await requested.whole()
    except RequestError as error:
        error.field = request.places.get(error.field or "", error.field)
        raise
    row: dict[str, Any] = {"model": requested.model, "text": reply.text, "finish_reason": reply.finish}
    if reply.reason is not None:
        row["stop_reason"] = reply.reason
    logprobs = chat_logprobs if isinstance(request, ChatRequest) else completion_logprobs
    if (told := logprobs(request, requested.writer.conversation.tokenizer, reply)) is not None:
        row["logprobs"] = told.model_dump(mode="json")
    # What was found in pages depends on the moment: see Job.
    return row | {"usage": TextUsage.of(requested.counts).model_dump(exclude={"prompt_tokens_details"})}
