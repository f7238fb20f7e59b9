"""Kernels in C++, compiled on the machine that runs them and called through ctypes."""

from ramet.ops.native.loader import Library, library, pointer, status

__all__ = ["Library", "library", "pointer", "status"]
