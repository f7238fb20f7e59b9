"""ReplyTable: what all running replies have, however they are written: their ends, and how their tokens are drawn."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ramet.denoise.draws import Draws
from ramet.denoise.running import GOES_ON, LENGTH, STOP, Beginning
from ramet.tree import BoolArray, FloatArray, IntArray, Sampling

_NO_ID = -1

_T = TypeVar("_T", bound=np.generic)


class ReplyTable:
    """What the reply at each place requests and has got, in arrays that grow by doubling. Hands out places: the one
    that became free last first.

    emitted, end, n_prompt [P] are positions, as in Beginning; keys [P, 2] are those of the noise; stop_ids [P, E] end
    the reply, with -1 behind the last of them.
    """

    def __init__(self) -> None:
        self.emitted, self.end, self.n_prompt = np.zeros((3, 0), np.int32)
        self.temperatures = np.zeros(0, np.float32)
        self.keys = np.zeros((0, 2), np.uint64)
        self.top_p, self.top_k = np.zeros(0, np.float32), np.zeros(0, np.int32)
        self.stop_ids = np.full((0, 1), _NO_ID, np.int32)  # [P, E]
        self._draws: list[Draws | None] = []
        self._ends: list[frozenset[int]] = []
        self._free: list[int] = []

    def __len__(self) -> int:
        """How many places the arrays have."""
        return len(self.emitted)

    def add(self, beginning: Beginning) -> int:
        if not self._free:
            self._grow()
        place = self._free.pop()
        self.emitted[place], self.end[place] = beginning.emitted, beginning.end
        self.n_prompt[place] = beginning.n_prompt
        draws = self._draws[place] = beginning.draws
        self.temperatures[place], self.top_p[place], self.top_k[place] = draws.temperature, draws.top_p, draws.top_k
        self.keys[place] = draws.noise.words
        self._ends[place] = beginning.stop_ids
        self._widen(len(beginning.stop_ids))
        self.stop_ids[place] = _NO_ID
        self.stop_ids[place, : len(beginning.stop_ids)] = sorted(beginning.stop_ids)
        return place

    def drop(self, place: int) -> None:
        assert self._draws[place] is not None, "nothing is there"
        self._draws[place] = None
        self._free.append(place)

    def draws(self, place: int) -> Draws:
        found = self._draws[place]
        assert found is not None, "nothing is there"
        return found

    def ends(self, place: int) -> frozenset[int]:
        return self._ends[place]

    def is_end(self, places: IntArray, tokens: IntArray) -> BoolArray:
        """[N] whether a token is one that ends the reply of its place."""
        found: BoolArray = (self.stop_ids[places] == tokens[:, None]).any(1)
        return found

    def finish(self, places: IntArray, last: IntArray) -> np.ndarray[tuple[int], np.dtype[np.int8]]:
        """[N] how each reply has ended: its last emitted token, `last` [N], is a stop id, or its length is reached."""
        done = self.emitted[places] == self.end[places]
        return np.where(done, np.where(self.is_end(places, last), STOP, LENGTH), GOES_ON).astype(np.int8)

    def sampling(self, places: IntArray, uniforms: FloatArray) -> Sampling:
        """How rows of these places [M] draw, with the numbers `uniforms` [M]."""
        return Sampling(self.temperatures[places], uniforms, self.top_p[places], self.top_k[places])

    def _grow(self) -> None:
        n = len(self)
        more = max(n, 8)
        for name in ("emitted", "end", "n_prompt", "temperatures", "keys", "top_p", "top_k", "stop_ids"):
            setattr(self, name, grown(getattr(self, name), more))
        self._draws += [None] * more
        self._ends += [frozenset()] * more
        self._free += range(n + more - 1, n - 1, -1)

    def _widen(self, n_ids: int) -> None:
        n, width = self.stop_ids.shape
        if n_ids > width:
            self.stop_ids = np.concatenate((self.stop_ids, np.full((n, n_ids - width), _NO_ID, np.int32)), 1)


def grown(array: npt.NDArray[_T], more: int) -> npt.NDArray[_T]:
    """The array with `more` places of zeros at its end."""
    return np.concatenate((array, np.zeros((more, *array.shape[1:]), array.dtype)))
