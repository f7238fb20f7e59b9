"""Replies in blocks of masks, one by one and slowly: every row that ever ran is a row of one dense pass.

A row that was kept is seen by later rows as it was computed: with what was known then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from oracles.block_models import BlockModel
from oracles.blocks import Blocks, Chunk, Mode

from ramet.denoise.noise import Noise
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import FloatArray, IntArray


@dataclass
class Told:
    """A reply: its tokens, how it ended, and the steps that it took."""

    tokens: list[int] = field(default_factory=list)
    finish: str | None = None
    n_steps: int = 0


@dataclass
class Rows:
    """Every row that ran: its token, its position and the rows that it saw; `kept` are those that later rows see. Rows
    that were not kept stay, for kept ones have seen them."""

    tokens: list[int]
    positions: list[int]
    seen: list[list[int]]
    kept: list[int]

    @classmethod
    def of(cls, prefix: Sequence[int], block: int) -> Rows:
        places = list(range(len(prefix)))
        return cls(list(prefix), places, [list(range((at // block + 1) * block)) for at in places], places.copy())

    def logits(self, model: BlockModel, chunk: Chunk) -> torch.Tensor:
        """Of the chunk's rows."""
        n, own = len(self.tokens), chunk.positions // chunk.block
        self.seen += [[*self.kept, *(n + j for j in range(len(own)) if own[j] <= at)] for at in own]
        self.tokens, self.positions = self.tokens + chunk.tokens.tolist(), self.positions + chunk.positions.tolist()
        self.kept += range(n, n + chunk.n_kept)
        mask = torch.zeros(len(self.tokens), len(self.tokens), dtype=torch.bool)
        for row, seen in enumerate(self.seen):
            mask[row, seen] = True
        return model.logits(torch.tensor(self.tokens), mask, torch.tensor(self.positions))[n:]


def decode(
    model: BlockModel, prompt: Sequence[int], *, block: int, mask: int, sizes: Sequence[int], max_tokens: int,
    stop_ids: Collection[int] = (), mode: Mode = "chunk", unmasking: UnmaskPolicy | None = None,
    temperature: float = 0.0, seed: int = 0, ahead: bool = False,
) -> Told:  # fmt: skip
    """The reply to a prompt in chunks of `sizes`, over and over."""
    ids = np.array(prompt, np.int32)
    blocks = Blocks(ids, block=block, mask=mask, max_tokens=max_tokens, stop_ids=stop_ids, mode=mode)
    rows, told, noise = Rows.of(prompt[: blocks.n_prefix], block), Told(), Noise.of(seed, ids)
    settle = unmasking or UnmaskPolicy(block=block)
    while blocks.finish is None:
        size = sizes[told.n_steps % len(sizes)]
        chunk = blocks.chunk(size, ahead=ahead and size == block)
        logits = rows.logits(model, chunk)[torch.from_numpy(chunk.read).long()]
        tokens, confidence, entropy = drawn(logits, mask, temperature, blocks.uniforms(noise, chunk))
        step = blocks.step
        passed = settle.passed(confidence, entropy, step) if len(confidence) else np.zeros(0, np.bool_)
        accepted = settle.accepted(passed, confidence, entropy) if len(confidence) else passed
        told.tokens += blocks.take(chunk, tokens, accepted)
        told.n_steps += 1
    told.finish = blocks.finish
    return told


def drawn(
    logits: torch.Tensor, mask: int, temperature: float, uniforms: FloatArray
) -> tuple[IntArray, FloatArray, FloatArray]:
    """Tokens [M], how likely they are at temperature 1, and the entropies."""
    logits = logits.double().clone()
    logits[:, mask] = -torch.inf
    p = logits.softmax(-1)
    if temperature:
        sums = (logits / temperature).softmax(-1).cumsum(-1)
        tokens = torch.searchsorted(sums, torch.from_numpy(uniforms).double()[:, None], right=True)[:, 0]
    else:
        tokens = logits.argmax(-1)
    likely = p.gather(1, tokens[:, None])[:, 0]
    entropy = -(p * p.clamp(min=1e-300).log()).sum(-1)
    return tokens.numpy().astype(np.int32), likely.numpy().astype(np.float32), entropy.numpy().astype(np.float32)
