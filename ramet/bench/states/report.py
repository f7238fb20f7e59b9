"""What was measured at each step of the trajectories, as JSON and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.table import facts, table

N_BUCKETS = 8
Floats = npt.NDArray[np.float64]
Medians = dict[str, Any]  # of steps of about equal history; None where none was fresh


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

    def buckets(self) -> list[Medians]:
        """Steps in the order of their history, cut into groups of equal size."""
        ordered = sorted(self.steps, key=lambda s: s.n_history)
        n = min(N_BUCKETS, len({s.step for s in self.steps}))
        return [_medians([ordered[i] for i in places]) for places in np.array_split(np.arange(len(ordered)), n)]

    def found(self) -> JsonObject:
        summary: JsonObject = {}
        if self.steps:
            summary = {
                "difference": self.difference, "bytes_per_token": self.bytes_per_token,
                "nonlinearity": self.nonlinearity, "evicted": self.evicted,
                "buckets": self.buckets(),
                "squeezed": None if self.squeezed is None else asdict(self.squeezed),
            }  # fmt: skip
        return {
            "row_bytes": self.row_bytes, "state_bytes": self.state_bytes, "capacity": self.capacity,
            **summary, "steps": [asdict(step) for step in self.steps],
        }  # fmt: skip

    def _kept(self) -> tuple[Floats, Floats]:
        """Tokens seen and bytes kept at each step."""
        seen, kept = np.array([(s.n_seen, s.bytes) for s in self.steps], np.float64).T
        return seen, kept


def _medians(steps: Sequence[StateStep]) -> Medians:
    resumed, fresh = [s.resumed for s in steps], [s.fresh for s in steps if s.fresh is not None]
    values: dict[str, list[float]] = {
        "n_history": [s.n_history for s in steps], "n_tokens": [r.n_tokens for r in resumed],
        "n_computed": [r.n_tokens - r.n_cached for r in resumed], "resumed_ms": [r.ms for r in resumed],
        "resumed_pass_ms": [r.pass_ms for r in resumed], "fresh_ms": [f.ms for f in fresh],
        "fresh_pass_ms": [f.pass_ms for f in fresh],
    }  # fmt: skip
    medians = {name: statistics.median(own) if own else None for name, own in values.items()}
    return {"n_steps": len(steps), **medians}


def parts(found: StatesReport) -> Iterator[Table]:
    """Milliseconds by history, and what all steps together say."""
    columns = [
        ("history", "{n_history:.0f}"), ("steps", "{n_steps}"), ("tokens", "{n_tokens:.0f}"),
        ("computed", "{n_computed:.0f}"), ("resumed", "[bold]{resumed_ms:ms}[/]"), ("passes", "{resumed_pass_ms:ms}"),
        ("fresh", "{fresh_ms:ms}"), ("passes", "{fresh_pass_ms:ms}"), ("fresh / resumed", "{saved:.1f}"),
    ]  # fmt: skip
    rows = [b | {"saved": b["fresh_ms"] and b["fresh_ms"] / b["resumed_ms"]} for b in found.buckets()]
    caption = "medians; tokens of the request; ms of it, and of its passes alone"
    yield table("a step of a growing state", columns, rows, caption, n_left=0)
    yield facts(_facts(found))


def _facts(found: StatesReport) -> dict[str, str]:
    """Differences, bytes, and the second part."""
    last, squeezed = found.steps[-1], found.squeezed
    lines = {
        "resumed against fresh": _moved(found.difference),
        "kept": f"{_mib(last.bytes)} of {last.n_seen} tokens: {found.bytes_per_token:.0f} bytes each, "
        f"within {found.nonlinearity:.1%} of a line",
        "of which": f"{found.row_bytes} bytes are a token's keys and values; a recurrent state has {found.state_bytes}",
        "had to leave": f"{found.evicted} pages and states of a budget of {_mib(found.capacity)}",
    }
    if squeezed is not None:
        lines["small budget"] = (
            f"{_mib(squeezed.cache_bytes)}, {squeezed.n_steps} steps: {squeezed.evicted_pages} pages and "
            f"{squeezed.evicted_states} states had to leave, {squeezed.cached:.0%} of the tokens were kept; "
            f"{_moved(squeezed.difference)}"
        )
    return lines


def _moved(difference: float | None) -> str:
    return "not compared" if difference is None else f"largest difference of a probability {difference:.2g}"


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.1f} MiB"
