"""The JSON of one run of a bench."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ramet.bench.samples import JsonObject, Row
from ramet.files import replacing


class Document(ABC):
    """What a run found so far, as JSON."""

    @abstractmethod
    def as_json(self) -> JsonObject: ...

    def write(self, path: Path) -> None:
        """Written again and again as the run goes on, beside the file and then in its place, so that one that is ended
        at any time keeps what it has."""
        with replacing(path) as made:
            made.write_text(json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")


@dataclass(slots=True)
class Report(Document):
    """What was run, on what, and every sample. `ratios` are (name, base, key): medians of name over those of base."""

    bench: str
    peer: str
    model: str
    machine: dict[str, str]
    settings: JsonObject
    ratios: Sequence[tuple[str, str, str]]
    rows: list[Row] = field(default_factory=list)

    def as_json(self) -> JsonObject:
        rows = [{**row.as_json(), **row.ratios(self.ratios)} for row in self.rows]
        return {
            "bench": self.bench, "peer": self.peer, "model": self.model,
            "machine": self.machine, "settings": self.settings, "rows": rows,
        }  # fmt: skip
