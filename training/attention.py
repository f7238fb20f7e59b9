"""Attention: which of torch's kernels is the fastest here for attention under a mask, found by trying."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.data import Packs
from training.model import Shape, seen

_TRIED = (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
_PLAIN = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_CLOSE = 0.05  # of the largest number that is right


def fastest(packs: Packs, shape: Shape, say: Callable[[str], None]) -> list[SDPBackend]:
    """Forwards and backwards at the sizes of a step. Those that fail, or give something else, are passed over."""
    if packs.tokens.device.type != "cuda":
        return [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    n, t = packs.tokens.shape
    size = (n, shape.num_attention_heads, t, shape.head_dim)
    given = [torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    visible = seen(packs.documents, packs.copies, packs.blocks, packs.stages)
    bias = torch.zeros(visible.shape, device="cuda", dtype=torch.bfloat16).masked_fill_(~visible, -torch.inf)[:, None]
    with sdpa_kernel(SDPBackend.MATH):
        right, _ = _timed([each[:4].detach().float().requires_grad_() for each in given], bias[:4].float())
    found = {}
    for backend in _TRIED:
        try:
            with sdpa_kernel(backend):
                made, seconds = _timed(given, bias)
        except RuntimeError as error:
            say(f"attention by {backend.name}: {str(error).splitlines()[0]}")
            continue
        off = max(float((a[:4].float() - b).abs().max() / b.abs().max()) for a, b in zip(made, right, strict=True))
        say(f"attention by {backend.name}: {seconds * 1e3:.2f} ms, off by {off:.4f}")
        if off < _CLOSE:
            found[backend] = seconds
    return [min(found, key=lambda each: found[each]), *_PLAIN] if found else _PLAIN


def _timed(given: list[torch.Tensor], bias: torch.Tensor) -> tuple[list[torch.Tensor], float]:
    """What comes out and its gradients, and seconds there and back."""
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        started = time.perf_counter()
        q, k, v = given
        made = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        gradients = torch.autograd.grad(made.float().square().sum(), given)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return [made.detach(), *gradients], best
