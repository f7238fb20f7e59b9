"""All tasks, by name."""

from __future__ import annotations

from collections.abc import Mapping

from training.tasks import arithmetic, decisions, extraction, rewriting, tickets
from training.tasks.example import Make

TASKS: Mapping[str, Make] = {
    "arithmetic": arithmetic.make,
    "extraction": extraction.make,
    "rewriting": rewriting.make,
    "tickets": tickets.make,
    "decisions": decisions.make,
}
