"""What the replies of two runs say together: how many are equal, for how long, and how far log-probabilities moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ramet.agree import intervals
from ramet.agree.measures import QUANTILE, Estimate, Proportion
from ramet.agree.pairs import ReplyPair


@dataclass(frozen=True, slots=True)
class Moves:
    """Of the positions with the same tokens before them: how many have the same likeliest token, and the changes of
    their log-probabilities, each position's largest: in nats, and the largest of all as a probability."""

    likeliest: Proportion
    mean_nats: Estimate
    p99_nats: Estimate
    largest_nats: float
    largest_probability: float

    def as_json(self) -> dict[str, Any]:
        return {
            "likeliest": self.likeliest.as_json(), "mean_nats": self.mean_nats.as_json(),
            "p99_nats": self.p99_nats.as_json(), "largest_nats": self.largest_nats,
            "largest_probability": self.largest_probability,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReplyMeasures:
    """Of at least one pair of replies. `common`: the mean share of a reply that is equal from the first token on, or
    the first character where a run has no tokens. `moves` is None where a run has no log-probabilities."""

    equal: Proportion
    finished: Proportion  # for the same reason
    common: Estimate
    moves: Moves | None

    @classmethod
    def of(cls, pairs: Sequence[ReplyPair]) -> ReplyMeasures:
        n = len(pairs)
        shares = np.array([pair.positions.share for pair in pairs])
        (interval,) = intervals.ratios(np.stack([shares, np.ones(n)], axis=1))
        return cls(
            equal=Proportion(sum(not pair.changed for pair in pairs), n),
            finished=Proportion(sum(pair.a.finish == pair.b.finish for pair in pairs), n),
            common=Estimate(float(shares.mean()), interval),
            moves=_moves(pairs),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "equal": self.equal.as_json(), "finished": self.finished.as_json(), "common": self.common.as_json(),
            "moves": self.moves and self.moves.as_json(),
        }  # fmt: skip


def _moves(pairs: Sequence[ReplyPair]) -> Moves | None:
    nats = np.array([change for pair in pairs for change in pair.positions.nats])
    if not len(nats):
        return None
    sums = np.array([[sum(pair.positions.nats), len(pair.positions.nats)] for pair in pairs], dtype=np.float64)
    (mean,) = intervals.ratios(sums)
    p99, p99_interval = intervals.quantile(nats, QUANTILE, ceiling=math.inf)
    return Moves(
        likeliest=Proportion(len(nats) - sum(pair.positions.moved for pair in pairs), len(nats)),
        mean_nats=Estimate(float(nats.mean()), mean),
        p99_nats=Estimate(p99, p99_interval if math.isfinite(p99_interval[1]) else None),
        largest_nats=float(nats.max()),
        largest_probability=max(change for pair in pairs for change in pair.positions.probabilities),
    )
