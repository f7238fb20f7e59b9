"""What was measured at each step of the trajectories, and what it says together."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import numpy.typing as npt

from ramet.bench.report import Document
from ramet.bench.samples import JsonObject

N_BUCKETS = 8
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, timed: milliseconds in all and of its passes, tokens of its tree, and those of them not computed."""

    ms: float
    pass_ms: float
    n_tokens: int
    n_cached: int


@dataclass(frozen=True, slots=True)
class Stepped:
    """One step of a trajectory. n_history: tokens of the state, with what the template has around it. fresh: the same
    request where nothing was kept, on a sample of steps, and the largest `difference` of a probability then.
    n_seen: tokens of all states so far, what they share counted once; n_asked: counted at each step; bytes: what is
    kept of them."""

    trajectory: int
    step: int
    n_history: int
    resumed: Asked
    n_seen: int
    n_asked: int
    bytes: int
    fresh: Asked | None = None
    difference: float | None = None


@dataclass(frozen=True, slots=True)
class Bucket:
    """Steps of about equal history, by their medians."""

    n_steps: int
    n_history: float
    n_tokens: float
    n_computed: float
    resumed_ms: float
    resumed_pass_ms: float
    fresh_ms: float | None
    fresh_pass_ms: float | None


@dataclass(slots=True)
class Squeezed:
    """The same steps under a budget that they do not fit: what it was, what had to leave, and the answers then."""

    cache_bytes: int
    n_steps: int = 0
    evicted_pages: int = 0
    evicted_states: int = 0
    cached: float = 0.0  # share of the tokens that was not computed again
    difference: float = 0.0


@dataclass(slots=True)
class Steps(Document):
    """A run of the bench of growing states. row_bytes, state_bytes: of a token's keys and values, of a recurrent
    state. capacity: bytes that there is room for."""

    model: str
    machine: dict[str, str]
    settings: JsonObject
    row_bytes: int
    state_bytes: int
    capacity: int
    steps: list[Stepped] = field(default_factory=list)
    evicted: int = 0
    squeezed: Squeezed | None = None

    @property
    def difference(self) -> float | None:
        """The largest difference of a probability between resumed and fresh; None before any was compared."""
        found = [s.difference for s in self.steps if s.difference is not None]
        return max(found) if found else None

    @property
    def bytes_per_token(self) -> float:
        """The slope of what is kept against the tokens seen, by least squares."""
        seen, kept = self._kept()
        return float(seen @ kept / (seen @ seen))

    @property
    def nonlinearity(self) -> float:
        """The largest distance from that line, over the most that is kept."""
        seen, kept = self._kept()
        return float(np.abs(kept - self.bytes_per_token * seen).max() / max(1.0, kept.max()))

    def buckets(self) -> list[Bucket]:
        """Steps in the order of their history, cut into groups of equal size."""
        ordered = sorted(self.steps, key=lambda s: s.n_history)
        n = min(N_BUCKETS, len({s.step for s in self.steps}))
        return [_bucket([ordered[i] for i in places]) for places in np.array_split(np.arange(len(ordered)), n)]

    def as_json(self) -> JsonObject:
        steps = [asdict(step) for step in self.steps]
        summary: JsonObject = {}
        if steps:
            summary = {
                "difference": self.difference, "bytes_per_token": self.bytes_per_token,
                "nonlinearity": self.nonlinearity, "evicted": self.evicted,
                "buckets": [asdict(bucket) for bucket in self.buckets()],
                "squeezed": None if self.squeezed is None else asdict(self.squeezed),
            }  # fmt: skip
        return {
            "bench": "states", "model": self.model, "machine": self.machine, "settings": self.settings,
            "row_bytes": self.row_bytes, "state_bytes": self.state_bytes, "capacity": self.capacity,
            **summary, "steps": steps,
        }  # fmt: skip

    def _kept(self) -> tuple[Floats, Floats]:
        """Tokens seen and bytes kept at each step."""
        return np.array([s.n_seen for s in self.steps], np.float64), np.array([s.bytes for s in self.steps], np.float64)


def _bucket(steps: Sequence[Stepped]) -> Bucket:
    def median(values: Iterator[float]) -> float | None:
        found = list(values)
        return statistics.median(found) if found else None

    fresh = [s.fresh for s in steps if s.fresh is not None]
    resumed = [s.resumed for s in steps]
    return Bucket(
        n_steps=len(steps),
        n_history=statistics.median(s.n_history for s in steps),
        n_tokens=statistics.median(a.n_tokens for a in resumed),
        n_computed=statistics.median(a.n_tokens - a.n_cached for a in resumed),
        resumed_ms=statistics.median(a.ms for a in resumed),
        resumed_pass_ms=statistics.median(a.pass_ms for a in resumed),
        fresh_ms=median(a.ms for a in fresh),
        fresh_pass_ms=median(a.pass_ms for a in fresh),
    )
