"""ChatTemplate: a checkpoint's Jinja template, rendered as `transformers` renders it, within limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from jinja2 import Template
from jinja2.meta import find_undeclared_variables

from ramet.errors import InvalidRequest
from ramet.quoting import cut
from ramet.text.limits import LimitReached, RenderLimits
from ramet.text.sandbox import LIMITS, environment

Message = Mapping[str, Any]

RESERVED = frozenset({  # what the renderer takes under these names is no variable of the caller's
    "conversations", "messages", "tools", "documents", "chat_template", "return_assistant_tokens_mask",
    "continue_final_message", "add_generation_prompt", "raise_exception", "strftime_now",
})  # fmt: skip
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one thing; templates read the first two
_SCALARS: tuple[tuple[type, Any], ...] = ((str, str.__str__), (int, int.__int__), (float, float.__float__))
_MAX_SAID = 200  # letters of what a template says


class ChatTemplate:
    """A Jinja template with the text `source`. `specials` are the texts that it may name, such as ``bos_token``.
    `variables` are the values that the model's card gives its variables, for those that a caller does not set."""

    def __init__(
        self, source: str, specials: Mapping[str, str], variables: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        self.source = source
        self.specials = dict(specials)
        self.variables = dict(variables)

    @cached_property
    def options(self) -> frozenset[str] | None:
        """The names that the template reads and a caller may set; None where the template's text cannot be parsed."""
        jinja = environment()
        try:
            names = find_undeclared_variables(jinja.parse(self.source))
        except Exception:  # as in `render`
            return None
        return frozenset(names - RESERVED - set(jinja.globals) - set(self.specials))

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """The prompt of a conversation. Keys that are None are left out.

        `options` are variables of the template, none of them RESERVED. Raises InvalidRequest with the template's own
        message when it refuses the messages, and with the limit that it meets.
        """
        assert RESERVED.isdisjoint(options)
        try:
            chat = [_message(message) for message in messages]
            given = _plain({**self.variables, **options})
            return self._template.render(
                {
                    "tools": None,
                    "documents": None,
                    **given,
                    **self.specials,
                    "messages": chat,
                    "add_generation_prompt": add_generation_prompt,
                    LIMITS: RenderLimits(chat, given),
                }
            )
        except LimitReached as error:
            raise InvalidRequest(f"the chat template {error}", field="messages") from error
        except RecursionError as error:
            raise InvalidRequest("the chat template calls itself, or nests, too deeply", field="messages") from error
        except Exception as error:  # a template is a program of its own: whatever it raises is its refusal
            said = cut(str(error) or type(error).__name__, _MAX_SAID)
            raise InvalidRequest(f"the chat template refuses these messages: {said}", field="messages") from error

    @cached_property
    def _template(self) -> Template:
        return environment().from_string(self.source)


def _message(message: Message) -> dict[str, Any]:
    """A message as templates read it: with its reasoning under each name that a template may use."""
    plain = {key: _plain(value) for key, value in message.items() if value is not None}
    thought = next((plain[name] for name in _REASONING if name in plain), None)
    return plain if thought is None else {"thinking": thought, **plain, "reasoning_content": thought}


def _plain(value: Any) -> Any:
    """The value in plain types of JSON, since templates call the methods of values."""
    if value is None or type(value) in (str, bool, int, float):
        return value
    for kind, plain in _SCALARS:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(map(_plain, value))
    return f"<{type(value).__name__}>"
