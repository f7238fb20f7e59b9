"""The choice of each row's experts in plain torch: the specification of the other files here."""

from __future__ import annotations

import torch

from ramet.ops.shape import takes_all

NO_SHARE = 1e-20  # what `route_grouped` adds to a sum of shares, which may all vanish


takes = takes_all


def route(logits: torch.Tensor, n_chosen: int, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row: logits [N, E] -> (chosen [N, k] int64, weights [N, k] float32).

    Those of the k largest shares of a softmax over all, descending, of equal logits the lower expert first; where
    logits differ by less than shares can show, either may be. Their shares are made to sum to 1 and, where scale [E]
    float32 is given, multiplied by their experts' scales (Gemma 4), without it rounded to the dtype of logits
    (Qwen3.5-MoE).
    """
    shares, order = logits.softmax(-1, dtype=torch.float32).sort(dim=-1, descending=True, stable=True)
    chosen, weights = order[:, :n_chosen], shares[:, :n_chosen]
    weights = weights / weights.sum(-1, keepdim=True)
    return chosen, weights.to(logits.dtype).float() if scale is None else weights * scale[chosen]


def route_grouped(
    logits: torch.Tensor, bias: torch.Tensor, n_chosen: int, n_groups: int, n_kept: int, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row, of its best groups alone: logits [N, E] and bias [E], float32 -> (chosen [N, k] int64,
    weights [N, k] float32).

    A row's shares are sigmoids; with the bias they only decide what is chosen. The experts stand in n_groups groups,
    of two at least, side by side; the n_kept groups whose two largest biased shares have the largest sums are kept, and
    of theirs those with the k largest biased shares are chosen, descending, the lower of two equal ones first. Weights
    are the plain shares of the chosen, made to sum to `scale` (LLaDA2).
    """
    shares = logits.sigmoid()
    biased = (shares + bias).unflatten(1, (n_groups, -1))
    two = biased.topk(2, -1).values
    left_out = (two[..., 0] + two[..., 1]).sort(dim=-1, descending=True, stable=True).indices[:, n_kept:]
    biased = biased.scatter(1, left_out[..., None].expand(-1, -1, biased.shape[2]), -torch.inf).flatten(1)
    chosen = biased.sort(dim=-1, descending=True, stable=True).indices[:, :n_chosen]
    weights = shares.gather(1, chosen)
    return chosen, weights / (weights.sum(-1, keepdim=True) + NO_SHARE) * scale
