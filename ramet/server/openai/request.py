"""ChatRequest and CompletionRequest: what each route for text takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from pydantic import Field, model_validator

from ramet.errors import InvalidRequest
from ramet.problems import located
from ramet.server.openai.fields import Count, Messages, Number, Prompts
from ramet.server.openai.messages import with_known_roles
from ramet.server.openai.text_request import TextRequest
from ramet.text.conversation import Conversation

COMPLETION_TOKENS = 16  # what OpenAI writes where max_tokens is absent


class ChatRequest(TextRequest):
    """A conversation, whose next turn the model writes."""

    messages: Messages = Field(description="Turns with a `role` and a `content` of text.")
    max_completion_tokens: Count | None = Field(default=None, description="The newer name of max_tokens.")
    logprobs: bool = Field(default=False, description="Report the log-probability of each token.")
    top_logprobs: Number = Field(default=0, description="And of so many of the likeliest.")
    chat_template_kwargs: dict[str, Any] = Field(default={}, description="Variables of the model's chat template.")

    @model_validator(mode="after")
    def _chat_fits_together(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise located(("top_logprobs",), "logprobs", "needs logprobs to be true")
        given = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(given) > 1:
            raise located(("max_tokens",), "max_tokens", "is another name of max_completion_tokens: give one of them")
        return self

    @property
    def n_best(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def prompts(self, conversation: Conversation) -> list[list[int]]:
        messages = self.messages
        if conversation.template is not None:
            messages = with_known_roles(messages, conversation.template.source)
        return [conversation.chat(messages, self.chat_template_kwargs)]

    @property
    def places(self) -> Mapping[str, str]:
        most = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {**super().places, "prompt": "messages", "n_best": "top_logprobs", "max_tokens": most}


class CompletionRequest(TextRequest):
    """One text, or several, each of which the model continues."""

    prompt: Prompts = Field(description="Text, ids, or an array of either. Control tokens are written as ids alone.")
    logprobs: Number | None = Field(
        default=None, description="Report the log-probability of each token, and of so many of the likeliest."
    )

    @property
    def n_best(self) -> int | None:
        return self.logprobs

    @property
    def limit(self) -> int | None:
        if self.max_tokens is None and not self.vllm_xargs.diffusion_read_only:
            return COMPLETION_TOKENS
        return self.max_tokens

    def prompts(self, conversation: Conversation) -> list[list[int]]:
        found = [conversation.prompt(prompt) if isinstance(prompt, str) else prompt for prompt in self.prompt]
        if not all(found):
            raise InvalidRequest("is empty: a prompt needs at least one token", field="prompt")
        return found

    @property
    def places(self) -> Mapping[str, str]:
        return {**super().places, "n_best": "logprobs"}
