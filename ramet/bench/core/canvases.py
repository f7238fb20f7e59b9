"""Reads of random ids: a prompt, canvases behind it, and the slots that are read."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ramet.tree import WHOLE, IntArray, Read, Segment, Tree

N_COLUMNS = 4  # labels of a slot
_GRAIN = 16  # a canvas of a decision has a multiple of so many rows
_ENDING = 2  # of which so many end it


@dataclass(frozen=True, slots=True)
class CanvasForm:
    """A prompt of `n_prompt` tokens and canvases of `width` rows, each with slots in the rows `slots`."""

    n_prompt: int
    width: int
    slots: tuple[int, ...]
    n_canvases: int = 1

    @classmethod
    def of(cls, n_prompt: int, width: int) -> CanvasForm:
        """A read as the paper's: one canvas, a slot every eight rows."""
        return cls(n_prompt, width, tuple(range(0, width, 8)))

    @classmethod
    def isolated(cls, n_prompt: int, n_questions: int) -> CanvasForm:
        """A canvas a question, as wide as `decide` has it: the slot, what ends it, and padding."""
        return cls(n_prompt, _GRAIN, (0,), n_questions)

    @classmethod
    def joint(cls, n_prompt: int, n_questions: int) -> CanvasForm:
        """One canvas for all questions: a line of each has its number, a colon, the slot and a line break."""
        slots, at = [], 0
        for number in range(1, n_questions + 1):
            at += len(str(number)) + 1
            slots.append(at)
            at += 2
        return cls(n_prompt, -(-(at + _ENDING) // _GRAIN) * _GRAIN, tuple(slots))

    @property
    def n_rows(self) -> int:
        return self.n_prompt + self.n_canvases * self.width

    def __str__(self) -> str:
        return f"{self.n_prompt}+" + (f"{self.n_canvases}x" if self.n_canvases > 1 else "") + str(self.width)


@dataclass(frozen=True, slots=True, eq=False)
class CanvasRead:
    """Ids of one read: prompt [P], canvases [n, W], and the columns [N_COLUMNS] that are read in every slot."""

    form: CanvasForm
    prompt: IntArray
    canvases: IntArray
    columns: IntArray
    tree: Tree = field(init=False)

    def __post_init__(self) -> None:
        reads = [Read(self.columns, row) for row in self.form.slots]
        canvases = [Segment(canvas, 0, WHOLE, reads) for canvas in self.canvases]
        object.__setattr__(self, "tree", Tree.of([Segment(self.prompt), *canvases]))

    @classmethod
    def draw(cls, form: CanvasForm, rng: np.random.Generator, n_vocab: int) -> CanvasRead:
        """Other ids each time, so that nothing is remembered from one read to the next."""

        def ids(*sizes: int) -> IntArray:
            return rng.integers(0, n_vocab, sizes, np.int32)

        return cls(form, ids(form.n_prompt), ids(form.n_canvases, form.width), ids(N_COLUMNS))
