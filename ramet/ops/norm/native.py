"""Normalisation, rotary embedding and gating on the CPU by compiled kernels, one pass each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from ctypes import c_float, c_int64

import torch

from ramet.cache.kv import KeyValue
from ramet.ops.attention.native import NativeAttention
from ramet.ops.native import IS_BF16, Library, NativeOp, pointer
from ramet.ops.norm import reference
from ramet.round import Stream


class NativeNorm(NativeOp):
    """In bfloat16 and float32; the functions of `reference`."""

    rotation = staticmethod(reference.rotation)

    def __init__(self, found: Library) -> None:
        super().__init__(found)
        self._keep = NativeAttention(found).keep

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """As `reference.rms_norm`. Rows and heads of x may lie apart."""
        dtype = dtype or x.dtype
        x, weight = _dense(x), None if weight is None else _weight(weight)
        out = torch.empty(x.shape, dtype=dtype)
        self._functions.ramet_rms_norm(
            pointer(x), *_strides(x), _n_heads(x), pointer(weight), c_float(eps), pointer(out), *_size(x),
            IS_BF16[dtype], *_how(x),
        )  # fmt: skip
        return out

    def expert_norms(
        self, x: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor, router: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `reference.expert_norms`. Rows of x may lie apart."""
        x, dense, experts, router = _dense(x), _weight(dense), _weight(experts), router.contiguous()
        assert x.dtype == torch.float32
        n, width = x.shape
        out = torch.empty(3, n, width, dtype=router.dtype)
        self._functions.ramet_expert_norms(
            pointer(x), c_int64(x.stride(0)), pointer(dense), pointer(experts), pointer(router), c_float(width**-0.5),
            c_float(eps), pointer(out), n, width, *_how(router),
        )  # fmt: skip
        return out[0], out[1], out[2]

    def join(
        self,
        x: torch.Tensor,
        parts: Sequence[tuple[torch.Tensor, torch.Tensor]],
        post: torch.Tensor | None,
        scale: torch.Tensor | None,
        kinds: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """As `reference.join`. Rows of x and of the parts may lie apart."""
        assert len(parts) == (1 if post is None else 2)
        x, parts = _dense(x), [(_dense(part), _weight(weight)) for part, weight in parts]
        post, scale = None if post is None else _weight(post), None if scale is None else _weight(scale)
        assert x.dtype == torch.float32
        assert all(part.dtype == parts[0][0].dtype and part.shape == x.shape for part, _ in parts)
        assert kinds is None or (kinds.dtype == torch.int32 and len(kinds) == len(x))
        out = _like(x)
        (first, first_weight), (second, second_weight) = parts[0], parts[-1] if post is not None else (None, None)
        self._functions.ramet_join(
            pointer(x), c_int64(x.stride(0)), pointer(first), c_int64(first.stride(0)), pointer(first_weight),
            pointer(second), c_int64(0 if second is None else second.stride(0)), pointer(second_weight), pointer(post),
            pointer(scale), pointer(kinds), c_float(eps), pointer(out), *x.shape, *_how(first),
        )  # fmt: skip
        return out

    def rotate(
        self,
        qkv: torch.Tensor,
        rotation: torch.Tensor,
        n_heads: int,
        n_kv_heads: int,
        q_norm: torch.Tensor | None,
        k_norm: torch.Tensor | None,
        eps: float,
        pages: KeyValue | None = None,
        stream: Stream | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `reference.rotate`, in place: q, k and v returned are views of qkv."""
        qkv, rotation = _dense(qkv), rotation.float().contiguous()
        head_dim = qkv.shape[1] // (n_heads + 2 * n_kv_heads)
        q_norm, k_norm = (None if w is None else _weight(w) for w in (q_norm, k_norm))
        self._functions.ramet_rotate(
            pointer(qkv), c_int64(qkv.stride(0)), pointer(rotation), n_heads, n_kv_heads, head_dim, rotation.shape[2],
            pointer(q_norm), pointer(k_norm), c_float(eps), len(qkv), *_how(qkv),
        )  # fmt: skip
        k, v = (_heads(qkv, n_heads + i * n_kv_heads, n_kv_heads, head_dim) for i in range(2))
        if pages is not None and stream is not None:
            self._keep(pages, k, v, stream)
        return _heads(qkv, 0, n_heads, head_dim), k, v

    def gated(self, gate_up: torch.Tensor, activation: str) -> torch.Tensor:
        """As `reference.gated`."""
        gate_up = _dense(gate_up)
        n_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty(n_rows, width, dtype=gate_up.dtype)
        self._functions.ramet_gated(
            pointer(gate_up), c_int64(gate_up.stride(0)), pointer(out), n_rows, width, int(activation == "gelu_tanh"),
            *_how(gate_up),
        )  # fmt: skip
        return out

    def sigmoid_mul(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """As `reference.sigmoid_mul`. Rows of x and gate may lie apart."""
        assert gate.dtype == x.dtype
        x, gate = _dense(x), _dense(gate)
        out = _like(x)
        self._functions.ramet_sigmoid_mul(
            pointer(x), c_int64(x.stride(0)), pointer(gate), c_int64(gate.stride(0)), pointer(out), *x.shape, *_how(x)
        )
        return out


def _dense(x: torch.Tensor) -> torch.Tensor:
    """The same, with numbers side by side along the last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _like(x: torch.Tensor) -> torch.Tensor:
    """Of the same shape and dtype, rows one behind another."""
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _heads(x: torch.Tensor, first: int, n: int, size: int) -> torch.Tensor:
    """[T, n, size]: n heads of x [T, C], from number `first` on."""
    return x.as_strided((len(x), n, size), (x.stride(0), size, 1), x.storage_offset() + first * size)


def _strides(x: torch.Tensor) -> tuple[c_int64, c_int64]:
    """From row to row of [T, C] or [T, H, C], and from head to head."""
    return c_int64(x.stride(0)), c_int64(x.stride(1) if x.dim() == 3 else 0)


def _n_heads(x: torch.Tensor) -> int:
    return x.shape[1] if x.dim() == 3 else 1


def _size(x: torch.Tensor) -> tuple[int, int]:
    """How many vectors x holds, and how long each is."""
    return math.prod(x.shape[:-1]), x.shape[-1]


def _weight(weight: torch.Tensor) -> torch.Tensor:
    return weight.float().contiguous()


def _how(x: torch.Tensor) -> tuple[int, int]:
    return IS_BF16[x.dtype], torch.get_num_threads()
