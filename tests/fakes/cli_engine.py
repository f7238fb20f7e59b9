"""CliEngine: the stub engine with what the commands use besides, and what it was loaded with."""

from __future__ import annotations

import asyncio
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.stub_engine import StubEngine

from ramet.decision import Decision
from ramet.request import DecisionRequest


@dataclass
class CliEngine(StubEngine):
    """`source` and `options` are what `load_engine` was called with, last; `n_loads` how often."""

    source: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    n_loads: int = 0
    closed: bool = False

    def load(self, source: str, **options: Any) -> CliEngine:
        self.source, self.options, self.n_loads, self.closed = source, options, self.n_loads + 1, False
        return self

    @staticmethod
    def identified(source: str, **options: Any) -> tuple[str, dict[str, Any]]:
        """A model is its name, and a setting that was not given has its default."""
        return hashlib.sha256(source.encode()).hexdigest()[:32], options

    def measure(self) -> None: ...

    def decide(self, request: DecisionRequest) -> Decision:
        return asyncio.run(self.decide_async(request))

    def __enter__(self) -> CliEngine:
        return self

    def __exit__(self, *raised: object) -> None:
        self.closed = True


def request(number: int, **more: Any) -> str:
    """A line of a file for `ramet run`."""
    question = {"type": "noul", "instructions": f"Is it {number}?"}
    return json.dumps({"id": f"row-{number}", "state": f"state {number}", "questions": {"q": question}, **more})


def rows_in(directory: Path) -> Path:
    """Such a file, of 20 lines."""
    path = directory / "rows.jsonl"
    path.write_text("\n".join(request(number) for number in range(20)) + "\n")
    return path
