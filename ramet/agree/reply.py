"""A reply as it is compared: its text, and where the run has them the log-probabilities of its positions."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

LogProbs = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class WrittenReply:
    """`tokens` [n] as they are spelled, empty where the run has no log-probabilities; `logprobs` [n]: of each position
    those that it reports, in nats, by token, its own among them."""

    text: str
    finish: str | None
    tokens: tuple[str, ...] = ()
    logprobs: tuple[LogProbs, ...] = ()

    @classmethod
    def parse(cls, row: Mapping[str, Any]) -> WrittenReply:
        """From a row, in which an empty text may be missing. Raises ValueError that says what is wrong."""
        text, given = row.get("text"), row.get("logprobs")
        if not isinstance(text or "", str):
            raise ValueError("its `text` is no text")
        finish = row.get("finish_reason")
        if given is None:
            return cls(text or "", finish)
        positions = list(_positions(given))
        return cls(
            text or "", finish, tuple(sys.intern(token) for token, _ in positions), tuple(each for _, each in positions)
        )


def _positions(given: Any) -> Iterator[tuple[str, LogProbs]]:
    """Each position's token, and what it reports: of chats and of completions."""
    try:
        if "content" in given:
            for each in given["content"] or ():
                top = {str(other["token"]): other["logprob"] for other in each.get("top_logprobs") or ()}
                yield str(each["token"]), _checked({**top, str(each["token"]): each["logprob"]})
            return
        tops = given.get("top_logprobs") or [None] * len(given["tokens"])
        for token, logprob, top in zip(given["tokens"], given["token_logprobs"], tops, strict=True):
            yield str(token), _checked({**(top or {}), str(token): logprob})
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"its `logprobs` are those of no chat and of no completion ({error})") from error


def _checked(logprobs: dict[str, Any]) -> LogProbs:
    for token, value in logprobs.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value <= 1e-6:
            raise ValueError(f"{token!r} has the log-probability {value!r}")
    return logprobs


@dataclass(frozen=True, slots=True)
class Positions:
    """How far two replies are one, and how far the log-probabilities are apart at the positions with the same tokens
    before them: of each the largest change of one that both report, in `nats` and as a `probability`. `moved` counts
    the positions with another likeliest token."""

    n_common: int  # tokens, or characters, equal from the first on
    n_longest: int
    nats: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()
    moved: int = 0

    @classmethod
    def of(cls, a: WrittenReply, b: WrittenReply) -> Positions:
        if not (a.tokens and b.tokens):
            return cls(_common(a.text, b.text), max(len(a.text), len(b.text)))
        n_common = _common(a.tokens, b.tokens)
        found = list(zip(a.logprobs[: n_common + 1], b.logprobs[: n_common + 1], strict=False))
        changes = [[(p[token], q[token]) for token in p if token in q] for p, q in found]
        return cls(
            n_common, max(len(a.tokens), len(b.tokens)),
            tuple(max((abs(p - q) for p, q in each), default=0.0) for each in changes),
            tuple(max((abs(math.exp(p) - math.exp(q)) for p, q in each), default=0.0) for each in changes),
            sum(max(p, key=p.__getitem__) != max(q, key=q.__getitem__) for p, q in found),
        )  # fmt: skip

    @property
    def share(self) -> float:
        """Of the longer reply, that is equal from the first on."""
        return self.n_common / self.n_longest if self.n_longest else 1.0


def _common(a: Any, b: Any) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
