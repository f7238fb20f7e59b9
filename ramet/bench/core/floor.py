"""The matrix products of one pass, by themselves: what a pass cannot be faster than with these kernels.

They are those that a real pass makes (`products`), over the rows that it gives them: behind the last layer that leaves
something to later rows, the rows that are read alone. Experts are called with the choices of that pass. The
head is left out (a few columns of a few rows), and so is everything between the products: norms, rotary embedding,
attention and recurrences (see `arithmetic`), convolution, activation, residual sums, packing, reading.
Inputs are random and the outputs go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from ramet.bench.core.products import LinearProduct, Product
from ramet.bench.core.shapes import DecisionShape
from ramet.layers.attention import AttentionShape
from ramet.layers.gated_delta import DeltaShape
from ramet.layers.shape import ModelShape
from ramet.ops.experts.reference import touched

Call = Callable[[torch.Tensor], object]


class Floor:
    """The products of one pass, ready to run: the model's own (`packed`), or torch's on unpacked weights (`plain`)."""

    def __init__(self, parts: Sequence[tuple[Call, Product]], device: torch.device) -> None:
        keys = {(p.n_rows, p.n_in, p.dtype): None for _, p in parts}
        inputs = {key: torch.randn(key[:2], dtype=key[2], device=device) for key in keys}
        self._calls = [(call, inputs[p.n_rows, p.n_in, p.dtype]) for call, p in parts]
        self._graph = _recorded(self._eager) if device.type == "cuda" else None

    @classmethod
    def packed(cls, found: Sequence[Product], device: torch.device) -> Floor:
        return cls([(_own(p), p) for p in found], device)

    @classmethod
    def plain(cls, found: Sequence[Product], device: torch.device) -> Floor:
        """Random weights of the same shapes through torch.nn.functional.linear; experts one after the other."""
        return cls([(_plain(p, device), p) for p in found], device)

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


def _own(product: Product) -> Call:
    if isinstance(product, LinearProduct):
        return product.product
    return lambda x: product.product(x, product.chosen, product.weights)


def _plain(product: Product, device: torch.device) -> Call:
    def weights(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=product.dtype, device=device)

    if isinstance(product, LinearProduct):
        weight = weights(product.n_out, product.n_in)
        return lambda x: functional.linear(x, weight)
    size, chosen = product.size, product.chosen
    gate_up, down = weights(product.n_experts, 2 * size, product.n_in), weights(product.n_experts, product.n_in, size)

    def experts(x: torch.Tensor) -> None:
        for expert, rows, _ in touched(chosen):
            functional.linear(functional.linear(x[rows], gate_up[expert])[:, :size], down[expert])

    return experts


def attention_flop(shape: ModelShape, work: DecisionShape) -> int:
    """Scores and weighted values of the keys that each row sees, over the layers of attention; behind the last layer
    that leaves something to later rows, of the rows that are read alone."""
    found = 0
    for i, layer in enumerate(shape.layers):
        mixer = layer.mixer
        if isinstance(mixer, AttentionShape):
            positions = _all_rows(work) if i + 1 < shape.n_every else _read_rows(work)
            seen = positions + 1 if not mixer.window else np.minimum(positions + 1, mixer.window)
            found += 4 * mixer.n_heads * mixer.head_dim * int(seen.sum())
    return found


def delta_flop(shape: ModelShape, work: DecisionShape) -> int:
    """The gated delta rule's own three products of each row and value head with a state [Dk, Dv]: what it says of the
    key, the key's correction added to it, and what it says of the query. Decays and gates are not counted, nor what a
    kernel that works in chunks spends inside them."""
    found = 0
    for i, layer in enumerate(shape.layers):
        mixer = layer.mixer
        if isinstance(mixer, DeltaShape):
            n_asked = work.n_stream if i + 1 < shape.n_every else work.n_questions
            found += 2 * mixer.n_value_heads * mixer.key_dim * mixer.value_dim * (2 * work.n_stream + n_asked)
    return found


def _all_rows(work: DecisionShape) -> npt.NDArray[np.int64]:
    """The position of each row."""
    questions = np.tile(np.arange(work.n_state, work.n_state + work.n_tokens), work.n_questions)
    return np.concatenate([np.arange(work.n_state), questions])


def _read_rows(work: DecisionShape) -> npt.NDArray[np.int64]:
    return np.full(work.n_questions, work.n_state + work.n_tokens - 1)
