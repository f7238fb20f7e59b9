"""The check for NaN and infinity in weights, as they are read: one such number makes every answer NaN."""

from __future__ import annotations

import torch

from ramet.errors import CheckpointError


def check_finite(tensor: torch.Tensor, name: str, where: str) -> None:
    """Raise CheckpointError, which names the parameter, where some of its numbers are infinite or NaN."""
    least, most = torch.aminmax(tensor)  # in one pass; where one is no number, both are none
    if torch.isfinite(least) and torch.isfinite(most):
        return
    n_odd = tensor.numel() - int(tensor.isfinite().sum())
    raise CheckpointError(
        f"{where}: {n_odd} of the {tensor.numel()} numbers of {name} are not finite in {str(tensor.dtype)[6:]}: the "
        "file is damaged, they are too large for that type, or the training failed; download it again"
    )
