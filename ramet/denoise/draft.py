"""Draft: a canvas on its way."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.noise import Noise
from ramet.denoise.sampler import accepted, settled, temperature
from ramet.tree import IntArray, Step, Stepped


class Draft:
    """One canvas of a request, its number `number`, which takes `n_steps` steps at most.

    It begins from `tokens` [W], or from noise. Rows in `pinned` hold what they began with: what is drawn for them
    is left, and what is expected of them is not told to the next step. Their entropies count with the others'.
    `columns`: the ids that may be drawn, ascending; None: all. `likeliest`: a row that is sure takes its likeliest id
    instead of the one that was drawn; how sure it is goes by the schedule's temperature all the same.
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
        self._settings, self._noise, self._number, self._n_steps = settings, noise, number, n_steps
        self._pinned = np.unique(np.array(pinned, np.int32))
        self._columns, self._likeliest = columns, likeliest
        self._before: deque[IntArray] = deque(maxlen=settings.stability_threshold)
        self._soft: object | None = None

    @property
    def is_last(self) -> bool:
        """Whether no step may follow the one that is due."""
        return self.n_taken + 1 == self._n_steps

    @property
    def may_end(self) -> bool:
        """Whether the step that is due may finish the canvas: its likeliest ids are then what it comes to."""
        return self.is_last or self.n_taken >= self._settings.stability_threshold

    def step(self, *, n_rows: int | None = None, n_best: int = 1) -> Step:
        """The step that is due, on `tokens`. Where it is the only one, rows behind the first n_rows may be left out."""
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
        """What the step returned; whether the canvas is finished."""
        best, was_last = stepped.best[:, 0], self.is_last
        self.n_taken += 1
        if was_last or settled(best, self._before, stepped.entropy, self._settings):
            self._soft = None
            return True
        self._before.append(best)
        self._soft = stepped.soft
        self._renoise(stepped)
        return False

    def _renoise(self, stepped: Stepped) -> None:
        """Rows that are sure take what they drew, the others new noise: nothing is kept of earlier steps."""
        noise = self._noise.ids(self._number, self.n_taken, len(self.tokens), self._settings.vocab_size)
        drawn = stepped.best[:, 0] if self._likeliest else stepped.tokens
        after = np.where(accepted(stepped.entropy, self._settings.entropy_bound), drawn, noise)
        after[self._pinned] = self.tokens[self._pinned]
        self.tokens = after.astype(np.int32, copy=False)
