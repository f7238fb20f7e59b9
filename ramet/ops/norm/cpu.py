"""Normalisation, rotary embedding and gating on the CPU: compiled kernels, one pass each, or the reference's torch."""

from __future__ import annotations

from ctypes import c_float, c_int64

import torch

from ramet.ops.native import Library, library, pointer
from ramet.ops.norm import reference


def rms_norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """As `reference.rms_norm`. Rows of x may lie apart."""
    found = _library_for(x)
    if found is None or weight is None:
        return reference.rms_norm(x, weight, eps)
    x, weight = _rows(x), _weight(weight)
    out = torch.empty(x.shape, dtype=x.dtype)
    found.functions.ramet_rms_norm(
        pointer(x), c_int64(x.stride(0)), pointer(weight), c_float(eps), pointer(out), *x.shape, *_how(x)
    )
    return out


def rotate(
    qkv: torch.Tensor,
    rotation: torch.Tensor,
    n_heads: int,
    n_kv_heads: int,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `reference.rotate`, in place: q, k and v returned are views of qkv."""
    found = _library_for(qkv)
    if found is None:
        return reference.rotate(qkv, rotation, n_heads, n_kv_heads, q_norm, k_norm, eps)
    qkv, rotation = _rows(qkv), rotation.float().contiguous()
    head_dim = qkv.shape[1] // (n_heads + 2 * n_kv_heads)
    if 2 * rotation.shape[2] != head_dim:
        return reference.rotate(qkv, rotation, n_heads, n_kv_heads, q_norm, k_norm, eps)
    q_norm, k_norm = (None if w is None else _weight(w) for w in (q_norm, k_norm))
    found.functions.ramet_rotate(
        pointer(qkv), c_int64(qkv.stride(0)), pointer(rotation), n_heads, n_kv_heads, head_dim,
        pointer(q_norm), pointer(k_norm), c_float(eps), len(qkv), *_how(qkv),
    )  # fmt: skip
    heads = qkv.unflatten(1, (n_heads + 2 * n_kv_heads, head_dim))
    q, k, v = heads.split([n_heads, n_kv_heads, n_kv_heads], 1)
    return q, k, v


rms_norm_gated = reference.rms_norm_gated
sigmoid_mul = reference.sigmoid_mul


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """As `reference.gated`."""
    found = _library_for(gate_up)
    if found is None or activation != "silu":
        return reference.gated(gate_up, activation)
    gate_up = _rows(gate_up)
    n_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(n_rows, width, dtype=gate_up.dtype)
    found.functions.ramet_silu_mul(
        pointer(gate_up), c_int64(gate_up.stride(0)), pointer(out), n_rows, width, *_how(gate_up)
    )
    return out


def _library_for(x: torch.Tensor) -> Library | None:
    return library() if x.dtype in (torch.bfloat16, torch.float32) else None


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(1) == 1 else x.contiguous()


def _weight(weight: torch.Tensor) -> torch.Tensor:
    return weight.float().contiguous()


def _how(x: torch.Tensor) -> tuple[int, int]:
    return int(x.dtype == torch.bfloat16), torch.get_num_threads()
