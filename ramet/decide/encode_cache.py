"""EncodeCache: keeps the ids of long texts, so that a state that grows is encoded only where it is new."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from ramet.decide.bounded_cache import BoundedCache
from ramet.decide.budget import Budget
from ramet.text.tokenizer import Tokenizer
from ramet.tree import IntArray

LEAST = 1024  # characters of a passage, about 0.4 ms of encoding
TOGETHER = 64  # passages that are encoded in one call
_CUT = re.compile("[A-Za-z](?= [A-Za-z])")


class EncodeCache:
    """Encodes texts passage by passage, and keeps the ids of passages in about `limit` bytes.

    A passage has LEAST characters or a few more and ends between two words, so that texts which begin alike are cut
    alike. One owner does not find what another's texts left.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self._tokenizer = tokenizer
        self._recent: BoundedCache[tuple[bytes, str], IntArray] = BoundedCache(limit)

    def encode(self, text: str, owner: bytes, budget: Budget) -> IntArray:
        """The ids that the tokenizer's `encode` gives, kept for `owner`. Raises what `encode` and `budget.spend`
        raise."""
        passages = [*_cut(text)] if self._tokenizer.splits_between_words else [text]
        found: list[IntArray] = []
        for at in range(0, len(passages), TOGETHER):
            found += self._encoded(passages[at : at + TOGETHER], owner, budget, is_last=at + TOGETHER >= len(passages))
        return np.concatenate(found)

    def _encoded(self, passages: Sequence[str], owner: bytes, budget: Budget, *, is_last: bool) -> list[IntArray]:
        """The ids of each passage. With is_last the last one is the rest of a text, which is not kept."""
        known = [self._recent.get((owner, passage)) for passage in passages]
        if is_last:
            known[-1] = None
        missing = [passage for passage, ids in zip(passages, known, strict=True) if ids is None]
        for passage in missing:
            self._tokenizer.check_length(passage, budget.max_tokens)
        fresh = [np.array(ids, np.int32) for ids in self._tokenizer.encode_each(missing)]
        for passage, ids in zip(missing[: -1 if is_last else None], fresh, strict=False):
            self._recent.put((owner, passage), ids, 4 * len(ids) + 4 * len(passage))
        rest = iter(fresh)
        found = [next(rest) if ids is None else ids for ids in known]
        budget.spend(sum(map(len, found)))
        return found


def _cut(text: str) -> Iterator[str]:
    """The passages of a text, and the rest of it."""
    begin = 0
    while match := _CUT.search(text, begin + LEAST):
        yield text[begin : match.end()]
        begin = match.end()
    yield text[begin:]
