"""What the bench of quality found, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import ClassVar

from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.table import table

_COLUMNS = (
    "set, read as=reading, accuracy=accuracy.text!, majority=majority:.2f, area=area.text!, ECE=ece.value:.3f, "
    "Brier=brier.value:.3f, NLL=log_loss.value:.3f, moves=moved:.3f, tokens=tokens:.0f, ms=ms:.0f"
)


@dataclass(slots=True)
class MeasuredSet:
    """How well the items of a set were answered, read in one way.

    accuracy, ece, brier, log_loss, area: each a value and its interval; the area under the curve is of nouls alone.
    majority: the accuracy of always giving the most frequent answer. moved: the mean total variation between the
    answers of a choice and those to its options turned by half their number. tokens, ms: computed of an item, and its
    share of the time of the set.
    """

    set: str
    reading: str
    items: int
    majority: float
    accuracy: JsonObject
    ece: JsonObject
    brier: JsonObject
    log_loss: JsonObject
    area: JsonObject | None
    moved: float | None
    tokens: float
    ms: float
    probabilities: list[list[float]] = field(repr=False)

    def row(self) -> JsonObject:
        """The values of a table's row."""
        found = asdict(self)
        for name in ("accuracy", "area"):
            if found[name] is not None:
                low, high = found[name]["interval"]
                found[name]["text"] = f"{found[name]['value']:.3f} ({low:.2f} to {high:.2f})"
        return found


@dataclass(slots=True)
class QualityReport(Document):
    """rows: one for each set and way to read it."""

    bench: ClassVar[str] = "quality"
    rows: list[MeasuredSet] = field(default_factory=list)

    def found(self) -> JsonObject:
        return {"rows": [asdict(row) for row in self.rows]}

    def tables(self) -> Iterator[Table]:
        """A line for each set and way to read it."""
        caption = (
            "behind accuracy and area under the curve their intervals, at 95 %; moves: when the options are turned"
        )
        yield table(self.model, _COLUMNS, [row.row() for row in self.rows], caption)
