"""Compiles the variants of a kernel for cards that are not here: python triton_compile.py MODULE [SM ...].

MODULE has `variants()`, which yields (kernel, signature, constants, options): the jitted function; the Triton types of
its arguments by name ("*bf16", "i32", "constexpr"); the values of the constants by name; num_warps and num_stages.
Pointers, and numbers called a stride or a row or head, divide by 16 bytes, as they do in a model.
"""

from __future__ import annotations

import importlib
import sys

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

_DIVISIBLE = ("stride", "_row", "_head")


def main(module: str, *cards: str) -> None:
    for card in cards or ("80", "90", "100"):
        for kernel, signature, constants, options in importlib.import_module(module).variants():
            divisible = [
                i
                for i, (name, kind) in enumerate(signature.items())
                if kind.startswith("*") or (kind.startswith("i") and name.endswith(_DIVISIBLE))
            ]
            source = ASTSource(kernel, signature, constants, {(i,): [["tt.divisibility", 16]] for i in divisible})
            made = triton.compile(source, target=GPUTarget("cuda", int(card), 32), options=options)
            print(f"sm_{card} {kernel.__name__} {constants} shared {made.metadata.shared}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
