"""How long steps take, from what was measured; and what they take at least."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ramet.bench.core.products import products
from ramet.bench.core.random_model import RandomModel
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import JsonObject
from ramet.bench.elastic.judge import SeenStep
from ramet.denoise.latency import Latency, RowTiming
from ramet.tree import WHOLE, Read, Segment, Tree

Floats = npt.NDArray[np.float64]
_COUNTED = ("flop", "n_bytes")  # of a product


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Steps of `batch` replies in a mode: medians of their seconds, means of their rows, of those that were read, and
    of the tokens that became known."""

    mode: str
    batch: int
    seconds: float
    rows: float
    reads: float
    tokens: float
    tokens_s: float
    samples: tuple[float, ...]

    @classmethod
    def of(cls, mode: str, batch: int, seen: Sequence[SeenStep]) -> Self:
        """The first only starts the clock. A batch may be stepped in parts: seconds are of as many as make it up."""
        took = np.diff([each.at for each in seen])
        rows, reads, tokens, replies = np.array(
            [(each.rows, each.reads, each.tokens, each.replies) for each in seen[1:]], float
        ).T
        parts = batch / replies.mean()
        return cls(
            mode, batch, statistics.median(took.tolist()) * parts, rows.mean() * parts, reads.mean() * parts,
            tokens.mean() * parts, float(tokens.sum() / took.sum()), tuple(took.tolist()),
        )  # fmt: skip

    def as_json(self) -> JsonObject:
        return {**asdict(self), "samples": [round(each, 7) for each in self.samples]}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Of a row that has more besides."""
        found = {field.name: row[field.name] for field in fields(cls)}
        return cls(**{**found, "samples": tuple(found["samples"])})


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Seconds of steps by their rows, of so many replies: along the measured points of the next smaller and the next
    larger batch, and beyond their rows as `fit` goes on."""

    curves: tuple[tuple[int, Floats, Floats], ...]  # batch, ascending; rows, ascending; seconds
    fit: Latency

    @classmethod
    def of(cls, points: Sequence[StepTiming], n_context: int, fit: Latency | None = None) -> Self:
        """n_context: rows in pages of each reply, as measured. fit: of other points; None makes one of these."""
        timings = [RowTiming(max(1, round(p.rows)), p.seconds, p.batch * n_context) for p in points]
        curves = []
        for batch in sorted({point.batch for point in points}):
            own = sorted((p.rows, p.seconds) for p in points if p.batch == batch)
            curves.append((batch, *np.array(own, float).T))
        return cls(tuple(curves), fit or Latency.fit(timings))

    def __call__(self, rows: Floats, n_replies: int) -> Floats:
        batches = np.array([batch for batch, _, _ in self.curves])
        above = int(np.searchsorted(batches, n_replies))
        if above == len(batches) or above == 0 or batches[above] == n_replies:
            return self._along(min(above, len(batches) - 1), rows)
        part = (n_replies - batches[above - 1]) / (batches[above] - batches[above - 1])
        mixed: Floats = (1 - part) * self._along(above - 1, rows) + part * self._along(above, rows)
        return mixed

    def _along(self, place: int, rows: Floats) -> Floats:
        _, xs, ys = self.curves[place]
        inside = np.clip(rows, xs[0], xs[-1])
        found: Floats = np.interp(inside, xs, ys) + self.fit.seconds(rows) - self.fit.seconds(inside)
        least: Floats = np.maximum(found, 0.5 * ys[0])
        return least


@dataclass(frozen=True, slots=True, eq=False)
class StepFloor:
    """What steps take at least: twice the parameters on a row's way times the rows, at the rate of a large product, or
    the bytes of all weights that are touched and of the keys and values that are seen, at that of a large copy.

    flop, n_bytes [K]: of the products with weights of steps of `rows` [K], found by running such a pass. The head's
    are by the rows that are read.
    """

    rates: DeviceRates
    rows: Floats
    flop: Floats
    n_bytes: Floats
    head_flop: float
    head_bytes: float
    key_bytes: int
    n_context: int

    @classmethod
    def of(cls, model: RandomModel, rates: DeviceRates, rows: Sequence[int], n_context: int) -> Self:
        shape, dtype = model.decoder.shape, model.decoder.dtype
        found = [products(model.decoder, _tree(n)) for n in rows]
        flop, n_bytes = (np.array([sum(getattr(p, name) for p in own) for own in found], float) for name in _COUNTED)
        n_head = shape.vocab_size * shape.hidden_size
        return cls(
            rates, np.array(rows, float), flop, n_bytes, head_flop=2.0 * n_head,
            head_bytes=float(n_head * dtype.itemsize), key_bytes=model.bytes_of(1), n_context=n_context,
        )  # fmt: skip

    def as_json(self) -> JsonObject:
        """But for n_context."""
        curves = {name: getattr(self, name).tolist() for name in ("rows", "flop", "n_bytes")}
        rest = {name: getattr(self, name) for name in ("head_flop", "head_bytes", "key_bytes")}
        return {**asdict(self.rates), **curves, **rest}

    @classmethod
    def from_json(cls, row: Mapping[str, Any], n_context: int) -> Self:
        rows, flop, n_bytes = (np.array(row[name], float) for name in ("rows", "flop", "n_bytes"))
        rates = DeviceRates(row["flop_per_s"], row["bytes_per_s"])
        return cls(rates, rows, flop, n_bytes, row["head_flop"], row["head_bytes"], row["key_bytes"], n_context)

    def seconds(self, rows: Floats, n_replies: int, reads: Floats | None = None) -> Floats:
        """reads: all rows where it is not said."""
        flop = np.interp(rows, self.rows, self.flop) + self.head_flop * (rows if reads is None else reads)
        n_bytes = np.interp(rows, self.rows, self.n_bytes) + self.head_bytes
        n_bytes = n_bytes + self.key_bytes * self.n_context * n_replies
        floor: Floats = np.maximum(flop / self.rates.flop_per_s, n_bytes / self.rates.bytes_per_s)
        return floor


def _tree(n: int) -> Tree:
    """A segment of n rows that are all read."""
    reads = [Read((0,), row) for row in range(n)]
    return Tree.of([Segment(np.arange(n, dtype=np.int32) % 1000, block=WHOLE, reads=reads)])
