"""The matrix products of one pass, by themselves: what a pass cannot be faster than with these kernels.

For every layer: the query, key and value, output, gate and up, and down projections, over the rows that the
pass gives them. That is all rows of the stream, but in the last layer only keys and values are: its other products
take the rows that are read, as in the pass. The head is left out (a few columns of a few rows), and so is
everything between the products: norms, rotary embedding, attention (see `attention_flop`), activation, residual sums,
packing, reading.
Inputs are random and the outputs go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from ramet.layers.decoder import Decoder, Shape
from ramet.ops import Linear

Product = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class Size:
    """One product: x [n_rows, n_in] by a weight [n_out, n_in] of layer `layer`."""

    layer: int
    name: str
    n_rows: int
    n_in: int
    n_out: int

    @property
    def flop(self) -> int:
        return 2 * self.n_rows * self.n_in * self.n_out


def sizes(shape: Shape, n_rows: int, n_read: int) -> Iterator[Size]:
    """The products of a pass over `n_rows` rows of which `n_read` are read, in its order."""
    c, wide, narrow = shape.hidden_size, shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    for layer in range(shape.n_layers):
        n = n_rows if layer + 1 < shape.n_layers else n_read
        yield Size(layer, "q_proj", n, c, wide)
        yield Size(layer, "kv_proj", n_rows, c, 2 * narrow)
        yield Size(layer, "o_proj", n, wide, c)
        yield Size(layer, "gate_up_proj", n, c, 2 * shape.intermediate_size)
        yield Size(layer, "down_proj", n, shape.intermediate_size, c)


def attention_flop(shape: Shape, n_state: int, n_questions: int, n_tokens: int) -> int:
    """The products inside attention that a pass over a state and its questions cannot do without: scores and weighted
    values of the keys that each row sees, and in the last layer of the rows that are read alone."""
    seen = n_state * (n_state + 1) // 2 + n_questions * (n_tokens * n_state + n_tokens * (n_tokens + 1) // 2)
    last = n_questions * (n_state + n_tokens)
    return 4 * shape.n_heads * shape.head_dim * ((shape.n_layers - 1) * seen + last)


class Floor:
    """The products of one shape, ready to run: the model's own (`packed`), or torch's on unpacked weights (`plain`)."""

    def __init__(self, parts: list[tuple[Product, Size]], dtype: torch.dtype) -> None:
        rows = {(s.n_rows, s.n_in) for _, s in parts}
        inputs = {key: torch.randn(key, dtype=dtype) for key in sorted(rows)}
        self._calls = [(product, inputs[s.n_rows, s.n_in]) for product, s in parts]
        self.flop = sum(s.flop for _, s in parts)

    @classmethod
    def packed(cls, model: Decoder, n_rows: int, n_read: int) -> Floor:
        return cls([(_product(model, s), s) for s in sizes(model.shape, n_rows, n_read)], model.dtype)

    @classmethod
    def plain(cls, model: Decoder, n_rows: int, n_read: int) -> Floor:
        """Random weights of the same shapes through torch.nn.functional.linear."""
        return cls([(_plain(s, model.dtype), s) for s in sizes(model.shape, n_rows, n_read)], model.dtype)

    @torch.inference_mode()
    def __call__(self) -> None:
        for product, x in self._calls:
            product(x)


def _product(model: Decoder, size: Size) -> Linear:
    layer = model.layers[size.layer]
    linear: Linear = getattr(layer.attention if hasattr(layer.attention, size.name) else layer.mlp, size.name)
    return linear


def _plain(size: Size, dtype: torch.dtype) -> Product:
    weight = torch.randn(size.n_out, size.n_in, dtype=dtype)
    return lambda x: functional.linear(x, weight)
