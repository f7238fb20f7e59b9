"""A slow, plain evaluator of trees: one forward pass of a `transformers` model for each leaf's path.

It shares nothing with Ramet's own pass, so it says what any pass must give.
"""

from __future__ import annotations

import numpy as np
import torch
from transformers import PreTrainedModel

from ramet.tree import Reads, Tree


@torch.no_grad()
def evaluate(model: PreTrainedModel, tree: Tree) -> Reads:
    """The tree's reads, in their order, from logits in float32 of every root-to-leaf path by itself.

    Positions count from 0 at the root. `model` should hold float32 weights, in eval mode. Trees whose
    blocks are all 1 need no mask; for others the model must take a dense one (eager or sdpa, no sliding window).
    """
    wanted: dict[int, list[int]] = {}  # segment: its reads
    for read, segment in enumerate(tree.read_segments.tolist()):
        wanted.setdefault(segment, []).append(read)
    rows: dict[int, torch.Tensor] = {}  # read: logits [vocabulary]
    for leaf in sorted(set(range(len(tree.lengths))) - set(tree.parents.tolist())):
        path = [*ancestors(tree, leaf), leaf]
        reads = [read for segment in path for read in wanted.pop(segment, [])]
        if reads:
            places = tree.origins[tree.read_segments[reads]] + tree.read_rows[reads]
            rows |= dict(zip(reads, _forward(model, tree, path, places.tolist()), strict=True))
    return _reads(tree, [rows[read] for read in range(len(tree.read_rows))])


def ancestors(tree: Tree, segment: int) -> list[int]:
    """Indices of the segments above one, root first."""
    path: list[int] = []
    while (segment := int(tree.parents[segment])) >= 0:
        path.insert(0, segment)
    return path


def path_tokens(tree: Tree, segment: int) -> list[int]:
    """Token ids from the root to the end of a segment: the prompt that its last row continues."""
    path = [*ancestors(tree, segment), segment]
    pieces = [tree.tokens[tree.starts[s] : tree.starts[s] + tree.lengths[s]] for s in path]
    return [int(t) for t in np.concatenate(pieces)]


def visible(tree: Tree, path: list[int]) -> torch.Tensor:
    """Which keys each row of a path sees, bool [T, T]: ancestors whole, its own segment by `block`."""
    lengths, blocks = tree.lengths[path], tree.blocks[path]
    segments = torch.from_numpy(np.repeat(np.arange(len(path)), lengths))
    positions = torch.arange(len(segments))
    group = positions // torch.from_numpy(np.repeat(blocks, lengths).astype(np.int64))
    same = segments[:, None] == segments[None, :]
    return (segments[:, None] > segments[None, :]) | (same & (group[None, :] <= group[:, None]))


def _forward(model: PreTrainedModel, tree: Tree, path: list[int], rows: list[int]) -> torch.Tensor:
    """Logits [rows, vocabulary] of some rows of a path."""
    ids = torch.tensor([path_tokens(tree, path[-1])])
    mask = None
    if not bool((tree.blocks[path] == 1).all()):
        seen = visible(tree, path)
        mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[None, None]
    positions = torch.arange(ids.shape[1])[None]
    output = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=torch.tensor(rows)
    )
    return output.logits[0].float()  # type: ignore[no-any-return]


def _reads(tree: Tree, rows: list[torch.Tensor]) -> Reads:
    due = tree.normalize.tolist()
    sums = [float(row.double().logsumexp(-1)) if asked else float("nan") for row, asked in zip(rows, due, strict=True)]
    columns = np.split(tree.columns.astype(np.int64), tree.offsets[1:-1])
    logits = [row[torch.from_numpy(places)].numpy() for row, places in zip(rows, columns, strict=True)]
    joined = np.concatenate(logits) if logits else np.zeros(0, np.float32)
    return Reads(joined.astype(np.float32), np.array(sums, np.float32), tree.offsets)
