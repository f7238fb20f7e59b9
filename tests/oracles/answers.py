"""Answers compared: those of ours and those that came as JSON, to rounding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def probabilities(answers: Mapping[str, Any]) -> dict[str, list[float]]:
    """Of each answer, whether objects of ours or JSON: its probabilities, all of them, in order."""
    plain = {name: a if isinstance(a, dict) else a.model_dump() for name, a in answers.items()}
    return {name: [a["noul"]] if a["type"] == "noul" else [*a["probabilities"].values()] for name, a in plain.items()}


def assert_close(found: Mapping[str, Any], wanted: Mapping[str, Any], atol: float = 1e-5) -> None:
    """The same questions in the same order, and probabilities that differ by no more than `atol`."""
    ours, theirs = probabilities(found), probabilities(wanted)
    assert list(ours) == list(theirs)
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=0, atol=atol, err_msg=name)
