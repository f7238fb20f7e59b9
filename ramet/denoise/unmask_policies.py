"""UnmaskPolicies: the policies of all running replies, and which rows of their step keep the drawn tokens."""

from __future__ import annotations

import numpy as np

from ramet.denoise.ragged import Places, before, owners
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import BoolArray, FloatArray, IntArray


class UnmaskPolicies:
    """Holds each policy once, in `groups`. Its number there may become another's once no reply has it any more.
    thresholds [G]: those of the groups."""

    def __init__(self) -> None:
        self.groups: list[UnmaskPolicy] = []
        self._numbers: dict[UnmaskPolicy, int] = {}
        self._n_replies: list[int] = []  # [G]
        self._free: list[int] = []
        self.thresholds = np.zeros(0, np.float32)
        self._is_plain = np.ones(0, np.bool_)  # [G] by the threshold alone, or the surest

    def add(self, unmasking: UnmaskPolicy) -> int:
        """Count one more reply with this policy. Returns the number of its group."""
        if unmasking not in self._numbers:
            if not self._free:
                self._grow(unmasking)
            number = self._numbers[unmasking] = self._free.pop()
            self.groups[number] = unmasking
            self.thresholds[number] = unmasking.threshold
            self._is_plain[number] = unmasking.strategy == "low_confidence_dynamic" and unmasking.quota(0) == 1
        self._n_replies[self._numbers[unmasking]] += 1
        return self._numbers[unmasking]

    def drop(self, number: int) -> None:
        """Count one reply less in this group."""
        self._n_replies[number] -= 1
        if not self._n_replies[number]:
            del self._numbers[self.groups[number]]
            self._is_plain[number] = True
            self._free.append(number)

    @property
    def are_plain(self) -> bool:
        """Whether a row of any reply passes where its confidence is above the threshold, and only there."""
        return bool(self._is_plain.all())

    def _grow(self, unmasking: UnmaskPolicy) -> None:
        self._free.append(len(self.groups))
        self.groups.append(unmasking)
        self._n_replies.append(0)
        self.thresholds = np.append(self.thresholds, np.float32(0))
        self._is_plain = np.append(self._is_plain, True)

    def settle(
        self, groups: IntArray, steps: IntArray, n_reads: IntArray, confidence: FloatArray, entropy: FloatArray
    ) -> tuple[BoolArray, BoolArray]:
        """[M] which of the masked rows pass, and which are accepted. Each of N replies has n_reads [N] of the rows, in
        order; `steps` [N] number the steps of their blocks."""
        owner = owners(n_reads)
        passed = confidence > self.thresholds[groups][owner]
        none = np.bincount(owner[passed], minlength=len(groups)) == 0
        accepted = passed | surest(confidence, owner, none)
        starts = before(n_reads)
        for i in np.flatnonzero(~self._is_plain[groups] & (n_reads > 0)).tolist():
            of = slice(starts[i], starts[i] + n_reads[i])
            unmasking = self.groups[groups[i]]
            passed[of] = unmasking.passed(confidence[of], entropy[of], int(steps[i]))
            accepted[of] = unmasking.accepted(passed[of], confidence[of], entropy[of])
        return passed, accepted


def surest(confidence: FloatArray, owner: Places, which: BoolArray) -> BoolArray:
    """[M] the surest row, the leftmost of equals, of each reply of `which` [N]. owner [M] ascends."""
    found = np.zeros(len(confidence), np.bool_)
    rows = np.flatnonzero(which[owner])
    rows = rows[np.lexsort((-confidence[rows], owner[rows]))]
    first = np.ones(len(rows), np.bool_)
    first[1:] = owner[rows[1:]] != owner[rows[:-1]]
    found[rows[first]] = True
    return found
