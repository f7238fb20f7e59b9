"""Completions: POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.server.openai.answer import Completion, CompletionChoice, TextUsage
from ramet.server.openai.logprobs import completion_logprobs
from ramet.server.openai.request import CompletionRequest
from ramet.server.openai.requested_replies import RequestedReplies
from ramet.server.openai.route import AnswerHead, TextRoute
from ramet.server.openai.text_reply import Delta


class Completions(TextRoute[CompletionRequest]):
    """Continues a text, or each of several."""

    path = "/v1/completions"
    summary = "Continue a text"
    prefix = "cmpl"
    request = CompletionRequest
    answer = Completion

    def whole(
        self,
        head: AnswerHead,
        requested: RequestedReplies[CompletionRequest],
        replies: Sequence[Delta],
        usage: TextUsage,
    ) -> Completion:
        choices = [_choice(requested, i, reply) for i, reply in enumerate(replies)]
        return Completion(**head.fields(), choices=choices, usage=usage)

    def parts(
        self,
        head: AnswerHead,
        requested: RequestedReplies[CompletionRequest],
        index: int,
        delta: Delta,
        usage: TextUsage | None,
        *,
        first: bool,
    ) -> Sequence[Completion]:
        return [Completion(**head.fields(), choices=[_choice(requested, index, delta)], usage=usage)]

    def last(self, head: AnswerHead, usage: TextUsage) -> Completion:
        return Completion(**head.fields(), choices=[], usage=usage)


def _choice(requested: RequestedReplies[CompletionRequest], index: int, delta: Delta) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=delta.text,
        logprobs=completion_logprobs(requested.request, requested.writer.conversation.tokenizer, delta),
        finish_reason=delta.finish,
        stop_reason=delta.reason,
    )
