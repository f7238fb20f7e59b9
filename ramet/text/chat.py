"""Frame: what a chat template writes around the content of one user turn, found once at load."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ramet.errors import CheckpointError, InvalidRequest
from ramet.text.template import ChatTemplate
from ramet.text.tokenizer import Tokenizer

_MARK = "Qx7markedXq"  # stands for the content; no template writes it
_REPLY = "Qx8answerXq"
_CONTENTS = ("hi", "two  spaces, then one: ", "1 2\n\n", "é 你好 🦩", " Ends in a stop.", "a\tb\n")


@dataclass(frozen=True)
class Frame:
    """The whole prompt is ``head + encode(opening + content + closing) + tail``, in token ids.

    head: up to and including the last control token before the content, with BOS where the template (or, without one,
    the tokenizer's metadata) writes it. opening, closing: the text between these tokens and the content. tail: from the
    first control token behind the content to where the reply starts, with an empty think block where the template
    writes one. end: the id that ends a reply. trims: whether the template strips the content; whoever builds the prompt
    must do so too. A template that writes the current date writes that of the load.
    """

    head: tuple[int, ...]
    opening: str
    closing: str
    tail: tuple[int, ...]
    end: int
    trims: bool

    def prompt(self, tokenizer: Tokenizer, content: str) -> list[int]:
        """Ids of the whole prompt for a content."""
        text = content.strip() if self.trims else content
        return [*self.head, *tokenizer.encode(self.opening + text + self.closing), *self.tail]


def frame(tokenizer: Tokenizer, template: str | None, variables: Mapping[str, Any] = MappingProxyType({})) -> Frame:
    """The frame of a template with these variables; without a template BOS and nothing else.

    Compares every frame with the whole prompt, rendered and encoded in one go. Raises CheckpointError when the template
    refuses a single user turn or changes its content, or when its tokens join the content's.
    """
    if template is None:
        return _plain_frame(tokenizer)
    chat = ChatTemplate(template, tokenizer.specials, variables)
    try:
        before, after = _around(chat, _MARK)
        trims = _trims(chat, before, after)
        end = _end(tokenizer, chat)
        wholes = {text: chat.render([_user(text)]) for text in _CONTENTS}
    except InvalidRequest as error:
        raise CheckpointError(f"chat template: {error.message}") from error
    cut = max((end for _, end in tokenizer.spelled(before)), default=0)
    stop = min((start for start, _ in tokenizer.spelled(after)), default=len(after))
    head, tail = tokenizer.encode_rendered(before[:cut]), tokenizer.encode_rendered(after[stop:])
    expected = {text: tokenizer.encode_rendered(whole) for text, whole in wholes.items()}
    for opening, closing in _joins(before[cut:], after[:stop]):
        found = Frame(tuple(head), opening, closing, tuple(tail), end, trims)
        if _holds(found, tokenizer, expected):
            return found
    raise CheckpointError("chat template: the content's tokens depend on the text around it, so no frame holds for all")


def _plain_frame(tokenizer: Tokenizer) -> Frame:
    if not tokenizer.stop_ids:
        raise CheckpointError("the tokenizer names no end token: set eos_token in tokenizer_config.json")
    head = () if tokenizer.bos is None else (tokenizer.bos,)
    expected = {text: [*head, *tokenizer.encode_rendered(text)] for text in _CONTENTS}
    for opening, _ in _joins("", ""):
        found = Frame(head, opening, "", (), tokenizer.stop_ids[0], trims=False)
        if _holds(found, tokenizer, expected):
            return found
    raise CheckpointError("the tokenizer changes the start of a text in a way that no frame can write")


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _around(chat: ChatTemplate, content: str) -> tuple[str, str]:
    """The texts that the template writes before and behind the marked content."""
    pieces = chat.render([_user(content)]).split(_MARK)
    if len(pieces) != 2:
        raise CheckpointError(f"chat template: it writes a user's content {len(pieces) - 1} times, not once")
    return pieces[0], pieces[1]


def _trims(chat: ChatTemplate, before: str, after: str) -> bool:
    found = _around(chat, f" \t{_MARK}\n ")
    if found == (before + " \t", "\n " + after):
        return False
    if found == (before, after):
        return True
    raise CheckpointError("chat template: it changes a user's content otherwise than by stripping both its ends")


def _end(tokenizer: Tokenizer, chat: ChatTemplate) -> int:
    """The first control token behind a finished reply; the tokenizer's own end where the template writes none."""
    messages = [_user(_MARK), {"role": "assistant", "content": _REPLY}]
    _, reply, rest = chat.render(messages, add_generation_prompt=False).rpartition(_REPLY)
    found = next(tokenizer.spelled(rest), None)
    if reply and found:
        return tokenizer.control[rest[slice(*found)]]
    if not tokenizer.stop_ids:
        raise CheckpointError("chat template: it ends no reply, and the tokenizer names no end token; set eos_token")
    return tokenizer.stop_ids[0]


def _holds(found: Frame, tokenizer: Tokenizer, expected: Mapping[str, list[int]]) -> bool:
    """Whether the frame gives the expected ids of each content.

    Some vocabularies put a space before each text, but none before a text that begins with one. A frame whose opening
    is that space still puts it there, so that the content keeps its own; such contents are not compared.
    """
    texts = [text for text in expected if found.opening != " " or not text.startswith(" ")]
    return all(found.prompt(tokenizer, text) == expected[text] for text in texts)


def _joins(opening: str, closing: str) -> Iterator[tuple[str, str]]:
    """The texts beside the content that a tokenizer may encode for those of the template: as written; with the space
    that some vocabularies put before each piece of text; without the white space that some control tokens swallow."""
    openings = dict.fromkeys((opening, " " + opening, opening.lstrip()))
    return itertools.product(openings, dict.fromkeys((closing, closing.rstrip())))
