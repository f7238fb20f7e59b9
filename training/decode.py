"""Decode: the plain loop that the model is scored by, many replies at once, each step the whole of every sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from training.data import BLOCK
from training.model import Model, seen


@dataclass(frozen=True, slots=True)
class Ids:
    mask: int
    ends: frozenset[int]


@dataclass(slots=True)
class Reply:
    """ids: up to and including the one that ends it, if one does. n_steps: passes that read masks. n_passes: those and
    the one that keeps each block behind which more follows."""

    ids: list[int]
    n_steps: int = 0
    n_passes: int = 0


@torch.no_grad()
def decode(
    model: Model, prompts: Sequence[Sequence[int]], ids: Ids, *, most: int = 192, threshold: float = 0.9
) -> list[Reply]:
    """Greedy, block by block: each step every mask above the threshold is filled in, or else the surest. Done where
    everything up to an ending id is known."""
    device = model.embed_tokens.weight.device
    length = -(-(max(map(len, prompts)) + most) // BLOCK) * BLOCK
    tokens = torch.full((len(prompts), length), ids.mask, device=device)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt, device=device)
    starts = [len(prompt) // BLOCK * BLOCK for prompt in prompts]
    replies = [Reply([]) for _ in prompts]
    live = list(range(len(prompts)))
    while live:
        index = torch.tensor(live, device=device)
        block = torch.tensor([starts[at] for at in live], device=device)[:, None] + torch.arange(BLOCK, device=device)
        until = max(starts[at] for at in live) + BLOCK
        confidence, drawn = _read(model, tokens[index, :until], block, ids)
        held = tokens[index].gather(1, block)
        masked = held == ids.mask
        confidence = confidence.masked_fill(~masked, -1)
        accepted = (confidence > threshold) | (confidence == confidence.max(1, keepdim=True).values)
        held = torch.where(masked & accepted, drawn, held)
        tokens[index[:, None], block] = held
        live = [
            at
            for at, row in zip(live, held.tolist(), strict=True)
            if _goes_on(at, row, replies, prompts, starts, ids, most)
        ]
    for reply, row, prompt in zip(replies, tokens.tolist(), prompts, strict=True):
        reply.ids = _told(row[len(prompt) : len(prompt) + most], ids)
    return replies


@torch.no_grad()
def at_first_mask(model: Model, prompts: Sequence[Sequence[int]], ids: Ids) -> torch.Tensor:
    """Logits [N, V] of the first token of each reply, read in a block of masks behind the prompt."""
    device = model.embed_tokens.weight.device
    tokens = torch.full((len(prompts), max(map(len, prompts)) // BLOCK * BLOCK + BLOCK), ids.mask, device=device)
    for row, prompt in zip(tokens, prompts, strict=True):
        row[: len(prompt)] = torch.tensor(prompt, device=device)
    places = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    return _logits(model, tokens, places, ids)[:, 0]


def _read(model: Model, tokens: torch.Tensor, block: torch.Tensor, ids: Ids) -> tuple[torch.Tensor, torch.Tensor]:
    """Confidence and likeliest id [N, B] of each row of the block."""
    return torch.max(_logits(model, tokens, block, ids).softmax(-1), -1)


def _logits(model: Model, tokens: torch.Tensor, block: torch.Tensor, ids: Ids) -> torch.Tensor:
    """[N, B, V], of rows [N, B]."""
    n, length = tokens.shape
    positions = torch.arange(length, device=tokens.device).expand(n, -1)
    same = torch.zeros_like(positions)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.is_cuda):
        hidden = model(tokens, positions, seen(same, same, positions // BLOCK, same))
        hidden = hidden.gather(1, block[..., None].expand(-1, -1, hidden.shape[2]))
    logits = model.head(hidden.float())
    logits[..., ids.mask] = -torch.inf
    return logits


def _goes_on(
    at: int,
    row: list[int],
    replies: list[Reply],
    prompts: Sequence[Sequence[int]],
    starts: list[int],
    ids: Ids,
    most: int,
) -> bool:
    """Count a step of a reply whose block now holds `row`; go to the next block where all of it is known."""
    replies[at].n_steps += 1
    replies[at].n_passes += 1
    start, n_prompt = starts[at], len(prompts[at])
    known = row.index(ids.mask) if ids.mask in row else BLOCK
    if ids.ends.intersection(row[max(n_prompt - start, 0) : known]) or start + known >= n_prompt + most:
        return False
    if known == BLOCK:
        starts[at] += BLOCK
        replies[at].n_passes += 1
    return True


def _told(ids: list[int], known: Ids) -> list[int]:
    """Up to and including the first that ends a reply."""
    end = next((at + 1 for at, token in enumerate(ids) if token in known.ends), len(ids))
    return ids[:end]
