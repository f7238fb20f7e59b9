"""Weights: checkpoints found, opened and loaded, strictly."""

from __future__ import annotations

from ramet.weights.checkpoint import Checkpoint, open_checkpoint
from ramet.weights.fingerprint import Fingerprint
from ramet.weights.load import load

__all__ = ["Checkpoint", "Fingerprint", "load", "open_checkpoint"]
