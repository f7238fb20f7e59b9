"""What the bench of errors found, as JSON and as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from rich.table import Table

from ramet.bench.core.document import Document
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.table import table
from ramet.tree import FloatArray

EXACT = "float32"
Probabilities = npt.NDArray[np.float64]  # [questions, columns]


@dataclass(slots=True)
class ErrorReport(Document):
    """probabilities: of every question's labels, by side. `float32` comes last, with which the others are compared."""

    bench: ClassVar[str] = "error"
    peer: str | None
    probabilities: dict[str, Probabilities] = field(default_factory=dict)

    def errors(self) -> dict[str, FloatArray]:
        """The total variation of each question from float32, by side."""
        exact = self.probabilities.get(EXACT)
        if exact is None:
            return {}
        sides = {name: p for name, p in self.probabilities.items() if name != EXACT}
        return {name: np.abs(p - exact).sum(1) / 2 for name, p in sides.items()}

    def summaries(self) -> dict[str, dict[str, float]]:
        """By side: the mean error and its standard error, the 99th percentile, the largest, and how many questions have
        another likeliest label."""
        likeliest = {name: p.argmax(1) for name, p in self.probabilities.items()}
        return {
            name: {
                "mean": float(errors.mean()),
                "standard_error": float(errors.std() / math.sqrt(len(errors))),
                "p99": float(np.quantile(errors, 0.99)),
                "largest": float(errors.max()),
                "flips": float((likeliest[name] != likeliest[EXACT]).sum()),
            }
            for name, errors in self.errors().items()
        }

    def found(self) -> JsonObject:
        return {
            "peer": self.peer,
            "summaries": self.summaries(),
            "total_variation": {name: errors.tolist() for name, errors in self.errors().items()},
            "float32": self.probabilities[EXACT].tolist() if EXACT in self.probabilities else None,
        }

    def about(self) -> dict[str, Any]:
        return {"peer": self.peer or "none", **Document.about(self)}

    def tables(self) -> Iterator[Table]:
        """A line a side."""
        columns = "=name, mean:.5f, standard_error:.5f, p99:.4f, largest:.4f, another likeliest label=flips:.0f"
        title = f"total variation from float32, {self.settings['questions']} questions"
        yield table(title, columns, [{"name": name, **summary} for name, summary in self.summaries().items()])
