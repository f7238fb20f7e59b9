"""Ids of long texts of which most has come before: a state that grows is encoded where it is new."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b

import numpy as np

from ramet.decide.recent import Recent
from ramet.text.tokenizer import Tokenizer
from ramet.tree import IntArray

LEAST = 1024  # characters of a passage, about 0.4 ms of encoding
_CUT = re.compile("[A-Za-z](?= [A-Za-z])")


class Passages:
    """Encodes texts passage by passage and keeps the ids of each, as long as `limit` bytes last, about.

    A passage ends between two words, LEAST characters or a few more behind where it began, so that texts which begin
    alike are cut alike. What is kept for one salt is not found with another: how long an answer took must not tell one
    tenant what another has sent.
    """

    def __init__(self, tokenizer: Tokenizer, limit: int) -> None:
        self._tokenizer = tokenizer
        self._recent: Recent[tuple[bytes, str], IntArray] = Recent(limit)

    def encode(self, text: str, salt: str) -> IntArray:
        """As the tokenizer's `encode`, passage by passage where text spells control tokens. Raises InvalidRequest."""
        owner = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        *passages, rest = _cut(text) if self._tokenizer.splits_between_words else (text,)
        found = [self._recent.get((owner, passage)) for passage in passages]
        missing = [passage for passage, ids in zip(passages, found, strict=True) if ids is None]
        *encoded, last = (np.array(ids, np.int32) for ids in self._tokenizer.encode_each([*missing, rest]))
        for passage, ids in zip(missing, encoded, strict=True):
            self._recent.put((owner, passage), ids, 4 * len(ids) + 4 * len(passage))
        fresh = iter(encoded)
        return np.concatenate([*(next(fresh) if ids is None else ids for ids in found), last])


def _cut(text: str) -> Iterator[str]:
    """The passages of a text, and what is left."""
    begin = 0
    while match := _CUT.search(text, begin + LEAST):
        yield text[begin : match.end()]
        begin = match.end()
    yield text[begin:]
