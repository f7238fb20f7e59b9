"""The fingerprint of weights that come from no file."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import torch


def fingerprint_of(weights: Mapping[str, torch.Tensor]) -> str:
    """Of every byte of them."""
    digest = sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        digest.update(weight.contiguous().cpu().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
