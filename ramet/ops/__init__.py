"""The operations that layers are made of, and the choice of who computes them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, Protocol

import torch

from ramet.cache.kv import KeyValue
from ramet.cache.state import Recurrent
from ramet.errors import InvalidRequest
from ramet.ops import kernels, native
from ramet.ops.attention import cpu as attention_cpu
from ramet.ops.attention import reference as attention_reference
from ramet.ops.conv import cpu as conv_cpu
from ramet.ops.conv import reference as conv_reference
from ramet.ops.experts import cpu as experts_cpu
from ramet.ops.experts import reference as experts_reference
from ramet.ops.gated_delta import cpu as gated_delta_cpu
from ramet.ops.gated_delta import reference as gated_delta_reference
from ramet.ops.head import cpu as head_cpu
from ramet.ops.head import reference as head_reference
from ramet.ops.linear import cpu as linear_cpu
from ramet.ops.linear import reference as linear_reference
from ramet.ops.norm import cpu as norm_cpu
from ramet.ops.norm import reference as norm_reference
from ramet.ops.planning import Planning
from ramet.ops.processors import processors
from ramet.round import Queries, Stream
from ramet.tree import Sampling

_MODULES: dict[str, dict[str, ModuleType]] = {
    "attention": {"reference": attention_reference, "cpu": attention_cpu},
    "norm": {"reference": norm_reference, "cpu": norm_cpu},
    "linear": {"reference": linear_reference, "cpu": linear_cpu},
    "head": {"reference": head_reference, "cpu": head_cpu},
    "conv": {"reference": conv_reference, "cpu": conv_cpu},
    "gated_delta": {"reference": gated_delta_reference, "cpu": gated_delta_cpu},
    "experts": {"reference": experts_reference, "cpu": experts_cpu},
}
_VARIANTS = ("reference", "cpu", "triton")  # the last are imported where they are chosen alone
_LEAST_CAPABILITY = (8, 0)  # bfloat16 products

_UNFIT = {  # what a kernel leaves to plain torch
    "attention": ", head sizes that are no multiple of 16 or above 512",
    "conv": ", channels that are no multiple of 16 and widths above 4",
    "gated_delta": ", head sizes that are no multiple of 16",
    "experts": " and, without AVX512-BF16, for bfloat16",
}


class Attention(Protocol):
    """See ops/attention/reference.py."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, stream: Stream, queries: Queries,
        pages: KeyValue | None, *, scale: float, window: int = 0,
    ) -> torch.Tensor: ...  # fmt: skip


class GatedDelta(Protocol):
    """See ops/gated_delta/reference.py."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, a: torch.Tensor, b: torch.Tensor,
        rate: torch.Tensor, dt_bias: torch.Tensor, stream: Stream, states: Recurrent | None, *, gate: torch.Tensor,
        weight: torch.Tensor, eps: float,
    ) -> torch.Tensor: ...  # fmt: skip


class Norm(Protocol):
    """See ops/norm/reference.py."""

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype | None = None
    ) -> torch.Tensor: ...


class Join(Protocol):
    """See ops/norm/reference.py."""

    def __call__(
        self, x: torch.Tensor, parts: Sequence[tuple[torch.Tensor, torch.Tensor]], post: torch.Tensor | None,
        scale: torch.Tensor | None, kinds: torch.Tensor | None, eps: float,
    ) -> torch.Tensor: ...  # fmt: skip


class Rotate(Protocol):
    """See ops/norm/reference.py."""

    def __call__(
        self, qkv: torch.Tensor, rotation: torch.Tensor, n_heads: int, n_kv_heads: int, q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None, eps: float, pages: KeyValue | None = None, stream: Stream | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...  # fmt: skip


class Linear(Protocol):
    """A weight prepared by `Ops.pack`. See ops/linear/reference.py."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor: ...


class Pack(Protocol):
    """See ops/linear/reference.py."""

    def __call__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear: ...


class Experts(Protocol):
    """Experts prepared by `Ops.pack_experts`. See ops/experts/reference.py."""

    def __call__(self, x: torch.Tensor, chosen: torch.Tensor, weights: torch.Tensor) -> torch.Tensor: ...


class Draw(Protocol):
    """See ops/head/reference.py."""

    def __call__(
        self, hidden: torch.Tensor, vocabulary: head_reference.Vocabulary, uniforms: torch.Tensor, *,
        temperature: float, n_best: int, embedding: torch.Tensor | None = None, softcap: float = 0.0,
    ) -> head_reference.Drawn: ...  # fmt: skip


class Sample(Protocol):
    """See ops/head/reference.py."""

    def __call__(
        self, hidden: torch.Tensor, rows: torch.Tensor, vocabulary: head_reference.Vocabulary, sampling: Sampling, *,
        excluded: int = -1, softcap: float = 0.0,
    ) -> head_reference.Sampled: ...  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """The functions chosen for one device, and why: `why` has a line for each operation that `choose` names."""

    attention: Attention
    keep: Callable[[KeyValue, torch.Tensor, torch.Tensor, Stream], None]
    rms_norm: Norm
    expert_norms: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float],
        tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ]
    join: Join
    rotation: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
    rotate: Rotate
    gated: Callable[[torch.Tensor, str], torch.Tensor]
    sigmoid_mul: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    pack: Pack
    prepare: Callable[[torch.Tensor], head_reference.Vocabulary]
    read: Callable[[torch.Tensor, head_reference.Vocabulary, Stream, float], tuple[torch.Tensor, torch.Tensor]]
    draw: Draw
    sample: Sample
    causal_conv: Callable[[torch.Tensor, torch.Tensor, Stream, Recurrent | None], torch.Tensor]
    gated_delta: GatedDelta
    pack_experts: Callable[[torch.Tensor, torch.Tensor, str], Experts]
    route: Callable[[torch.Tensor, int, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
    route_grouped: Callable[[torch.Tensor, torch.Tensor, int, int, int, float], tuple[torch.Tensor, torch.Tensor]]
    planning: Planning
    why: dict[str, str]

    @property
    def recordable(self) -> bool:
        """Whether all launches of a pass depend on its capacity alone."""
        return set(self.planning.modules) == set(_MODULES)


def choose(device: torch.device, override: Mapping[str, str] = MappingProxyType({}), *, invariant: bool = False) -> Ops:
    """Choose once, at load. `override` maps attention, norm, linear, head, conv, gated_delta or experts to "reference",
    "cpu" or "triton". With `invariant` the bits of a row do not depend on what else is in the round.

    Raises InvalidRequest for other names, for "cpu" and "triton" on another device, and for a card that the kernels do
    not support.
    """
    chosen: dict[str, Any] = {}
    why: dict[str, str] = {}
    for name in override:
        if name not in _MODULES:
            raise InvalidRequest(f"no operation {name!r}; there are {', '.join(_MODULES)}", field="override")
    for name in _MODULES:
        wanted = override.get(name, _DEFAULTS.get(device.type, "reference"))
        chosen[name] = _module(name, wanted, device)
        why[name] = _why(name, wanted, device, name in override)
    if invariant:
        _check_invariant(device, chosen)
    attention, norm, linear, head, conv, gated_delta, experts = (chosen[name] for name in _MODULES)
    listed = {name: module for name, module in chosen.items() if module.__name__.endswith(".triton")}
    return Ops(
        attention=attention.attention, keep=attention.keep, rms_norm=norm.rms_norm,
        expert_norms=norm.expert_norms, join=norm.join,
        rotation=norm.rotation, rotate=norm.rotate, gated=norm.gated, sigmoid_mul=norm.sigmoid_mul,
        pack=linear.pack_invariant if invariant else linear.pack, prepare=head.prepare, read=head.read,
        draw=head.draw, sample=head.sample,
        causal_conv=conv.causal_conv,
        gated_delta=gated_delta.gated_delta, pack_experts=experts.pack, route=experts.route,
        route_grouped=experts.route_grouped,
        planning=Planning(listed, processors(device), invariant), why=why,
    )  # fmt: skip


_DEFAULTS = {"cpu": "cpu", "cuda": "triton"}


def _module(name: str, wanted: str, device: torch.device) -> ModuleType:
    """The implementation of an operation. Raises InvalidRequest where it does not run on the device."""
    if wanted not in _VARIANTS:
        raise InvalidRequest(f"{wanted!r} is not one of {', '.join(_VARIANTS)}", field=f"override.{name}")
    if wanted == "cpu" and device.type != "cpu":
        raise InvalidRequest(f"'cpu' does not run on {device}", field=f"override.{name}")
    if wanted != "triton":
        return _MODULES[name][wanted]
    if device.type == "cuda":
        check_card(device)
        kernels.use(device)
    elif os.environ.get("TRITON_INTERPRET") != "1":  # Triton's own switch: kernels are then interpreted
        raise InvalidRequest(f"'triton' does not run on {device}", field=f"override.{name}")
    try:
        return import_module(f"ramet.ops.{name}.triton")
    except ModuleNotFoundError as error:
        raise InvalidRequest(f"needs {error.name}, which is not installed: pip install {error.name}") from error


def check_card(device: torch.device) -> None:
    """Raise InvalidRequest for a CUDA card that the kernels do not support."""
    capability = torch.cuda.get_device_capability(device)
    if capability < _LEAST_CAPABILITY:
        name = torch.cuda.get_device_name(device)
        found, least = (".".join(map(str, version)) for version in (capability, _LEAST_CAPABILITY))
        raise InvalidRequest(
            f"{name} has compute capability {found}; the kernels need {least} or newer. --device cpu works",
            field="device",
        )


def _check_invariant(device: torch.device, chosen: Mapping[str, ModuleType]) -> None:
    """Raise InvalidRequest where an implementation's sums depend on what else is in a round."""
    plain = [name for name, module in chosen.items() if name != "linear" and module is _MODULES[name]["reference"]]
    available, reason = native.status() if device.type == "cpu" else (device.type == "cuda", f"none for {device}")
    if not available or plain:
        lacking = reason if not available else f"{', '.join(plain)} would be plain torch on {device}"
        raise InvalidRequest(f"needs the compiled kernels: {lacking}", field="batch_invariant")


def _why(name: str, variant: str, device: torch.device, asked: bool) -> str:
    if variant == "reference":
        return "reference (asked for)" if asked else f"reference (plain torch: no kernel for {device.type} yet)"
    if variant == "triton":
        return f"triton ({'cuBLAS and own kernels' if name == 'linear' else 'own kernels'}, compiled for this card)"
    if name == "linear":
        by = [f"{str(t).removeprefix('torch.')} by {linear_cpu.units(t)}" for t in (torch.bfloat16, torch.float32)]
        return f"cpu ({', '.join(by)}; weights packed once)"
    available, reason = native.status()
    if not available:
        return f"cpu (plain torch: kernels {reason})"
    return f"cpu (native, {reason}; plain torch for float16{_UNFIT.get(name, '')})"
