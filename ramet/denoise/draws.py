"""Draws: how the tokens of a reply are drawn."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.denoise.noise import Noise


@dataclass(frozen=True, slots=True)
class Draws:
    """From the distribution at `temperature` (0: the likeliest), cut to the `top_k` likeliest ids (0: all), then to the
    likeliest that hold `top_p` of it (1: all), by the numbers of `noise`."""

    temperature: float
    top_k: int
    top_p: float
    noise: Noise

    def __post_init__(self) -> None:
        assert self.temperature >= 0
        assert self.top_k >= 0
        assert 0 < self.top_p <= 1
