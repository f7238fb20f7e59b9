"""The engine: rounds over time, and the ways to ask it."""

from __future__ import annotations

from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings

__all__ = ["Engine", "EngineSettings"]
