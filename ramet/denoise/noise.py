"""Noise: random numbers that depend on their use alone, so that a request draws the same ones in any company."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from ramet.denoise.philox import Words, words
from ramet.errors import InvalidRequest
from ramet.quoting import shown
from ramet.tree import FloatArray, IntArray
from ramet.values import MAX_SEED, MIN_SEED

_IDS, _UNIFORMS = range(2)


@dataclass(frozen=True, slots=True)
class Noise:
    """Random numbers that depend on nothing but a request's key of 128 bits, the number of its canvas, that of the
    canvas' step, and the row: these are the key and the counter of Philox (Salmon et al. 2011)."""

    key: int

    @classmethod
    def of(cls, seed: int | None, prompt: IntArray) -> Noise:
        """The noise of a seed from MIN_SEED to MAX_SEED; None: of the prompt's ids [P]. Raises InvalidRequest."""
        if seed is None:
            return Opening(prompt).noise(np.zeros(0, np.int32))
        if not isinstance(seed, int) or isinstance(seed, bool) or not MIN_SEED <= seed <= MAX_SEED:
            raise InvalidRequest(f"{shown(seed)} is no whole number from {MIN_SEED} to {MAX_SEED}", field="seed")
        return cls(_key(sha256(b"seed" + seed.to_bytes(8, "little", signed=True)).digest()))

    @property
    def words(self) -> tuple[int, int]:
        """The key in two words of 64 bits, the low one first."""
        high, low = divmod(self.key, 1 << 64)
        return low, high

    def ids(self, canvas: int, step: int, n: int, vocab_size: int) -> IntArray:
        """[n] ids for the rows of a canvas before a step; all ids are equally likely."""
        high = self._words(_IDS, canvas, step, n) >> np.uint64(32)
        return (high * np.uint64(vocab_size) >> np.uint64(32)).astype(np.int32)

    def uniforms(self, canvas: int, step: int, n: int) -> FloatArray:
        """[n] numbers in [0, 1), by which the rows of a canvas draw in a step."""
        return _uniform(self._words(_UNIFORMS, canvas, step, n))

    def _words(self, use: int, canvas: int, step: int, n: int) -> Words:
        """[n] words of 64 bits; the first word of Philox' counter counts the rows, four at a time."""
        return np.random.Philox(key=self.key, counter=np.array([0, use, step, canvas], np.uint64)).random_raw(n)


class Opening:
    """Ids that several prompts begin with, hashed once for all of them. Another seed gives all of them other noise."""

    def __init__(self, ids: IntArray, seed: int | None = None) -> None:
        seeded = b"" if seed is None else b"seed" + seed.to_bytes(8, "little", signed=True)
        self._hash = sha256(seeded + b"prompt" + ids.astype("<i4").tobytes())

    def noise(self, rest: IntArray) -> Noise:
        """The noise of the prompt that goes on with the ids `rest`."""
        whole = self._hash.copy()
        whole.update(rest.astype("<i4").tobytes())
        return Noise(_key(whole.digest()))


def uniforms(keys: Words, canvases: IntArray, steps: IntArray, n: int) -> FloatArray:
    """[R, n] `Noise.uniforms` of R requests at once; keys [R, 2] are the `words` of their noise."""
    counters = np.zeros((len(keys), 4), np.uint64)
    counters[:, 1], counters[:, 2], counters[:, 3] = _UNIFORMS, steps, canvases
    return _uniform(words(keys, counters, n))


def _uniform(drawn: Words) -> FloatArray:
    found: FloatArray = (drawn >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
    return found


def _key(digest: bytes) -> int:
    return int.from_bytes(digest[:16], "little")
