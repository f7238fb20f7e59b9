"""Ranges that options take: whole numbers up to what is done in a lifetime, and numbers that are some."""

from __future__ import annotations

import math
from typing import Any

import click

MOST = 1_000_000
MOST_ROWS = 1 << 40


class Count(click.IntRange):
    """How many of something, up to a million."""

    def __init__(self, min: int = 1, max: int = MOST) -> None:  # noqa: A002, click's names
        super().__init__(min, max)


class Finite(click.FloatRange):
    """A number of a range: "nan" is in none, and "inf" none that a person means."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not math.isfinite(number := super().convert(value, param, ctx)):
            self.fail(f"{value} is no number", param, ctx)
        return number
