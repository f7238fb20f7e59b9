"""Answers as numbers."""

from __future__ import annotations

from ramet.decision import Answer, NoulAnswer


def probabilities_of(answer: Answer) -> list[float]:
    """Of each option, in their order; of a noul that of yes."""
    return [answer.noul] if isinstance(answer, NoulAnswer) else list(answer.probabilities.values())
