"""How long steps take, from what was measured; and what they take at least."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from ramet.bench.core.products import products
from ramet.bench.core.random_model import RandomModel
from ramet.bench.core.rates import DeviceRates
from ramet.bench.elastic.judge import SeenStep
from ramet.denoise.latency import Latency, RowTiming
from ramet.tree import WHOLE, Read, Segment, Tree

Floats = npt.NDArray[np.float64]


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
    samples: list[float]

    @classmethod
    def of(cls, mode: str, batch: int, seen: Sequence[SeenStep]) -> Self:
        """The first only starts the clock. A batch may be stepped in parts: seconds are of as many as make it up."""
        took = np.diff([each.at for each in seen])
        found = {
            name: np.array([getattr(each, name) for each in seen[1:]], float)
            for name in ("rows", "reads", "tokens", "replies")
        }
        parts = batch / found.pop("replies").mean()
        tokens_s = float(found["tokens"].sum() / took.sum())
        means = {name: float(each.mean() * parts) for name, each in found.items()}
        seconds = statistics.median(took.tolist()) * parts
        return cls(mode, batch, seconds, **means, tokens_s=tokens_s, samples=took.round(7).tolist())


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Seconds of steps by their rows, of so many replies: along the measured points of the next smaller and the next
    larger batch, and beyond their rows as `fit` goes on."""

    curves: dict[int, Floats]  # by batch, ascending: rows, ascending, and seconds [2, N]
    fit: Latency

    @classmethod
    def of(cls, points: Sequence[StepTiming], n_context: int, fit: Latency | None = None) -> Self:
        """n_context: rows in pages of each reply, as measured. fit: of other points; None makes one of these."""
        timings = [RowTiming(max(1, round(p.rows)), p.seconds, p.batch * n_context) for p in points]
        batches = sorted({point.batch for point in points})
        curves = {n: np.array(sorted((p.rows, p.seconds) for p in points if p.batch == n), float).T for n in batches}
        return cls(curves, fit or Latency.fit(timings))

    def __call__(self, rows: Floats, n_replies: int) -> Floats:
        curves = list(self.curves.values())
        place = float(np.interp(n_replies, list(self.curves), range(len(curves))))
        below = int(place)
        above = min(below + 1, len(curves) - 1)
        share = place - below
        mixed: Floats = (1 - share) * self._along(curves[below], rows) + share * self._along(curves[above], rows)
        return mixed

    def _along(self, curve: Floats, rows: Floats) -> Floats:
        xs, ys = curve
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

    flop_per_s: float
    bytes_per_s: float
    rows: list[int]
    flop: list[int]
    n_bytes: list[int]
    head_flop: float
    head_bytes: float
    key_bytes: int

    @classmethod
    def of(cls, model: RandomModel, rates: DeviceRates, rows: Sequence[int]) -> Self:
        found = [products(model.decoder, _tree(n)) for n in rows]
        n_head = model.vocab_size * model.decoder.shape.hidden_size
        return cls(
            **asdict(rates),
            rows=list(rows),
            flop=[sum(product.flop for product in own) for own in found],
            n_bytes=[sum(product.n_bytes for product in own) for own in found],
            head_flop=2.0 * n_head,
            head_bytes=float(n_head * model.decoder.dtype.itemsize),
            key_bytes=model.bytes_of(1),
        )

    def seconds(self, rows: Floats, reads: Floats, n_keys: int) -> Floats:
        """Of steps of so many rows, of which `reads` are read, and n_keys keys in pages."""
        flop = np.interp(rows, self.rows, self.flop) + self.head_flop * reads
        n_bytes = np.interp(rows, self.rows, self.n_bytes) + self.head_bytes + self.key_bytes * n_keys
        floor: Floats = np.maximum(flop / self.flop_per_s, n_bytes / self.bytes_per_s)
        return floor


def _tree(n: int) -> Tree:
    """A segment of n rows that are all read."""
    reads = [Read((0,), row) for row in range(n)]
    return Tree.of([Segment(np.arange(n, dtype=np.int32) % 1000, block=WHOLE, reads=reads)])
