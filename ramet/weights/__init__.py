"""Weights: checkpoints found, opened and loaded, strictly."""

from __future__ import annotations

from ramet.weights.checkpoint import Checkpoint, open_checkpoint
from ramet.weights.fingerprint import Fingerprint
from ramet.weights.load import load, load_onto

__all__ = ["Checkpoint", "Fingerprint", "load", "load_onto", "open_checkpoint"]
