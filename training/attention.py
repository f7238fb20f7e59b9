"""Attention: which of torch's kernels is the fastest here for attention under a mask, found by trying."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.model import Shape

_TRIED = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
_PLAIN = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def fastest(device: str, n_rows: int, n_tokens: int, shape: Shape, say: Callable[[str], None]) -> list[SDPBackend]:
    """Forwards and backwards at the sizes of a step. Those that fail, or are off, are passed over."""
    if device != "cuda":
        return [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    found = {}
    size = (n_rows, shape.num_attention_heads, n_tokens, shape.head_dim)
    q, k, v = (torch.randn(size, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    hidden = torch.rand(n_rows, 1, n_tokens, n_tokens, device=device) < 0.7
    hidden.diagonal(dim1=2, dim2=3).fill_(False)
    bias = torch.zeros(hidden.shape, device=device, dtype=torch.bfloat16).masked_fill_(hidden, -torch.inf)
    with sdpa_kernel(SDPBackend.MATH):
        right = F.scaled_dot_product_attention(q[:2].float(), k[:2].float(), v[:2].float(), attn_mask=bias[:2].float())
    for backend in _TRIED:
        try:
            with sdpa_kernel(backend):
                made = _timed(q, k, v, bias)
        except RuntimeError as error:
            say(f"attention by {backend.name}: {str(error).splitlines()[0]}")
            continue
        off = (made[0][:2].float() - right).abs().max().item()
        say(f"attention by {backend.name}: {made[1] * 1e3:.2f} ms, off by {off:.4f}")
        if off < 0.03:
            found[backend] = made[1]
    return [min(found, key=lambda each: found[each]), *_PLAIN] if found else _PLAIN


def _timed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, float]:
    """What comes out, and seconds there and back."""
    best = float("inf")
    for _ in range(4):
        torch.cuda.synchronize()
        started = time.perf_counter()
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        torch.autograd.grad(made.float().square().sum(), (q, k, v))
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return made.detach(), best
