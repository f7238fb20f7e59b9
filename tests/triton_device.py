"""Where the tests of Triton kernels run: on the GPU, or interpreted on the CPU. Import it before triton."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch


def _mend_interpreter() -> None:
    """Triton 3.6's: loop bounds for NumPy 2.4, bfloat16 in products, and rounding to bfloat16 as the GPU does it.
    Products are summed in float64, for the libraries below NumPy sum a row in another order where it stands beside
    fewer."""
    import triton.language as tl
    from triton.runtime import interpreter

    patch, convert = interpreter._patch_lang_tensor, interpreter._convert_float

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def converted(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) == (tl.bfloat16, tl.float32):
            return data.astype(np.uint32) << 16
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(np.array(data)).to(torch.bfloat16).view(torch.uint16).numpy()
        return convert(data, source, target, mode)

    def wide(x: Any) -> Any:
        if x.dtype.scalar != tl.bfloat16:
            return x
        return interpreter.TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def multiplied(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        total = np.matmul(wide(a).data, wide(b).data, dtype=np.float64) + d.data
        return interpreter.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)

    interpreter._patch_lang_tensor, interpreter._convert_float = patched, converted
    interpreter.InterpreterBuilder.create_dot = multiplied


DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"
    _mend_interpreter()
