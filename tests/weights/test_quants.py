"""Numbers of quantised blocks have the bits of the gguf package's own reading."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from ramet.weights import quants

HALVES = {  # where their 16-bit floats stand
    Kind.Q4_K: (0, 2), Kind.Q5_0: (0,), Kind.Q6_K: (208,), Kind.Q8_0: (0,), Kind.Q4_1: (0, 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("n_blocks", [1, 63, 500])
def test_bits(kind: Kind, n_blocks: int) -> None:
    """Of blocks of any bytes; Q4_1 is one that the package itself reads."""
    size, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(n_blocks)
    blocks = rng.integers(0, 256, (n_blocks, n_bytes), np.uint8)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = rng.normal(size=(n_blocks, 1)).astype(np.float16).view(np.uint8)
    out = torch.full((n_blocks, size), torch.nan)
    quants.dequantize(blocks, kind, out)
    expected = gguf.quants.dequantize(blocks, kind).reshape(n_blocks, size)
    assert np.array_equal(out.numpy().view(np.int32), expected.view(np.int32))
    assert set(quants._OWN) == {*HALVES} - {Kind.Q4_1}


def test_a_kind_that_nobody_reads() -> None:
    with pytest.raises(NotImplementedError):
        quants.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[Kind.Q8_1][1]), np.uint8), Kind.Q8_1, torch.empty(1, 32))
