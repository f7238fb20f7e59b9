"""Masks: what the reply of a model that fills in blocks of masks is read from.

Such a model predicts what stands at a mask, not what follows a row: a label is read at the first mask behind the
prompt. As in training, the masks go on to the end of the block, whose rows see each other. The trunk ends with a block
too, for what stands at its last rows would depend on what follows; the rest of the state begins each branch.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ramet.decide.branch import QuestionBranch
from ramet.decide.plan import Subtree
from ramet.denoise.block_config import BlockConfig
from ramet.tree import IntArray


def masked(subtree: Subtree, masking: BlockConfig) -> Subtree:
    """A subtree whose prompts are each read at their last row, as one whose prompts are followed by masks."""
    n_trunk = len(subtree.trunk) // masking.size * masking.size
    rest = subtree.trunk[n_trunk:]
    branches = [_masked(branch, rest, masking) for branch in subtree.branches]
    return Subtree(subtree.trunk[:n_trunk], branches, masking.size)


def _masked(branch: QuestionBranch, rest: IntArray, masking: BlockConfig) -> QuestionBranch:
    assert (branch.parents < 0).all()
    assert (branch.read_rows == branch.lengths - 1).all()
    pieces, n_prompts = [], branch.lengths + len(rest)
    for own, n_prompt in zip(np.split(branch.tokens, np.cumsum(branch.lengths)[:-1]), n_prompts.tolist(), strict=True):
        pieces += [rest, own, np.full(masking.n_masks(n_prompt), masking.mask, np.int32)]
    return replace(
        branch,
        tokens=np.concatenate(pieces),
        lengths=-(-(n_prompts + 1) // masking.size) * masking.size,
        blocks=np.full(len(branch.lengths), masking.size, np.int32),
        read_rows=n_prompts,
    )
