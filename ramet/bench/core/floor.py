"""The matrix products of one pass, by themselves: what a pass cannot be faster than with these kernels.

They are those that a real pass makes (`products`), over the rows that it gives them: behind the last layer that leaves
something to later rows, the rows that are read alone. Experts are called with the choices of that pass. The
head is left out (a few columns of a few rows), and so is everything between the products: norms, rotary embedding,
attention and recurrences (see the functions below), convolution, activation, residual sums, packing, reading.
Inputs are random and the outputs go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ramet.bench.core.products import Product
from ramet.bench.core.shapes import DecisionShape
from ramet.layers.attention import AttentionShape
from ramet.layers.gated_delta import DeltaShape
from ramet.layers.shape import ModelShape


class Floor:
    """The products of one pass, ready to run."""

    def __init__(self, found: Sequence[Product], device: torch.device) -> None:
        keys = {(p.n_rows, p.n_in, p.dtype): None for p in found}
        inputs = {key: torch.randn(key[:2], dtype=key[2], device=device) for key in keys}
        self._calls = [(p.again, inputs[p.n_rows, p.n_in, p.dtype]) for p in found]
        self._graph = _recorded(self._eager) if device.type == "cuda" else None

    def __call__(self) -> None:
        """On a GPU this returns before they are done."""
        if self._graph is None:
            self._eager()
        else:
            self._graph.replay()

    @torch.inference_mode()
    def _eager(self) -> None:
        for call, x in self._calls:
            call(x)


def _recorded(call: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """One recorded graph, so that launches, which a pass does not pay for one by one, do not count."""
    warm, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(warm):
        call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    return graph


def attention_flop(shape: ModelShape, work: DecisionShape) -> int:
    """Scores and weighted values of the keys that each row sees, over the layers of attention; behind the last layer
    that leaves something to later rows, of the rows that are read alone."""
    question = np.arange(work.n_state, work.n_state + work.n_tokens)
    every_row = np.concatenate([np.arange(work.n_state), np.tile(question, work.n_questions)])
    read_rows = np.tile(question[-1:], work.n_questions)
    found = 0
    for i, layer in enumerate(shape.layers):
        mixer = layer.mixer
        if isinstance(mixer, AttentionShape):
            seen = (every_row if i + 1 < shape.n_every else read_rows) + 1
            n_pairs = int(np.minimum(seen, mixer.window).sum() if mixer.window else seen.sum())
            found += 4 * mixer.n_heads * mixer.head_dim * n_pairs
    return found


def delta_flop(shape: ModelShape, work: DecisionShape) -> int:
    """The gated delta rule's own three products of each row and value head with a state [Dk, Dv]: the state times the
    key, the key's correction added to the state, and the state times the query. Decays and gates are not counted, nor
    what a kernel that works in chunks spends inside them."""
    found = 0
    for i, layer in enumerate(shape.layers):
        mixer = layer.mixer
        if isinstance(mixer, DeltaShape):
            n_read = work.n_stream if i + 1 < shape.n_every else work.n_questions
            found += 2 * mixer.n_value_heads * mixer.key_dim * mixer.value_dim * (2 * work.n_stream + n_read)
    return found
