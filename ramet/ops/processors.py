"""How many processors a device has: persistent kernels start so many programs, or a multiple."""

from __future__ import annotations

from functools import cache

import torch


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a CUDA device; 4 elsewhere, where kernels are only interpreted."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 4
