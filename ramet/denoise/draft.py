"""Draft: a canvas that is being denoised."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.noise import Noise
from ramet.denoise.sampler import accepted, settled, temperature
from ramet.tree import IntArray, Step, Stepped


class Draft:
    """Canvas number `number` of a request, which takes `n_steps` steps at most.

    It begins from `tokens` [W], or from noise. Rows in `pinned` keep the ids that they began with: the next step sees
    neither what is drawn for them nor their expected embeddings. Their entropies count with the others'. `columns`: the
    ids that may be drawn, ascending; None: all. `likeliest`: an accepted row takes its likeliest id instead of the
    drawn one; which rows are accepted depends on the schedule's temperature all the same.
    """

    def __init__(
        self,
        settings: CanvasConfig,
        noise: Noise,
        number: int,
        *,
        width: int,
        n_steps: int,
        tokens: IntArray | None = None,
        pinned: Sequence[int] = (),
        columns: IntArray | None = None,
        likeliest: bool = False,
    ) -> None:
        assert tokens is None or len(tokens) == width
        self.tokens = noise.ids(number, 0, width, settings.vocab_size) if tokens is None else tokens  # [W], to be run
        self.n_taken = 0
        self._settings = settings
        self._noise = noise
        self._number = number
        self._n_steps = n_steps
        self._pinned = np.unique(np.array(pinned, np.int32))
        self._columns = columns
        self._likeliest = likeliest
        self._before: deque[IntArray] = deque(maxlen=settings.stability_threshold)
        self._soft: object | None = None

    @property
    def is_last(self) -> bool:
        """Whether no step may follow the one that is due."""
        return self.n_taken + 1 == self._n_steps

    @property
    def may_end(self) -> bool:
        """Whether the step that is due may finish the canvas, which then consists of the step's likeliest ids."""
        return self.is_last or self.n_taken >= self._settings.stability_threshold

    def step(self, *, n_rows: int | None = None, n_best: int = 1) -> Step:
        """The step that is due, on `tokens`. n_rows may leave out the last rows of a canvas' only step."""
        n = len(self.tokens) if n_rows is None else n_rows
        assert n == len(self.tokens) or self._n_steps == 1
        return Step(
            rows=np.arange(n, dtype=np.int32),
            uniforms=self._noise.uniforms(self._number, self.n_taken, n),
            temperature=temperature(self._settings, self.n_taken),
            n_best=n_best,
            soft=self._soft,
            pinned=self._pinned,
            leaves_soft=not self.is_last,
            columns=self._columns,
        )

    def take(self, stepped: Stepped) -> bool:
        """Take the results of the step. Returns whether the canvas is finished."""
        best = stepped.best[:, 0]
        was_last = self.is_last
        self.n_taken += 1
        if was_last or settled(best, self._before, stepped.entropy, self._settings):
            self._soft = None
            return True
        self._before.append(best)
        self._soft = stepped.soft
        self._renoise(stepped)
        return False

    def _renoise(self, stepped: Stepped) -> None:
        """Give the accepted rows their drawn ids, and all others new noise: nothing is kept of earlier steps."""
        noise = self._noise.ids(self._number, self.n_taken, len(self.tokens), self._settings.vocab_size)
        drawn = stepped.best[:, 0] if self._likeliest else stepped.tokens
        after = np.where(accepted(stepped.entropy, self._settings.entropy_bound), drawn, noise)
        after[self._pinned] = self.tokens[self._pinned]
        self.tokens = after.astype(np.int32, copy=False)
