"""Completions: POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from ramet.server.openai.answer import Completion, CompletionChoice, TextUsage
from ramet.server.openai.logprobs import completion_logprobs
from ramet.server.openai.reply import Delta
from ramet.server.openai.request import CompletionRequest
from ramet.server.openai.route import Head, TextRoute
from ramet.server.openai.writing import Writing


class Completions(TextRoute[CompletionRequest]):
    """Continues a text, or each of several."""

    path = "/v1/completions"
    summary = "Continue a text"
    prefix = "cmpl"
    request = CompletionRequest
    answer = Completion

    def whole(
        self, head: Head, writing: Writing[CompletionRequest], replies: Sequence[Delta], usage: TextUsage
    ) -> Completion:
        choices = [_choice(writing, i, reply) for i, reply in enumerate(replies)]
        return Completion(**head.fields(), choices=choices, usage=usage)

    def parts(
        self,
        head: Head,
        writing: Writing[CompletionRequest],
        index: int,
        delta: Delta,
        usage: TextUsage | None,
        *,
        first: bool,
    ) -> Sequence[Completion]:
        return [Completion(**head.fields(), choices=[_choice(writing, index, delta)], usage=usage)]

    def last(self, head: Head, usage: TextUsage) -> Completion:
        return Completion(**head.fields(), choices=[], usage=usage)


def _choice(writing: Writing[CompletionRequest], index: int, delta: Delta) -> CompletionChoice:
    return CompletionChoice(
        index=index,
        text=delta.text,
        logprobs=completion_logprobs(writing.request, writing.writer.conversation.tokenizer, delta),
        finish_reason=delta.finish,
        stop_reason=delta.reason,
    )
