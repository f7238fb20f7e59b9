"""Ops: the operations that layers are made of, and the signature of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ramet.cache.kv import KeyValue
from ramet.cache.state import Recurrent
from ramet.ops.head.reference import Drawn, Sampled, Vocabulary
from ramet.ops.planning import Planning
from ramet.ops.shape import OpShape
from ramet.round import Queries, Stream
from ramet.tree import Sampling


class Variant(Protocol):
    """One way to compute an op, with the functions of its reference.py: a module, or an object with these methods."""

    def takes(self, shape: OpShape) -> str | None:
        """None, or what of the shape this variant does not compute."""


class AttentionOp(Protocol):
    """See ops/attention/reference.py."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, stream: Stream, queries: Queries,
        pages: KeyValue | None, *, scale: float, window: int = 0,
    ) -> torch.Tensor: ...  # fmt: skip


class GatedDeltaOp(Protocol):
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
        self, hidden: torch.Tensor, vocabulary: Vocabulary, uniforms: torch.Tensor, *,
        temperature: float, n_best: int, embedding: torch.Tensor | None = None, softcap: float = 0.0,
    ) -> Drawn: ...  # fmt: skip


class Sample(Protocol):
    """See ops/head/reference.py."""

    def __call__(
        self, hidden: torch.Tensor, rows: torch.Tensor, vocabulary: Vocabulary, sampling: Sampling, *,
        excluded: int = -1, softcap: float = 0.0,
    ) -> Sampled: ...  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Ops:
    """The functions that were chosen for a device and a shape. why: by which variant each op is computed, and the
    reason. recordable: whether all launches of a pass depend on its capacity alone."""

    attention: AttentionOp
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
    prepare: Callable[[torch.Tensor], Vocabulary]
    read: Callable[[torch.Tensor, Vocabulary, Stream, float], tuple[torch.Tensor, torch.Tensor]]
    draw: Draw
    sample: Sample
    causal_conv: Callable[[torch.Tensor, torch.Tensor, Stream, Recurrent | None], torch.Tensor]
    gated_delta: GatedDeltaOp
    pack_experts: Callable[[torch.Tensor, torch.Tensor, str], Experts]
    route: Callable[[torch.Tensor, int, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
    route_grouped: Callable[[torch.Tensor, torch.Tensor, int, int, int, float], tuple[torch.Tensor, torch.Tensor]]
    planning: Planning
    why: dict[str, str]
    recordable: bool


OpsFor = Callable[[OpShape], Ops]  # for the shape of a layer: see `choose`
