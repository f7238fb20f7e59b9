"""The products with weights that one pass makes, found by running the pass with a witness in place of each.

Nothing here knows families: a layer's products are its fields that are declared to be `Linear` or `Experts`.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, get_args, get_type_hints

import torch

from ramet.engine.host import host_for
from ramet.layers.decoder import Decoder
from ramet.layers.mlp import MLPShape
from ramet.ops import Experts, Linear, Ops
from ramet.round import Round, Stream, pack
from ramet.tree import Tree
from ramet.units import Unit, Units

T = TypeVar("T")
Wrap = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """x [n_rows, n_in] by a weight [n_out, n_in], or by the experts that each row chose (chosen [n_rows, k]). `again`
    computes it once more. row_flop: of a row; n_bytes: of the weights, of experts those that were chosen."""

    again: Callable[[torch.Tensor], torch.Tensor]
    n_rows: int
    n_in: int
    dtype: torch.dtype
    row_flop: int
    n_bytes: int
    chosen: torch.Tensor | None = None

    @classmethod
    def linear(cls, product: Linear, x: torch.Tensor, n_out: int) -> Product:
        size = x.shape[1] * n_out
        return cls(product, x.shape[0], x.shape[1], x.dtype, 2 * size, size * x.dtype.itemsize)

    @property
    def flop(self) -> int:
        return self.n_rows * self.row_flop


def products(model: Decoder, *trees: Tree) -> list[Product]:
    """The products of a pass over trees by themselves, in its order. Costs one pass; the model stays as it is."""
    found: list[Product] = []
    witnessed = copy.copy(model)
    witnessed.layers = [_wrapped(layer, _witness(model, i, found)) for i, layer in enumerate(model.layers)]
    if model.per_layer is not None:
        witnessed.per_layer = _wrapped(model.per_layer, _witness(model, 0, found))
    witnessed(uploaded(model, pack(Units.of([Unit(tree) for tree in trees]))), None)
    return found


def uploaded(model: Decoder, packed: Round) -> Stream:
    """A round on the model's device, with the work lists of its kernels, for a pass that is not recorded."""
    work = host_for(model.device).lists(model.planners())(packed)
    return (packed.with_work(work) if work else packed).on(model.device)


def _witness(model: Decoder, layer: int, found: list[Product]) -> Wrap:
    def wrap(product: Any) -> Any:
        if hasattr(product, "add"):
            return _LinearWitness(product, found)
        shape = model.shape.layers[layer].mlp
        assert not isinstance(shape, MLPShape)
        return _ExpertsWitness(product, shape.size, found)

    return wrap


def _wrapped(part: T, wrap: Wrap) -> T:
    """A copy of a layer, or of a part of one, whose products are wrapped; it shares the parts that have none."""
    changes: dict[str, Any] = {}
    for name, kinds, value in _declared(part):
        if Linear in kinds or Experts in kinds:
            changes[name] = wrap(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, Ops):
            inner = _wrapped(value, wrap)
            changes |= {} if inner is value else {name: inner}
    return dataclasses.replace(part, **changes) if changes else part  # type: ignore[type-var]


def _declared(part: Any) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    """Name, declared types and value of each field that is not None."""
    hints = get_type_hints(type(part))
    for field in dataclasses.fields(part):
        value = getattr(part, field.name)
        if value is not None:
            yield field.name, (hints[field.name], *get_args(hints[field.name])), value


@dataclass(frozen=True, slots=True, eq=False)
class _LinearWitness:
    product: Linear
    found: list[Product]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self._note(x, self.product(x))

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self._note(x, self.product.add(x, residual))

    def _note(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        self.found.append(Product.linear(self.product, x, out.shape[1]))
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _ExpertsWitness:
    product: Experts
    size: int
    found: list[Product]

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        n = 3 * self.size * x.shape[1]  # numbers of an expert

        def again(x: torch.Tensor) -> torch.Tensor:
            return self.product(x, chosen, weights)

        n_bytes = len(chosen.unique()) * n * x.dtype.itemsize
        row_flop = 2 * chosen.shape[1] * n
        self.found.append(Product(again, x.shape[0], x.shape[1], x.dtype, row_flop, n_bytes, chosen))
        return self.product(x, chosen, weights)
