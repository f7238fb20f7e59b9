"""The matrix products of one pass, by themselves: what a pass cannot be faster than with these kernels.

They are those that a real pass makes (`products`), over the rows that it gives them: behind the last layer that leaves
something to later rows, the rows that are read alone. Experts are called with the choices of that pass. The
head is left out (a few columns of a few rows), and so is everything between the products: norms, rotary embedding,
attention and recurrences (see `arithmetic`), convolution, activation, residual sums, packing, reading.
Inputs are random and the outputs go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from ramet.bench.products import ExpertsProduct, LinearProduct, Product
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
    if isinstance(product, ExpertsProduct):
        return _plain_experts(product, device)
    weight = torch.randn(product.n_out, product.n_in, dtype=product.dtype, device=device)
    return lambda x: functional.linear(x, weight)


def _plain_experts(product: ExpertsProduct, device: torch.device) -> Call:
    size, n_in = product.size, product.n_in
    gate_up, down = (
        torch.randn(product.n_experts, *shape, dtype=product.dtype, device=device)
        for shape in ((2 * size, n_in), (n_in, size))
    )

    def call(x: torch.Tensor) -> None:
        for expert, rows, _ in touched(product.chosen):
            functional.linear(functional.linear(x[rows], gate_up[expert])[:, :size], down[expert])

    return call
