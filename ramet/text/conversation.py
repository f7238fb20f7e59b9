"""Conversation makes a model's prompt of messages, or of a text by itself."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

from ramet.errors import InvalidRequest, RequestTooLong
from ramet.quoting import cut
from ramet.text.chat import Frame, frame
from ramet.text.template import RESERVED, ChatTemplate, Message
from ramet.text.tokenizer import Tokenizer

_NONCHARACTERS = "".join(map(chr, range(0xFDD0, 0xFDF0)))  # Unicode keeps these free for uses like this one


class Conversation:
    """One model's tokenizer, and its chat template where it has one. The model's card sets the template's `variables`.
    Safe to share between threads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str | None,
        variables: Mapping[str, Any] = MappingProxyType({}),
        most: int = sys.maxsize,
    ) -> None:
        """`most` is the most ids of a prompt. A prompt with many more is refused before all of it is encoded."""
        self.tokenizer = tokenizer
        self._most = most
        self.template = None if template is None else ChatTemplate(template, tokenizer.specials, variables)

    def prompt(self, text: str) -> list[int]:
        """Ids of a text without a template, BOS first where the tokenizer's metadata says so. Control tokens that the
        text spells stay text. Raises RequestTooLong for a text that is far longer than a prompt may be."""
        self.tokenizer.check_length(text, self._most, "prompt")
        ids = self._plain.prompt(self.tokenizer, text)
        if len(ids) > self._most:  # now, for several may follow
            raise RequestTooLong(f"has {len(ids)} tokens; the model takes {self._most} (max_model_len)", field="prompt")
        return ids

    def chat(self, messages: Sequence[Message], options: Mapping[str, Any] = MappingProxyType({})) -> list[int]:
        """Ids of a conversation up to where the reply begins: those that transformers' `apply_chat_template` gives, but
        control tokens that a message, or one of the template's `options`, spells stay text.

        Raises InvalidRequest with the template's own message where it refuses the messages, and where there is no
        template; RequestTooLong for messages that are far longer than a prompt may be.
        """
        if self.template is None:
            raise InvalidRequest("this model has no chat template: send its prompt as text", field="messages")
        self._check_options(self.template, options)
        written = self.template.render(messages, options=options)
        self.tokenizer.check_length(written, self._most, "messages")
        ids = self.tokenizer.encode_rendered(written)
        mark, (messages, options) = _broken(self.tokenizer, (messages, options))
        if not mark:
            return ids  # nothing was spelled
        harmless = self.template.render(messages, options=options)
        control, forbidden = self.tokenizer.control, self.tokenizer.forbidden
        own = (control[harmless[a:b]] for a, b in self.tokenizer.spelled(harmless))
        if [i for i in own if i in forbidden] == [i for i in ids if i in forbidden]:
            return ids  # the template left it out
        return self._apart(harmless, mark)

    @cached_property
    def _plain(self) -> Frame:
        return frame(self.tokenizer, None)

    def _check_options(self, template: ChatTemplate, options: Mapping[str, Any]) -> None:
        known = template.options
        for name, value in options.items():
            own = name not in RESERVED and name not in self.tokenizer.specials
            if own and (known is None or name in known or (name == "enable_thinking" and not value)):
                continue
            listed = ", ".join(sorted(known or ())) or "none that can be listed"
            raise InvalidRequest(
                f"the chat template takes no such variable; it takes: {listed}",
                field=f"chat_template_kwargs.{cut(name)}",
            )

    def _apart(self, written: str, mark: str) -> list[int]:
        """Ids of a prompt that a template wrote with broken texts: its own control tokens, and the plain text between
        them without the white space that they swallow."""
        spans = [(0, 0), *self.tokenizer.spelled(written), (len(written), len(written))]
        texts = [written[a:b].replace(mark, "") for (_, a), (b, _) in itertools.pairwise(spans)]
        for n, (a, b) in enumerate(spans[1:-1]):
            before, behind = self.tokenizer.swallows.get(written[a:b], (False, False))
            texts[n] = texts[n].rstrip() if before else texts[n]
            texts[n + 1] = texts[n + 1].lstrip() if behind else texts[n + 1]
        found = self.tokenizer.encode_each(texts)
        controls = [[self.tokenizer.control[written[a:b]]] for a, b in spans[1:-1]]
        return [i for ids, control in zip(found, [*controls, []], strict=True) for i in (*ids, *control)]


def _broken(tokenizer: Tokenizer, value: Any) -> tuple[str, Any]:
    """A mark, and the value with that mark behind the first character of each control token that its texts spell. None
    of the texts holds the mark, which is empty where none spells a control token. Raises InvalidRequest."""
    texts = [*_texts(value)]
    if not any(True for text in texts for _ in tokenizer.spelled(text)):
        return "", value
    mark = next((c for c in _NONCHARACTERS if not any(c in text for text in texts)), None)
    if mark is None:
        raise InvalidRequest("the messages hold all 32 noncharacters from U+FDD0 on, which no text needs")
    return mark, _each_text(value, lambda text: mark.join(tokenizer.spelled.broken(text)))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for inner in value:
            yield from _texts(inner)
        for inner in value.values() if isinstance(value, Mapping) else ():
            yield from _texts(inner)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The same JSON value with each of its texts, its keys too, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_each_text(key, change): _each_text(inner, change) for key, inner in value.items()}
    return [_each_text(inner, change) for inner in value] if isinstance(value, (list, tuple)) else value
