"""ChatTemplate: a checkpoint's Jinja template, rendered as `transformers` renders it.

It is transformers' own renderer, not a Jinja environment of ours, so that a prompt is what `apply_chat_template`
gives, sandbox, filters and globals included. Alone its import takes 1.2 s where Jinja's takes 0.05 s; but the model's
configuration has paid for it before any template is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ramet.errors import InvalidRequest

Message = Mapping[str, Any]


class ChatTemplate:
    """`source` is the template's text, `specials` the texts that it may name, such as ``bos_token``."""

    def __init__(self, source: str, specials: Mapping[str, str]) -> None:
        self.source = source
        self.specials = dict(specials)

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt of a conversation, thinking off where the template knows how. Keys that are None are left out.

        Raises InvalidRequest with the template's own message when it refuses the messages.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            rendered, _ = render_jinja_template(
                conversations=[chat],
                chat_template=self.source,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=False,
                **self.specials,
            )
        except Exception as error:  # a template is a program of its own: whatever it raises is its refusal
            raise InvalidRequest(f"the chat template refuses these messages: {error}", field="messages") from error
        return str(rendered[0])
