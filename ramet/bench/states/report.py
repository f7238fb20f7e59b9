"""What was measured at each step of the trajectories, as JSON and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.table import facts, table

N_BUCKETS = 8
Floats = npt.NDArray[np.float64]
_COLUMNS = (
    "history=n_history:.0f, steps=n_steps, tokens=n_tokens:.0f, computed=n_computed:.0f, resumed=resumed_ms:ms!, "
    "passes=resumed_pass_ms:ms, fresh=fresh_ms:ms, passes=fresh_pass_ms:ms, fresh / resumed=saved:.1f"
)


@dataclass(frozen=True, slots=True)
class TimedRequest:
    """Milliseconds in all and of its passes, tokens of its tree, and those of them that were not computed."""

    ms: float
    pass_ms: float
    n_tokens: int
    n_cached: int


@dataclass(frozen=True, slots=True)
class StateStep:
    """One step of a trajectory. n_history: tokens of the state, with what the template has around it. fresh: the same
    request where nothing was kept, on a sample of steps, and the largest `difference` of a probability then.
    n_seen: tokens of all states so far, what they share counted once; n_asked: counted at each step; bytes: what is
    kept of them."""

    trajectory: int
    step: int
    n_history: int
    resumed: TimedRequest
    n_seen: int
    n_asked: int
    bytes: int
    fresh: TimedRequest | None = None
    difference: float | None = None


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
class StatesReport(Document):
    """row_bytes, state_bytes: of a token's keys and values, of a recurrent state. capacity: bytes that there is room
    for."""

    bench: ClassVar[str] = "states"
    row_bytes: int
    state_bytes: int
    capacity: int
    steps: list[StateStep] = field(default_factory=list)
    evicted: int = 0
    squeezed: Squeezed | None = None

    @property
    def difference(self) -> float | None:
        """The largest difference of a probability between resumed and fresh; None before any was compared."""
        return max((s.difference for s in self.steps if s.difference is not None), default=None)

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

    def buckets(self) -> list[JsonObject]:
        """Steps in the order of their history, cut into groups of equal size."""
        ordered = sorted(self.steps, key=lambda s: s.n_history)
        n = min(N_BUCKETS, len({s.step for s in self.steps}))
        return [_medians([ordered[i] for i in places]) for places in np.array_split(np.arange(len(ordered)), n)]

    def found(self) -> JsonObject:
        buckets = {"buckets": self.buckets()} if self.steps else {}
        return {**self._summary(), **buckets, "steps": [asdict(step) for step in self.steps]}

    def tables(self) -> Iterator[Table]:
        """Milliseconds by history, and what all steps together say."""
        rows = [b | {"saved": b["fresh_ms"] and b["fresh_ms"] / b["resumed_ms"]} for b in self.buckets()]
        caption = "medians; tokens of the request; ms of it, and of its passes alone"
        yield table("a step of a growing state", _COLUMNS, rows, caption)
        yield facts(self._summary())

    def _summary(self) -> JsonObject:
        """Bytes, differences, and the second part."""
        names = ["row_bytes", "state_bytes", "capacity"]
        names += ["difference", "bytes_per_token", "nonlinearity", "evicted"] if self.steps else []
        squeezed = None if self.squeezed is None else asdict(self.squeezed)
        return {name: getattr(self, name) for name in names} | {"squeezed": squeezed}

    def _kept(self) -> tuple[Floats, Floats]:
        """Tokens seen and bytes kept at each step."""
        seen, kept = np.array([(s.n_seen, s.bytes) for s in self.steps], np.float64).T
        return seen, kept


def _medians(steps: Sequence[StateStep]) -> JsonObject:
    """Of steps of about equal history. A median is None where no step was computed fresh."""
    resumed = [s.resumed for s in steps]
    fresh = [s.fresh for s in steps if s.fresh is not None]
    values: dict[str, list[float]] = {
        "n_history": [s.n_history for s in steps],
        "n_tokens": [r.n_tokens for r in resumed],
        "n_computed": [r.n_tokens - r.n_cached for r in resumed],
        "resumed_ms": [r.ms for r in resumed],
        "resumed_pass_ms": [r.pass_ms for r in resumed],
        "fresh_ms": [f.ms for f in fresh],
        "fresh_pass_ms": [f.pass_ms for f in fresh],
    }
    medians = {name: statistics.median(own) if own else None for name, own in values.items()}
    return {"n_steps": len(steps), **medians}
