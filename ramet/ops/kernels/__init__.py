"""Triton's kernels on disk: where they are kept, and bundles that take them to another machine of the same kind.

What compiles them, `ramet.ops.kernels.triton`, is imported only where there is a GPU.
"""

from __future__ import annotations

from ramet.ops.kernels.bundle import install, write
from ramet.ops.kernels.host import compile_host, host_library
from ramet.ops.kernels.kind import Kind, use

__all__ = ["Kind", "compile_host", "host_library", "install", "use", "write"]
