"""ChatTemplate: a checkpoint's Jinja template, rendered as `transformers` renders it.

It is transformers' own renderer, not a Jinja environment of ours, so that a prompt is what `apply_chat_template`
gives, sandbox, filters and globals included. Alone its import takes 1.2 s where Jinja's takes 0.05 s; but the model's
configuration has paid for it before any template is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, TemplateError
from jinja2.meta import find_undeclared_variables

from ramet.errors import InvalidRequest

Message = Mapping[str, Any]

RESERVED = frozenset({  # what the renderer takes under these names is no variable of the caller's
    "conversations", "messages", "tools", "documents", "chat_template", "return_assistant_tokens_mask",
    "continue_final_message", "add_generation_prompt", "raise_exception", "strftime_now",
})  # fmt: skip
_LENIENT = Environment(extensions=["jinja2.ext.loopcontrols"], autoescape=False)  # noqa: S701, parses and renders nothing
_GENERATION = re.compile(r"{%-?\s*(end)?generation\s*-?%}")  # transformers' own tag, around what a model wrote


class ChatTemplate:
    """`source` is the template's text, `specials` the texts that it may name, such as ``bos_token``, `asked` the values
    of its variables where a caller sets none: those of the model's card."""

    def __init__(
        self, source: str, specials: Mapping[str, str], asked: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.source = source
        self.specials = dict(specials)
        self.asked = dict(asked)

    @cached_property
    def options(self) -> frozenset[str] | None:
        """Names that the template reads, which a caller may set; None where its text cannot be parsed for them."""
        try:
            names = find_undeclared_variables(_LENIENT.parse(_GENERATION.sub("", self.source)))
        except TemplateError:
            return None
        return frozenset(names - RESERVED - set(_LENIENT.globals) - set(self.specials))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt of a conversation. Keys that are None are left out.

        `options` are variables of the template, none of them RESERVED. Raises InvalidRequest with the template's own
        message when it refuses the messages.
        """
        assert RESERVED.isdisjoint(options)
        from transformers.utils.chat_template_utils import render_jinja_template

        chat = [{key: value for key, value in message.items() if value is not None} for message in messages]
        try:
            rendered, _ = render_jinja_template(
                conversations=[chat],
                chat_template=self.source,
                add_generation_prompt=add_generation_prompt,
                **{**self.asked, **options, **self.specials},
            )
        except Exception as error:  # a template is a program of its own: whatever it raises is its refusal
            raise InvalidRequest(f"the chat template refuses these messages: {error}", field="messages") from error
        return str(rendered[0])
