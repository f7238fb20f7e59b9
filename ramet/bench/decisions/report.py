"""What the bench of decisions found, as JSON and as tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject, Row
from ramet.bench.core.table import table


@dataclass(slots=True)
class DecisionsReport(Document):
    """A row a shape, with every sample. `ratios` are (name, base, key): medians of name over those of base."""

    bench: ClassVar[str] = "decisions"
    peer: str
    ratios: Sequence[tuple[str, str, str]]
    rows: list[Row] = field(default_factory=list)

    def rows_json(self) -> list[dict[str, Any]]:
        return [{**row.as_json(), **row.ratios(self.ratios)} for row in self.rows]

    def found(self) -> JsonObject:
        return {"peer": self.peer, "rows": self.rows_json()}


_CAPTION = "medians, and half the spread of the middle half"


def beside_transformers(report: DecisionsReport) -> Table:
    """Ramet beside transformers and the bare products; milliseconds."""
    columns = [
        ("shape", "{shape}"), ("ours", "{ms[ours]:spread}"), ("its pass", "{ms[pass]:spread}"),
        ("one batch", "{ms[batch]:spread}"), ("/ ours", "{batch_over_ours:.2f}"),
        ("a loop", "{ms[loop]:spread}"), ("/ ours", "{loop_over_ours:.2f}"),
        ("floor", "{ms[floor]:spread}"), ("pass / floor", "{pass_over_floor:.2f}"),
        ("/ all products", "{pass_over_all_products:.2f}"), ("packing, us a branch", "{pack_us_per_branch:.2f}"),
    ]  # fmt: skip
    return table("one decision in process, ms", columns, report.rows_json(), _CAPTION)


def beside_flide(report: DecisionsReport) -> Table:
    """Ramet beside Flide, and the limits of the device; milliseconds of a round."""
    columns = [
        ("shape", "{shape}"), ("ours", "{ms[ours]:spread}"), ("its round", "{ms[round]:spread}"),
        ("its pass", "{ms[pass]:spread}"), ("flide", "{ms[flide]:spread}"), ("/ round", "{flide_over_round:.2f}"),
        ("its replay", "{ms[flide replay]:spread}"), ("/ pass", "{replay_over_pass:.2f}"),
        ("floor", "{ms[floor]:spread}"), ("linear limit", "{linear_limit_ms:.2f}"),
        ("attention limit", "{attention_limit_ms:.2f}"), ("pass / limits", "{pass_over_limits:.2f}"),
    ]  # fmt: skip
    return table("one round in process, ms", columns, report.rows_json(), _CAPTION)


def over_http(report: DecisionsReport) -> Table:
    """Two servers; milliseconds of a request, and requests a second under load."""
    peer = report.peer.split()[0]
    columns = [
        ("shape", "{shape}"), ("ours", "{ms[ours]:spread}"), (peer, f"{{ms[{peer}]:spread}}"),
        ("/ ours", f"{{{report.ratios[0][2]}:.2f}}"), ("ours, requests/s", "{own_rate}"),
        (f"{peer}, requests/s", "{peers_rate}"), ("ours / it", "{faster}"),
    ]  # fmt: skip
    rows = [row | _rates(row, peer) for row in report.rows_json()]
    return table("one decision over HTTP, ms", columns, rows, _CAPTION)


def _rates(row: dict[str, Any], peer: str) -> dict[str, str]:
    """Requests a second, medians, and how many times as many as the peer's; nothing where there was no load."""
    if not (rates := row.get("requests_per_s")):
        return dict.fromkeys(("own_rate", "peers_rate", "faster"), "")
    ours, theirs = (statistics.median(rates[name]) for name in ("ours", peer))
    return {"own_rate": f"{ours:.1f}", "peers_rate": f"{theirs:.1f}", "faster": f"{ours / theirs:.2f}"}
