"""UnmaskPolicy: which of the masked rows of a chunk keep the tokens that were drawn for them.

The strategies and their names are those of SDAR's published generate loop. They see two numbers of a row, in float32:
`confidence`, the probability of the drawn id, from 0 to 1, and `entropy`, in nats. Both are of the distribution at
temperature 1 over the whole vocabulary but for the mask's id, which is never drawn, even where the id was drawn from a
tempered or cut distribution: a temperature near 0 or a cut to one id would make every row certain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ramet.errors import InvalidRequest
from ramet.quoting import shown
from ramet.tree import BoolArray, FloatArray

Strategy = Literal["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"]
# The strategies that use each of these fields.
USED_BY: Mapping[str, tuple[Strategy, ...]] = {
    "confidence_threshold": ("low_confidence_dynamic",),
    "denoising_steps": ("low_confidence_dynamic", "low_confidence_static", "sequential"),
    "entropy_bound": ("entropy_bounded",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnmaskPolicy:
    """A strategy for blocks of `block` rows, each to be filled in `steps` steps (None: as many as it has rows).

    `threshold` is the confidence, from 0 to 1, above which low_confidence_dynamic accepts a row; `entropy_bound` is the
    entropy, in nats, below which the rows that entropy_bounded accepts in a step stay together. Raises InvalidRequest.
    """

    block: int
    strategy: Strategy = "low_confidence_dynamic"
    threshold: float = 0.9
    entropy_bound: float = 0.35
    steps: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            known = ", ".join(get_args(Strategy))
            raise InvalidRequest(f"{shown(self.strategy)} is none of {known}", field="unmasking_strategy")
        if not 0 <= self.threshold <= 1:
            raise InvalidRequest(f"{self.threshold} is not from 0 to 1", field="confidence_threshold")
        if not self.entropy_bound > 0:
            raise InvalidRequest(f"{self.entropy_bound} is not above 0", field="entropy_bound")
        if self.steps is not None and not 1 <= self.steps <= self.block:
            raise InvalidRequest(f"{self.steps} is not from 1 to the block's {self.block}", field="denoising_steps")

    def quota(self, step: int) -> int:
        """How many rows a block's step, counted from 0, accepts at least. All steps accept as many; where the block
        cannot be divided evenly, the first ones accept one more. Steps beyond `steps`, which a block has where chunks
        hold fewer rows, accept as many as the last one."""
        each, more = divmod(self.block, self.steps or self.block)
        return each + (step < more)

    def passed(self, confidence: FloatArray, entropy: FloatArray, step: int) -> BoolArray:
        """[M] whether each of a chunk's masked rows passes, in the order of their positions; there may be none."""
        if self.strategy == "low_confidence_dynamic":
            return dynamic(confidence, self.threshold, self.quota(step))
        if self.strategy == "low_confidence_static":
            return static(confidence, self.quota(step))
        if self.strategy == "sequential":
            return np.arange(len(confidence)) < self.quota(step)
        return entropy_bounded(entropy, self.entropy_bound)

    def accepted(self, passed: BoolArray, confidence: FloatArray, entropy: FloatArray) -> BoolArray:
        """[M] the rows that passed, or, where none did, the surest: every step with masked rows gains a token."""
        if passed.any():
            return passed
        return static(-entropy if self.strategy == "entropy_bounded" else confidence, 1)


def check_used(name: str, strategy: str) -> None:
    """Raise InvalidRequest for a field of USED_BY that the strategy does not use."""
    if strategy not in USED_BY[name]:
        others = " or ".join(USED_BY[name])
        raise InvalidRequest(
            f"has no effect with the unmasking_strategy {strategy}: leave it away, or take {others}", field=name
        )


def dynamic(confidence: FloatArray, threshold: float, quota: int) -> BoolArray:
    """[M] all rows above the threshold, or, where a quota of several rows is larger, as many of the surest."""
    above = confidence > threshold
    return static(confidence, quota) if quota > 1 and np.count_nonzero(above) < quota else above


def static(confidence: FloatArray, quota: int) -> BoolArray:
    """[M] the `quota` surest rows; of equal ones the leftmost."""
    kept = np.zeros(len(confidence), np.bool_)
    kept[np.argsort(-confidence, kind="stable")[:quota]] = True
    return kept


def entropy_bounded(entropy: FloatArray, bound: float) -> BoolArray:
    """[M] the rows of least entropy whose sum of entropies stays below the bound, in nats."""
    order = np.argsort(entropy, kind="stable")
    kept = np.zeros(len(entropy), np.bool_)
    kept[order] = np.cumsum(entropy[order], dtype=np.float64) < bound
    return kept
