"""What the bench of elastic decoding found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from ramet.bench.report import Document
from ramet.bench.samples import JsonObject
from ramet.errors import InvalidRequest


@dataclass(slots=True)
class Found(Document):
    """A run of the bench. Rows say of their commits and of their steps whether they are simulated or measured; all are
    of the hardware in `machine`.

    rates: what the device does at most, and the floor of steps that is made of it. steps: what was measured of whole
    steps, by mode and batch. whole: of those of whole blocks, beside their floor and the peer's. loads: decoding as the
    engine did it; cells: as it was simulated on all data sets, `summary` of it. capacities: requests a second that are
    served within the limit, simulated; traces: requests at random as the engine served them. quality and clients: of a
    trained model. start_s: seconds that each part took to be ready. note: what else is to be known of the run, written
    into its JSON by hand.
    """

    model: str
    machine: dict[str, str]
    settings: JsonObject
    rates: JsonObject = field(default_factory=dict)
    latency: str = ""
    peer: JsonObject | None = None
    start_s: dict[str, float] = field(default_factory=dict)
    steps: list[JsonObject] = field(default_factory=list)
    whole: list[JsonObject] = field(default_factory=list)
    loads: list[JsonObject] = field(default_factory=list)
    cells: list[JsonObject] = field(default_factory=list)
    summary: JsonObject = field(default_factory=dict)
    capacities: list[JsonObject] = field(default_factory=list)
    traces: list[JsonObject] = field(default_factory=list)
    quality: list[JsonObject] = field(default_factory=list)
    clients: list[JsonObject] = field(default_factory=list)
    note: str = ""

    @classmethod
    def from_json(cls, told: Any) -> Self:
        """Raises InvalidRequest for what is no JSON of this bench."""
        if not isinstance(told, Mapping) or told.get("bench") != "elastic":
            raise InvalidRequest("not the JSON of a run of this bench", field="from")
        return cls(**{field.name: told[field.name] for field in fields(cls) if field.name in told})

    @property
    def hardware(self) -> str:
        """In a word."""
        return (
            self.machine.get("gpu", self.machine["cpu"])
            if self.settings.get("device") != "cpu"
            else self.machine["cpu"]
        )

    def as_json(self) -> JsonObject:
        told = {
            name: [{"hardware": self.hardware, **row} for row in getattr(self, name)]
            for name in ("steps", "whole", "loads", "cells", "capacities", "traces", "quality", "clients")
        }
        return {
            "bench": "elastic", "model": self.model, "machine": self.machine, "settings": self.settings,
            "rates": self.rates, "latency": self.latency, "peer": self.peer, "start_s": self.start_s,
            "summary": self.summary, **{name: rows for name, rows in told.items() if rows},
            **({"note": self.note} if self.note else {}),
        }  # fmt: skip
