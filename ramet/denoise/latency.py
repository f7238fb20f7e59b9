"""Latency: how long a round takes, by its rows and the keys that they see."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

MAX_ERROR = 0.15  # relative, at sizes left out of a fit: a fit with more is not kept for the next start
MIN_SIZES = 6  # different numbers of rows that a fit needs: four fix its three pieces
_RIDGE = 1e-12  # keeps a system of columns that are one another's multiples solvable
_HALF_LIFE = 64  # steps after which a ratio counts half
_MOST_OFF = 4.0  # a step that takes longer than so many times the fit's seconds has waited for something else
_PRIOR = 8.0  # steps for which a ratio of 1 counts at first

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RowTiming:
    """A measured step: its rows, the seconds that it took, and the keys in pages that its rows see, all in all."""

    rows: int
    seconds: float
    keys: int = 0

    def __post_init__(self) -> None:
        if not (self.rows > 0 and self.keys >= 0 and 0 < self.seconds < float("inf")):
            raise ValueError(f"{self} is no step")


@dataclass(frozen=True, slots=True)
class Latency:
    """A piecewise linear fit of a step's seconds: three pieces, none flatter than the one before, which meet at `knots`
    (rows). On the first reading the weights takes the time, on the last the products, and in between both.

    A step takes `base` seconds, then `slopes` seconds a row, and `per_key` seconds a key in pages. `error` is the mean
    relative error at each number of rows between the least and the most, by a fit that leaves that number out.
    """

    knots: tuple[float, float]
    base: float
    slopes: tuple[float, float, float]
    per_key: float
    error: float

    @classmethod
    def fit(cls, timings: Sequence[RowTiming]) -> Latency:
        """Fit by least squares of the relative errors. Keys count only where steps of equal rows saw different numbers
        of them. Raises ValueError where there are fewer than MIN_SIZES different numbers of rows."""
        sizes = np.unique([t.rows for t in timings])
        if len(sizes) < MIN_SIZES:
            raise ValueError(f"{len(sizes)} numbers of rows were measured; a fit needs {MIN_SIZES}")
        rows, seconds, keys = _columns(timings)
        errors = []
        for size in sizes[1:-1]:
            out = rows == size
            others = cls._of(rows[~out], seconds[~out], keys[~out], 0.0)
            errors.append(np.abs(others.seconds(rows[out], keys[out]) / seconds[out] - 1).mean())
        return cls._of(rows, seconds, keys, float(np.mean(errors)))

    @classmethod
    def _of(cls, rows: Floats, seconds: Floats, keys: Floats, error: float) -> Latency:
        knots = np.array(list(itertools.combinations(np.unique(rows)[1:-1], 2)))
        bases = _bases(rows, keys, knots) / seconds[:, None]
        scale = np.abs(bases).max((0, 1))
        scale[scale == 0] = 1
        found, misfit = _non_negative(bases / scale, np.ones(len(rows)))
        best = int(misfit.argmin())
        base, *rises, per_key = (found[best] / scale).tolist()
        first, second, third = itertools.accumulate(rises)
        return cls((float(knots[best, 0]), float(knots[best, 1])), base, (first, second, third), per_key, error)

    def seconds(self, rows: npt.ArrayLike, keys: npt.ArrayLike = 0) -> Floats:
        """Seconds of steps with so many rows, which see so many keys in pages."""
        x = np.asarray(rows, float)
        first, second, third = self.slopes
        hinges = [np.maximum(x - knot, 0) for knot in self.knots]
        found: Floats = self.base + first * x + (second - first) * hinges[0] + (third - second) * hinges[1]
        return found + self.per_key * np.asarray(keys, float)

    def piece(self, rows: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The piece, 0, 1 or 2, on which steps of so many rows lie."""
        return np.searchsorted(np.array(self.knots), np.asarray(rows, float), side="left")


class Drift:
    """Corrects a Latency by the steps that run now: with a decayed ratio for each of its pieces, and with the seconds
    that pass between two steps, whatever their rows. A piece on which no step ran has the ratio of the nearest one, and
    between pieces the ratio is interpolated: if one piece alone were slower, sizes on it would seem too dear."""

    def __init__(self, latency: Latency, half_life: float = _HALF_LIFE) -> None:
        self._latency = latency
        self._keep = 0.5 ** (1 / half_life)
        first, second = latency.knots
        self._weights = np.full(3, _PRIOR)
        self._ratios = np.full(3, _PRIOR)  # sums, as those of rows
        self._rows = np.array([first / 2, (first + second) / 2, 2 * second]) * _PRIOR
        self._is_seen = np.zeros(3, np.bool_)
        self._between = 0.0  # sums, too
        self._n_steps = 0.0

    def observe(self, rows: int, seconds: float, keys: int = 0, between: float = 0.0) -> None:
        """Learn from a step that took `seconds`, and began `between` seconds after the one before had ended."""
        at = int(self._latency.piece(rows))
        fit = float(self._latency.seconds(rows, keys))
        ratio = min(max(seconds / fit, 1 / _MOST_OFF), _MOST_OFF)
        for sums, value in ((self._weights, 1.0), (self._ratios, ratio), (self._rows, rows)):
            sums[at] = sums[at] * self._keep + value
        self._is_seen[at] = True
        self._between = self._between * self._keep + min(max(between, 0.0), _MOST_OFF * fit)
        self._n_steps = self._n_steps * self._keep + 1

    def seconds(self, rows: npt.ArrayLike, keys: npt.ArrayLike = 0) -> Floats:
        """Seconds from one step's end to the next one's, with so many rows and keys, as steps take now."""
        fit = self._latency.seconds(rows, keys)
        if not self._n_steps:
            return fit
        seen = self._is_seen
        centres = self._rows[seen] / self._weights[seen]
        ratios = self._ratios[seen] / self._weights[seen]
        corrected: Floats = fit * np.interp(np.asarray(rows, float), centres, ratios)
        return corrected + self._between / self._n_steps


def _columns(timings: Sequence[RowTiming]) -> tuple[Floats, Floats, Floats]:
    """Rows, seconds and keys [N]; keys are zeros where they follow from the rows."""
    rows, seconds, keys = np.array([(t.rows, t.seconds, t.keys) for t in timings], float).T
    differ = any(np.ptp(keys[rows == size]) > 0 for size in np.unique(rows))
    return rows, seconds, keys if differ else np.zeros_like(keys)


def _bases(rows: Floats, keys: Floats, knots: Floats) -> Floats:
    """[K, N, 5] the columns of the fit for each pair of knots [K, 2]: 1, rows, rows behind either knot, keys."""
    hinges = np.maximum(rows[:, None] - knots[:, None, :], 0)
    rest = np.stack((np.ones_like(rows), rows, keys), 1)
    rest = np.broadcast_to(rest, (len(knots), *rest.shape))
    return np.concatenate((rest[..., :2], hinges, rest[..., 2:]), 2)


def _non_negative(bases: Floats, wanted: Floats) -> tuple[Floats, Floats]:
    """Non-negative least squares: [K, V] the coefficients, none below 0, with which each of the bases [K, N, V] comes
    nearest to wanted [N], and the sums of squares [K] that are left. Tries every set of coefficients that are not 0."""
    n = bases.shape[2]
    gram = np.swapaxes(bases, 1, 2) @ bases
    right = np.einsum("knv,n->kv", bases, wanted)
    best = np.zeros(right.shape)
    least = np.full(len(bases), wanted @ wanted)
    for chosen in _subsets(n):
        part = gram[:, chosen[:, None], chosen] + _RIDGE * np.eye(len(chosen))
        found = np.linalg.solve(part, right[:, chosen, None])[..., 0]
        left = wanted @ wanted - np.einsum("kv,kv->k", found, right[:, chosen])
        better = (found >= 0).all(1) & (left < least)
        least = np.where(better, left, least)
        whole = np.zeros(right.shape)
        whole[:, chosen] = found
        best = np.where(better[:, None], whole, best)
    return best, least


def _subsets(n: int) -> Iterator[npt.NDArray[np.int64]]:
    for size in range(1, n + 1):
        for chosen in itertools.combinations(range(n), size):
            yield np.array(chosen)
