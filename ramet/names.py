"""Names of fields: which one was meant, and what is refused by its name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from ramet import media

_ALIKE = 0.8  # of letters, from which a name is taken for a misspelling of another
_LONGEST = 40  # of names that are compared; a misspelling is hardly longer than what was meant


@dataclass(frozen=True, slots=True)
class Refused:
    """A field whose effect this server does not have. Its `neutral` values have no effect and pass; `why` says what it
    would need, or what to do instead."""

    why: str
    neutral: tuple[Any, ...] = ()

    def allows(self, value: Any) -> bool:
        """Whether a value has no effect. True and 1 are not equal in JSON."""
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.neutral)


def plain(name: str) -> str:
    """A name without case, hyphens, underscores and the `x_` of extensions, which people write in different ways."""
    return name.casefold().replace("-", "_").removeprefix("x_").replace("_", "")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that differs only in case, `x_`, hyphens and underscores, or else the one spelled most alike."""
    if len(name) > _LONGEST:
        return None
    plains = _plains(tuple(known))
    own = plain(name)
    found = [own] if own in plains else difflib.get_close_matches(own, plains, n=1, cutoff=_ALIKE)
    return plains[found[0]] if found else None


@cache
def _plains(known: tuple[str, ...]) -> dict[str, str]:
    return {plain(each): each for each in known}


def is_media(name: str) -> bool:
    """Whether a field of this name holds media, however its case and hyphens are."""
    return len(name) <= _LONGEST and plain(name) in _MEDIA


_MEDIA = frozenset(map(plain, media.FIELDS))

# Fields that vLLM, SGLang or Flide have on this route, or their examples and OpenAI's decisions. An answer without
# their effect would not be the one that the caller wants.
ELSEWHERE: Mapping[str, Refused] = {
    "instructions": Refused(
        "there is no system message: write what holds for all questions into the state, or into each question's own "
        "instructions",
        ("",),
    ),
    "chat_template_kwargs": Refused(
        "the template's variables are the model's own, and thinking is off: leave it away",
        ({}, {"enable_thinking": False}),
    ),
    "priority": Refused("requests run in the order in which they come: leave it at 0", (0,)),
    "input": Refused("what the questions are about is `state` here", ("", [], {})),
    "prompt_format_version": Refused("a question is put in one way, and there are no versions of it: leave it away"),
    "return_prompt_token_ids": Refused("the ids of prompts are not returned: leave it away", (False,)),
    "auto_max": Refused("draws of noise are a number: give x_samples"),
    "auto_threshold": Refused("draws of noise are a number: give x_samples"),
    "think": Refused("nothing is written before an answer is read: leave it away", (0, False)),
    "ask": Refused("all questions are answered: send those alone that you ask", ([],)),
    "chunk_rows": Refused("a joint read takes the fewest canvases that hold its questions: leave it away"),
    "chunk_prompt": Refused("all canvases of a joint read follow one prompt: leave it away", ("shared",)),
    "sequential": Refused("no answer depends on another: ask again with what was answered in the state", (False,)),
    "debug": Refused("there is no debugging answer: x_timing and usage are always there; leave it away", ("", False)),
}
