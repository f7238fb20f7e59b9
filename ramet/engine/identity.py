"""Identity: which model, computed how. What is kept on disk of one is good for no other."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import ramet
from ramet.layers.decoder import Decoder
from ramet.version import __version__


def identity(model: Decoder) -> str:
    """Equal for models that compute the same in the same way: of the model's fingerprint, its shape and rotary
    embeddings as they were understood, the dtype, and the implementations."""
    digest = hashlib.sha256(repr((model.shape, model.dtype, sorted(model.ops.why.items()))).encode())
    for frequencies, scale in model.rotaries:
        digest.update(frequencies.cpu().numpy().tobytes() + repr(scale).encode())
    return f"{model.fingerprint} {digest.hexdigest()[:16]}"


@cache
def code() -> str:
    """Ramet's version, and a digest of every source file: between two releases the version stays, and what is computed
    may change."""
    digest = hashlib.sha256()
    root = Path(ramet.__file__).parent
    for file in sorted(file for kind in ("py", "cpp", "h") for file in root.rglob(f"*.{kind}")):
        digest.update(file.read_bytes())
    return f"ramet {__version__} {digest.hexdigest()[:16]}"
