"""CanvasReply: a reply, canvas by canvas."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.check import check, n_steps, width
from ramet.denoise.draft import Draft
from ramet.denoise.noise import Noise
from ramet.denoise.readout import Readout
from ramet.generation import Finish, GenerationRequest, Piece
from ramet.tree import WHOLE, IntArray, Limits, Reads, Segment, Tree


class CanvasReply:
    """The steps of a request's reply: each denoises the canvas below the prompt and all finished canvases.

    A step's tree has two segments, the trunk and the canvas. The first step of a canvas is also the pass that encodes
    what lies before it: the prompt, or the canvas before. `on_piece` gets each finished canvas at once. Raises
    InvalidRequest before anything is run.
    """

    def __init__(self, request: GenerationRequest, settings: CanvasConfig, on_piece: Callable[[Piece], None]) -> None:
        check(request, settings)
        self._request = request
        self._settings = settings
        self._on_piece = on_piece
        self._width = width(request, settings)
        self._n_steps = n_steps(request, settings)
        self._trunk = np.array(request.prompt, np.int32)
        self._noise = Noise.of(request.seed, self._trunk)
        self._n_left = _n_tokens(request, settings)  # positions that may still be emitted
        n_canvases = -(-self._n_left // self._width)
        longest = len(self._trunk) + n_canvases * self._width
        self.limits = Limits(n_canvases * self._n_steps, longest, longest)
        self._numbers = count()
        self._readout = Readout.of(request)
        seed = request.seed_canvas
        self._draft = self._begin(None if seed is None else np.array(seed, np.int32), request.pinned)

    def tree(self) -> Tree:
        """The trunk, and below it the canvas with its step."""
        n_rows = self._n_rows()
        step = self._draft.step(n_rows=n_rows, n_best=self._readout.n_likeliest if self._draft.may_end else 1)
        reads = self._readout.reads(n_rows) if self._draft.may_end else ()
        return Tree.of([Segment(self._trunk), Segment(self._draft.tokens, 0, WHOLE, reads, step)])

    def take(self, reads: Reads) -> bool:
        """Take the results of a step. Returns whether the reply has ended."""
        (stepped,) = reads.stepped
        if not self._draft.take(stepped):
            return False
        best = stepped.best[:, 0]
        n, finish = self._end_of(best)
        self._on_piece(Piece(self._readout.positions(reads, stepped, n), self._draft.n_taken, finish))
        if finish is not None:
            return True
        self._n_left -= n
        self._trunk = np.concatenate([self._trunk, best])
        self._draft = self._begin()
        return False

    def _begin(self, tokens: IntArray | None = None, pinned: tuple[int, ...] = ()) -> Draft:
        number = next(self._numbers)
        return Draft(
            self._settings, self._noise, number,
            width=self._width, n_steps=self._n_steps, tokens=tokens, pinned=pinned,
            columns=self._readout.columns if self._request.constrained else None,
            likeliest=self._request.temperature == 0,
        )  # fmt: skip

    def _n_rows(self) -> int:
        """Rows to read in this step: all, or, where a canvas has one step, those that the reply may still have."""
        return min(self._n_left, self._width) if self._n_steps == 1 else self._width

    def _end_of(self, best: IntArray) -> tuple[int, Finish | None]:
        """How many positions of a finished canvas are emitted: up to the first that ends the reply, itself included."""
        n = min(self._n_left, len(best))
        if not (self._request.ignore_eos or self._request.read_only):
            ends = np.flatnonzero(np.isin(best[:n], list(self._settings.stop_ids)))
            if len(ends):
                return int(ends[0]) + 1, "stop"
        return n, "length" if n == self._n_left else None


def _n_tokens(request: GenerationRequest, settings: CanvasConfig) -> int:
    """The most tokens of the reply."""
    if not request.read_only:
        return settings.max_new_tokens if request.max_tokens is None else request.max_tokens
    w = width(request, settings)
    return w if request.max_tokens is None else min(request.max_tokens, w)
