"""What the bench of decisions found, as JSON and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject, Row
from ramet.bench.core.table import table

_CAPTION = "ms: medians, and half the spread of the middle half"
_IN_PROCESS = (
    "shape, ms.ours:spread, its round=ms.round:spread, its pass=ms.pass:spread, one batch=ms.batch:spread, "
    "/ ours=batch_over_ours:.2f, a loop=ms.loop:spread, / ours=loop_over_ours:.2f, ms.flide:spread, "
    "/ round=flide_over_round:.2f, its replay=ms.flide replay:spread, / pass=replay_over_pass:.2f, ms.floor:spread, "
    "pass_over_floor:.2f, / all products=pass_over_all_products:.2f, linear limit=linear_limit_ms:.2f, "
    "attention limit=attention_limit_ms:.2f, pass_over_limits:.2f"
)


@dataclass(slots=True)
class DecisionsReport(Document):
    """A row a shape, with every sample. `ratios` are (name, base, key): medians of name over those of base."""

    bench: ClassVar[str] = "decisions"
    peer: str
    ratios: Sequence[tuple[str, str, str]]
    rows: list[Row] = field(default_factory=list)

    def about(self) -> dict[str, Any]:
        return {"peer": self.peer, **Document.about(self)}

    def rows_json(self) -> list[dict[str, Any]]:
        return [{**row.as_json(), **row.ratios(self.ratios)} for row in self.rows]

    def found(self) -> JsonObject:
        return {"peer": self.peer, "rows": self.rows_json()}

    def tables(self) -> Iterator[Table]:
        """In process, or over HTTP, where there are requests a second under load too."""
        if any("floor" in row.samples for row in self.rows):
            yield table("decisions in process, ms", _IN_PROCESS, self.rows_json(), _CAPTION)
            return
        peer = self.peer.split()[0]
        columns = (
            f"shape, ms.ours:spread, ms.{peer}:spread, / ours={self.ratios[0][2]}:.2f, requests/s=rate.ours:.1f, "
            f"{peer} requests/s=rate.{peer}:.1f, ours / it=rate.ratio:.2f"
        )
        rows = [row | {"rate": _rates(row.get("requests_per_s"), peer)} for row in self.rows_json()]
        yield table("decisions over HTTP, ms", columns, rows, _CAPTION)


def _rates(rates: dict[str, list[float]] | None, peer: str) -> dict[str, float]:
    """Medians of requests a second, and how many times as many as the peer's; nothing where there was no load."""
    if rates is None:
        return {}
    medians = {name: statistics.median(own) for name, own in rates.items()}
    return medians | {"ratio": medians["ours"] / medians[peer]}
