"""NativeOp: what the compiled kernels of all ops have in common."""

from __future__ import annotations

import torch

from ramet.ops.native.loader import Library
from ramet.ops.shape import OpShape

IS_BF16 = {torch.float32: 0, torch.bfloat16: 1}  # no kernel reads numbers of another dtype: KeyError


class NativeOp:
    """An op on the CPU by the kernels of one library, in bfloat16 and float32."""

    def __init__(self, found: Library) -> None:
        self._functions = found.functions
        self.how = found.description

    def takes(self, shape: OpShape) -> str | None:
        """See `Variant`."""
        return None if shape.dtype in IS_BF16 else shape.dtype_name
