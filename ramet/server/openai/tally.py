"""Tally: what a reply took."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Tally:
    """What a reply took: n_steps passes, of n_rows of its rows where it has no canvases. n_cached of the n_prompt
    tokens were not computed again."""

    n_prompt: int
    n_cached: int = 0
    n_tokens: int = 0
    n_steps: int = 0
    n_rows: int = 0
    n_canvases: int = 0
