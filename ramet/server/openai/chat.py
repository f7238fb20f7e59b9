"""Chat: POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.server.openai.answer import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    Message,
    MessageDelta,
    TextUsage,
)
from ramet.server.openai.logprobs import chat_logprobs
from ramet.server.openai.request import ChatRequest
from ramet.server.openai.requested_replies import RequestedReplies
from ramet.server.openai.route import AnswerHead, TextRoute
from ramet.server.openai.text_reply import Delta


class Chat(TextRoute[ChatRequest]):
    """Answers a conversation."""

    path = "/v1/chat/completions"
    summary = "Answer a conversation"
    prefix = "chatcmpl"
    request = ChatRequest
    answer = ChatCompletion

    def whole(
        self, head: AnswerHead, requested: RequestedReplies[ChatRequest], replies: Sequence[Delta], usage: TextUsage
    ) -> ChatCompletion:
        choices = [
            ChatChoice(
                index=i,
                message=Message(content=reply.text),
                logprobs=chat_logprobs(requested.request, requested.writer.conversation.tokenizer, reply),
                finish_reason=reply.finish or "length",
                stop_reason=reply.reason,
            )
            for i, reply in enumerate(replies)
        ]
        return ChatCompletion(**head.fields(), choices=choices, usage=usage)

    def parts(
        self,
        head: AnswerHead,
        requested: RequestedReplies[ChatRequest],
        index: int,
        delta: Delta,
        usage: TextUsage | None,
        *,
        first: bool,
    ) -> Sequence[ChatChunk]:
        added = ChatChunkChoice(
            index=index,
            delta=MessageDelta(content=delta.text),
            logprobs=chat_logprobs(requested.request, requested.writer.conversation.tokenizer, delta),
            finish_reason=delta.finish,
            stop_reason=delta.reason,
        )
        opening = [ChatChunkChoice(index=index, delta=MessageDelta(role="assistant", content=""))] if first else []
        return [ChatChunk(**head.fields(), choices=[choice], usage=usage) for choice in (*opening, added)]

    def last(self, head: AnswerHead, usage: TextUsage) -> ChatChunk:
        return ChatChunk(**head.fields(), choices=[], usage=usage)
