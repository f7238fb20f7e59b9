"""Normalisation, rotary embedding and gating in plain torch: the specification of the other files here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from ramet.cache.kv import KeyValue
from ramet.ops.attention.reference import keep
from ramet.ops.shape import takes_all
from ramet.round import Stream

takes = takes_all


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * weight (Zhang & Sennrich 2019), in float32, rounded once to `dtype` (None: x's).

    x [T, C] or [T, H, C], weight [C] float32; None is a weight of ones.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide if weight is None else wide * weight).to(dtype or x.dtype)


def expert_norms(
    x: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor, router: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the three parts of a layer with experts beside an MLP see of x [N, C] float32 (Gemma 4), each rounded once
    to the dtype of router: its norms with the weights dense and experts [C] float32, and the one without a weight times
    router [C] times C ** -0.5."""
    dtype = router.dtype
    seen = rms_norm(x, router.float() * len(router) ** -0.5, eps, dtype)
    return rms_norm(x, dense, eps, dtype), rms_norm(x, experts, eps, dtype), seen


def join(
    x: torch.Tensor,
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]],
    post: torch.Tensor | None,
    scale: torch.Tensor | None,
    kinds: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """x [N, C] float32 plus what half a layer makes of it, [N, C] float32.

    parts: one or two tensors [N, C], each normed with its weight [C] float32; two are added and normed again with post
    [C] float32, which one has not. scale float32 multiplies the sum: [1], or [S] by kinds [N] int32.
    """
    assert len(parts) == (1 if post is None else 2)
    both = rms_norm(*parts[0], eps, torch.float32)
    if post is not None:
        both = rms_norm(both + rms_norm(*parts[1], eps, torch.float32), post, eps)
    out = x + both
    if scale is None:
        return out
    return out * (scale[:1] if kinds is None else scale.index_select(0, kinds)[:, None])


def rotation(positions: torch.Tensor, frequencies: torch.Tensor, scale: float) -> torch.Tensor:
    """[N, 2, R/2] float32: cosines and sines of each position's angles, times scale; positions [N] int32, frequencies
    [R/2] float32."""
    angles = positions[:, None].float() * frequencies
    return torch.stack((angles.cos(), angles.sin()), 1) * scale


def rotate(
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
    """Per-head norm (where weights are given) and rotary embedding of a merged projection.

    qkv [T, (Hq + 2 Hk) * D]; rotation [T, 2, R/2] float32: cosines, then sines, of each row's position, times the
    model's attention scale. Of each head's D values the first R are rotated, their halves against each other
    (x1 cos - x2 sin, x2 cos + x1 sin: RoPE as in GPT-NeoX and transformers). q_norm, k_norm [D] float32 (Qwen3).
    Returns q [T, Hq, D], k and v [T, Hk, D]; may work in place, so qkv must not be used afterwards. With pages, and
    the stream that the rows are of, k and v are kept in them too (attention/reference.keep).
    """
    heads = qkv.unflatten(1, (n_heads + 2 * n_kv_heads, -1))
    q, k, v = heads.split([n_heads, n_kv_heads, n_kv_heads], 1)
    q, k = _turn(q, rotation, q_norm, eps), _turn(k, rotation, k_norm, eps)
    if pages is not None and stream is not None:
        keep(pages, k, v, stream)
    return q, k, v


def _turn(x: torch.Tensor, rotation: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    wide = x.float()
    if weight is not None:
        wide = rms_norm(wide, weight, eps)
    cos, sin = rotation[:, None, 0], rotation[:, None, 1]
    half = cos.shape[-1]
    a, b, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).to(x.dtype)


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """gate_up [T, 2 I]: activation(first half) * second half, [T, I] (gated linear units, Shazeer 2020).

    `activation` is "silu", or "gelu_tanh": x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))).
    """
    gate, up = gate_up.float().chunk(2, -1)
    gate = functional.silu(gate) if activation == "silu" else functional.gelu(gate, approximate="tanh")
    return (gate * up).to(gate_up.dtype)


def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """x * sigmoid(gate), both [T, C] (the output gate of Qwen3.5's attention)."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
