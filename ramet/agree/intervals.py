"""Confidence intervals at one level, and McNemar's test: formulas of a few lines that numpy has no functions for."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
N_RESAMPLES = 1000
SEED = 0
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
_BATCH = 1 << 22  # weights at a time: 32 MB

FloatArray = npt.NDArray[np.float64]
Interval = tuple[float, float]


def wilson(count: int, of: int) -> Interval:
    """Wilson's score interval (1927) of the share count / of, which has a width at 0 and at 1, too."""
    share = count / of
    z2 = _Z * _Z
    centre = (share + z2 / (2 * of)) / (1 + z2 / of)
    half = _Z / (1 + z2 / of) * math.sqrt(share * (1 - share) / of + z2 / (4 * of * of))
    low = 0.0 if count == 0 else centre - half
    return low, 1.0 if count == of else centre + half


def mcnemar(only_a: int, only_b: int) -> float:
    """McNemar's exact test (1947): the two-sided p-value of the hypothesis that answers which only one side has right
    are as likely on either side.

    Twice the binomial tail: the sum over i up to the smaller count of C(n, i) / 2^n, at most 1.
    """
    n, least = only_a + only_b, min(only_a, only_b)
    if n == 0:
        return 1.0
    i = np.arange(1, least + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(n - i + 1) - np.log(i))])  # of C(n, 0), C(n, 1), ...
    tail = math.exp(logs[-1] - n * math.log(2)) * float(np.exp(logs - logs[-1]).sum())
    return min(1.0, 2 * tail)


def quantile(values: FloatArray, share: float, ceiling: float) -> tuple[float, Interval]:
    """The smallest of `values` [n] that at least `share` of them do not exceed, and its interval by order statistics.

    No distribution is assumed. Where n is too small for a bound from above it is `ceiling`, which no value exceeds.
    """
    ordered, n = np.sort(values), len(values)
    # A hair below n * share: 0.99 * 100 must be the 99th, whatever the product rounds to.
    at = max(math.ceil(n * share - 1e-9), 1) - 1
    spread = _Z * math.sqrt(n * share * (1 - share))
    low, high = math.floor(n * share - spread) - 1, math.ceil(n * share + spread) - 1
    return float(ordered[at]), (float(ordered[low]) if low >= 0 else 0.0, float(ordered[high]) if high < n else ceiling)


def ratios(sums: FloatArray) -> list[Interval | None]:
    """Bootstrap intervals (percentiles) of each pair of columns, the first's sum over the second's.

    `sums` is [R, 2 K] -> K intervals. Whole rows are drawn: answers about one state are not independent.
    None where fewer than two rows have anything in the second column. The draws are the same every time.
    """
    drawn = drawn_sums(sums)
    found: list[Interval | None] = []
    for k in range(0, sums.shape[1], 2):
        if np.count_nonzero(sums[:, k + 1]) < 2:
            found.append(None)
            continue
        above, below = drawn[:, k], drawn[:, k + 1]
        low, high = np.quantile(above[below > 0] / below[below > 0], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        found.append((float(low), float(high)))
    return found


def drawn_sums(sums: FloatArray) -> FloatArray:
    """[N_RESAMPLES, 2 K]: the columns' sums over R rows drawn with replacement."""
    n = len(sums)
    random = np.random.default_rng(SEED)
    drawn = np.empty((N_RESAMPLES, sums.shape[1]))
    step = max(1, min(N_RESAMPLES, _BATCH // n))
    for begin in range(0, N_RESAMPLES, step):
        size = min(step, N_RESAMPLES - begin)
        # Each draw counts in its own n places of one long row.
        places = random.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        weights = np.bincount(places.ravel(), minlength=size * n).reshape(size, n)
        drawn[begin : begin + size] = weights.astype(np.float64) @ sums
    return drawn
