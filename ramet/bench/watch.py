"""Who is told how far a bench is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ramet.bench.report import Document
from ramet.bench.samples import Step


@dataclass(frozen=True, slots=True)
class Watch:
    """`step` is told what begins, `done` what part is through, `save` gets the document as far as it has come."""

    step: Step
    done: Callable[[float], None]
    save: Callable[[Document], None]


def nobody() -> Watch:
    """A watch that nobody looks at."""
    return Watch(step=lambda _: None, done=lambda _: None, save=lambda _: None)
