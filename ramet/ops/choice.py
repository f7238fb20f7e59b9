"""The choice of who computes each op: made once, at load, for each shape that layers have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch

from ramet.errors import InvalidRequest
from ramet.ops import native
from ramet.ops.backends import BACKENDS, Backend
from ramet.ops.contracts import Linear, Ops, Pack
from ramet.ops.planning import Planning
from ramet.ops.processors import processors
from ramet.ops.shape import OpShape

OPS = ("attention", "norm", "linear", "head", "conv", "gated_delta", "experts", "route")
_USUAL = OpShape(
    torch.float32, head_dim=64, n_key_heads=16, n_value_heads=32, key_dim=128, value_dim=128, n_channels=8192,
    conv_width=4, has_experts=True,
)  # fmt: skip
_CPU = ("native", "torch", "reference")  # what "cpu" in an override stands for, the first that takes a shape


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """A backend that an op may be computed by, and its variant; `lacks`: why there is none."""

    backend: Backend
    variant: Any
    lacks: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Picked:
    """The variant that computes an op. left: what of the shape earlier candidates do not take."""

    backend: Backend
    variant: Any
    why: str
    left: tuple[str, ...]


class OpChoice:
    """The candidates for each op on a device. A call gives the ops for a shape. See `choose`."""

    def __init__(self, device: torch.device, override: Mapping[str, str], *, invariant: bool) -> None:
        self._device, self._invariant = device, invariant
        self._asked = {"route": override["experts"], **override} if "experts" in override else override
        self._made: dict[OpShape, Ops] = {}
        self._candidates = {op: self._found(op) for op in OPS}
        if invariant:
            self._check_invariant()
        first = {op: found[0] for op, found in self._candidates.items()}
        listed = {op: each.variant for op, each in first.items() if each.backend.is_recordable}
        self.planning = Planning(listed, processors(device), invariant)

    def __call__(self, shape: OpShape) -> Ops:
        """The ops for a shape. Raises InvalidRequest where a variant that the user chose does not take it."""
        if shape not in self._made:
            self._made[shape] = self._ops(shape)
        return self._made[shape]

    def _ops(self, shape: OpShape) -> Ops:
        picked = {op: self._pick(op, shape) for op in OPS}
        attention, norm, _, head, conv, gated_delta, experts, route = (picked[op].variant for op in OPS)
        return Ops(
            attention=attention.attention, keep=attention.keep, rms_norm=norm.rms_norm,
            expert_norms=norm.expert_norms, join=norm.join, rotation=norm.rotation, rotate=norm.rotate,
            gated=norm.gated, sigmoid_mul=norm.sigmoid_mul, pack=self._pack(shape), prepare=head.prepare,
            read=head.read, draw=head.draw, sample=head.sample, causal_conv=conv.causal_conv,
            gated_delta=gated_delta.gated_delta, pack_experts=experts.pack, route=route.route,
            route_grouped=route.route_grouped, planning=self.planning,
            why={op: each.why for op, each in picked.items()},
            recordable=all(each.backend.is_recordable for each in picked.values()),
        )  # fmt: skip

    def usual(self, dtype: torch.dtype) -> dict[str, str]:
        """Who computes each op of layers of usual sizes, and why."""
        return self(replace(_USUAL, dtype=dtype)).why

    def varies(self, shape: OpShape) -> str | None:
        """None, or what of a shape is computed so that a row's bits depend on what else is in its round."""
        for op in OPS:
            picked = self._pick(op, shape)
            if op != "linear" and not picked.backend.is_invariant:
                return picked.left[0] if picked.left else f"{op} by {picked.backend.name}"
        return None

    def _found(self, op: str) -> list[Candidate]:
        """Who may compute an op, the first choice first. Raises InvalidRequest where nobody can."""
        asked = self._asked.get(op)
        if asked is None or asked == "cpu":
            names = _CPU if asked else [name for name, each in BACKENDS.items() if each.suits(self._device)]
            if asked and self._device.type != "cpu":
                raise InvalidRequest(f"'cpu' does not run on {self._device}", field=f"override.{op}")
            made = (self._candidate(op, BACKENDS[name]) for name in names)
            return [each for each in made if each is not None]
        if asked not in BACKENDS:
            raise InvalidRequest(f"{asked!r} is not one of {', '.join(BACKENDS)}, cpu", field=f"override.{op}")
        found = self._candidate(op, BACKENDS[asked])
        if found is None or found.lacks:
            lacks = found.lacks if found else f"computes no {op}"
            raise InvalidRequest(f"{asked!r} {lacks}", field=f"override.{op}")
        return [found]

    def _candidate(self, op: str, backend: Backend) -> Candidate | None:
        if lacks := backend.lacks(self._device):
            return Candidate(backend, None, lacks)
        backend.start(self._device)
        variant = backend.variant(op)
        return None if variant is None else Candidate(backend, variant)

    def _pick(self, op: str, shape: OpShape) -> Picked:
        left: list[str] = []
        passed: list[str] = []
        for each in self._candidates[op]:
            if each.lacks:
                passed.append(f"{each.backend.name} {each.lacks}")
                continue
            untaken = each.variant.takes(shape)
            if untaken is None:
                how = getattr(each.variant, "how", each.backend.how)
                why = "asked for" if self._asked.get(op) == each.backend.name else "; ".join((how, *passed))
                return Picked(each.backend, each.variant, f"{each.backend.name} ({why})", tuple(left))
            left.append(untaken)
            passed.append(f"{each.backend.name} does not take {untaken}")
        raise InvalidRequest("; ".join(passed), field=f"override.{op}")

    def _pack(self, shape: OpShape) -> Pack:
        """Products of a layer: a router's weight may have another dtype than the rest, and then another variant."""

        def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
            products = self._pick("linear", replace(shape, dtype=weight.dtype)).variant
            made: Linear = (products.pack_invariant if self._invariant else products.pack)(weight, bias)
            return made

        return pack

    def _check_invariant(self) -> None:
        """Raise InvalidRequest where the sums of an op depend on what else is in a round."""
        device, found = self._device, self._candidates
        plain = [op for op in OPS if op != "linear" and not any(each.backend.is_invariant for each in found[op])]
        available, reason = native.status() if device.type == "cpu" else (device.type == "cuda", f"none for {device}")
        if not available or plain:
            lacking = reason if not available else f"{', '.join(plain)} would be plain torch on {device}"
            raise InvalidRequest(f"needs the compiled kernels: {lacking}", field="batch_invariant")


def choose(
    device: torch.device, override: Mapping[str, str] = MappingProxyType({}), *, invariant: bool = False
) -> OpChoice:
    """Choose once, at load. `override` maps ops (attention, norm, linear, head, conv, gated_delta, experts, and route,
    which goes with experts) to a name of BACKENDS, or to "cpu", the best of the CPU's. With `invariant` the bits of a
    row do not depend on what else is in the round.

    Raises InvalidRequest for other names, backends of another device, and cards that the kernels do not support.
    """
    for name in override:
        if name not in OPS:
            raise InvalidRequest(f"no operation {name!r}; there are {', '.join(OPS)}", field="override")
    return OpChoice(device, override, invariant=invariant)


def reasons(ops: Iterable[Ops]) -> dict[str, str]:
    """Who computes each op of several layers, and why: where they differ, one behind another."""
    found: dict[str, dict[str, None]] = {}
    for each in ops:
        for op, why in each.why.items():
            found.setdefault(op, {})[why] = None
    return {op: "; ".join(whys) for op, whys in found.items()}
