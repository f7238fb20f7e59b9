"""The measures of a group of decisions: agreement, changes, flips and accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ramet.agree import intervals
from ramet.agree.intervals import FloatArray, Interval
from ramet.agree.pairs import DecisionPair

QUANTILE = 0.99


@dataclass(frozen=True, slots=True)
class Proportion:
    """`count` of `of`, which is at least 1."""

    count: int
    of: int

    @property
    def share(self) -> float:
        return self.count / self.of

    @property
    def interval(self) -> Interval:
        return intervals.wilson(self.count, self.of)

    def as_json(self) -> dict[str, Any]:
        return {"count": self.count, "of": self.of, "share": self.share, "interval": self.interval}


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its interval, which is None where there is only one row."""

    value: float
    interval: Interval | None

    def as_json(self) -> dict[str, Any]:
        return {"value": self.value, "interval": self.interval}


@dataclass(frozen=True, slots=True)
class Accuracy:
    """How often each side is right, of the labelled decisions, and whether the difference is more than chance."""

    a: Proportion
    b: Proportion
    difference: Estimate  # of b less that of a
    only_a_right: int
    only_b_right: int

    @property
    def p_value(self) -> float:
        """McNemar's exact test."""
        return intervals.mcnemar(self.only_a_right, self.only_b_right)

    def as_json(self) -> dict[str, Any]:
        return {
            "a": self.a.as_json(), "b": self.b.as_json(), "difference": self.difference.as_json(),
            "only_a_right": self.only_a_right, "only_b_right": self.only_b_right, "mcnemar_p": self.p_value,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of one group. `flips` counts decisions in which an option crosses the threshold."""

    n_rows: int
    agreement: Proportion
    mean_variation: Estimate
    p99_change: Estimate
    largest_change: float
    flips: Proportion
    accuracy: Accuracy | None

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.n_rows, "decisions": self.agreement.of, "changed": self.agreement.of - self.agreement.count,
            "agreement": self.agreement.as_json(), "mean_total_variation": self.mean_variation.as_json(),
            "p99_change": self.p99_change.as_json(), "largest_change": self.largest_change,
            "flips": self.flips.as_json(), "accuracy": self.accuracy and self.accuracy.as_json(),
        }  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """The decisions' numbers, each [n]: the row's number, its measures, and what is right where `labelled`."""

    row: npt.NDArray[np.intp]
    changed: npt.NDArray[np.bool_]
    variation: FloatArray
    largest: FloatArray
    flipped: npt.NDArray[np.bool_]
    labelled: npt.NDArray[np.bool_]
    right_a: npt.NDArray[np.bool_]
    right_b: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, decisions: Sequence[DecisionPair], threshold: float) -> Columns:
        """Make the columns of decisions, with rows numbered in the order in which they come."""
        numbers: dict[int, int] = {}
        changes = [d.changes for d in decisions]
        return cls(
            row=np.array([numbers.setdefault(id(d.row), len(numbers)) for d in decisions], dtype=np.intp),
            changed=np.array([d.changed for d in decisions]),
            variation=np.array([sum(c) / 2 for c in changes]),
            largest=np.array([max(c) for c in changes]),
            flipped=np.array([bool(d.flips(threshold)) for d in decisions]),
            labelled=np.array([d.gold is not None for d in decisions]),
            right_a=np.array([d.gold == d.option_a for d in decisions]),
            right_b=np.array([d.gold == d.option_b for d in decisions]),
        )

    def only(self, chosen: npt.NDArray[np.intp]) -> Columns:
        """The columns of some of the decisions, with rows numbered anew."""
        kept = [getattr(self, name)[chosen] for name in self.__slots__]
        return Columns(np.unique(kept[0], return_inverse=True)[1], *kept[1:])

    def measures(self) -> Measures:
        """The measures of these decisions, of which there must be one at least."""
        n_rows = int(self.row.max()) + 1
        n = len(self.row)
        variation, difference = intervals.ratios(self._row_sums(n_rows))
        value, interval = intervals.quantile(self.largest, QUANTILE, ceiling=1.0)
        return Measures(
            n_rows=n_rows,
            agreement=Proportion(n - int(self.changed.sum()), n),
            mean_variation=Estimate(float(self.variation.mean()), variation),
            p99_change=Estimate(value, interval),
            largest_change=float(self.largest.max()),
            flips=Proportion(int(self.flipped.sum()), n),
            accuracy=self._accuracy(difference) if self.labelled.any() else None,
        )

    def _row_sums(self, n_rows: int) -> FloatArray:
        """[R, 4]: a row's variation and decisions, and its gain in right answers and labels."""
        gain = self.right_b.astype(np.float64) - self.right_a
        columns = (self.variation, np.ones(len(self.row)), gain, self.labelled.astype(np.float64))
        return np.stack([np.bincount(self.row, weights=c, minlength=n_rows) for c in columns], axis=1)

    def _accuracy(self, interval: Interval | None) -> Accuracy:
        n, right_a, right_b = int(self.labelled.sum()), int(self.right_a.sum()), int(self.right_b.sum())
        return Accuracy(
            a=Proportion(right_a, n),
            b=Proportion(right_b, n),
            difference=Estimate((right_b - right_a) / n, interval),
            only_a_right=int((self.right_a & ~self.right_b).sum()),
            only_b_right=int((self.right_b & ~self.right_a).sum()),
        )
