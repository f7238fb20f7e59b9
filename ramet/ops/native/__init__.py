"""Kernels in C++, compiled on the machine that runs them and called through ctypes."""

from ramet.ops.native.loader import Library, compiled, library, pointer, status
from ramet.ops.native.op import IS_BF16, NativeOp

__all__ = ["IS_BF16", "Library", "NativeOp", "compiled", "library", "pointer", "status"]
