"""Draws: how the tokens of a reply are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ramet.denoise.noise import Noise
from ramet.errors import InvalidRequest

MAX_TOP_K = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws from the distribution at `temperature` (0: the likeliest id), cut to the `top_k` likeliest ids (0: all),
    then to the likeliest with the probability `top_p` together (1: all), by the numbers of `noise`. Raises
    InvalidRequest."""

    temperature: float
    top_k: int
    top_p: float
    noise: Noise

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise InvalidRequest(f"{self.temperature} is not from 0", field="temperature")
        if not 0 <= self.top_k <= MAX_TOP_K:
            raise InvalidRequest(f"{self.top_k} is not from 0 to {MAX_TOP_K}", field="top_k")
        if not 0 < self.top_p <= 1:
            raise InvalidRequest(f"{self.top_p} is not above 0, to 1", field="top_p")
