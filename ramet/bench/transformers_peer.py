"""transformers on the same weights: every question a whole sequence, the state in front of each.

It has the best of what its own interface offers for this work: no cache is written, the head runs on the last
row alone, attention is torch's fused one, and as all sequences of a shape are equally long the batch needs no padding
and no mask. Its head still computes the whole vocabulary of those rows, because no argument selects columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ramet.bench.shapes import Prompt
from ramet.errors import CheckpointError
from ramet.tree import FloatArray
from ramet.weights.checkpoint import Checkpoint

_HOW = {"attn_implementation": "sdpa"}


class TransformersPeer:
    """A model of transformers' own class: read by transformers where `source` is a directory of its own making, else
    filled with the tensors that our loader reads."""

    def __init__(self, source: str | Path, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        self.model = _loaded(Path(source), dtype) if Path(source).is_dir() else _filled(checkpoint, dtype)

    @torch.inference_mode()
    def batch(self, prompt: Prompt, columns: Sequence[int]) -> FloatArray:
        """All questions as one batch; the labels' logits [questions, columns]."""
        return self._labels(torch.tensor(prompt.whole()), columns)

    @torch.inference_mode()
    def loop(self, prompt: Prompt, columns: Sequence[int]) -> FloatArray:
        """One question after another; the labels' logits [questions, columns]."""
        return np.concatenate([self._labels(torch.tensor([ids]), columns) for ids in prompt.whole()])

    def _labels(self, ids: torch.Tensor, columns: Sequence[int]) -> FloatArray:
        logits = self.model(input_ids=ids, logits_to_keep=1, use_cache=False).logits
        labels: FloatArray = logits[:, -1, list(columns)].float().numpy()
        return labels


def _loaded(source: Path, dtype: torch.dtype) -> Any:
    """Raises CheckpointError where transformers would make up a parameter."""
    model, info = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True, **_HOW)
    if info["missing_keys"]:
        raise CheckpointError(f"{source}: transformers wants {sorted(info['missing_keys'])}")
    return model.eval()


@torch.no_grad()
def _filled(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """Every parameter has its tensor, none missing, none left over, each of its own shape."""
    model = AutoModelForCausalLM.from_config(checkpoint.config, dtype=dtype, **_HOW).eval()
    parameters = dict(model.named_parameters())  # a tied head is listed once, as the embedding
    missing, extra = set(parameters) - checkpoint.names, checkpoint.names - set(parameters) - {"lm_head.weight"}
    if missing or extra:
        raise CheckpointError(f"{checkpoint.name}: transformers wants {sorted(missing)} and not {sorted(extra)}")
    for name, parameter in parameters.items():
        tensor = checkpoint.tensor(name)
        if tensor.shape != parameter.shape:
            sizes = f"{tuple(tensor.shape)}, not {tuple(parameter.shape)}"
            raise CheckpointError(f"{checkpoint.name}: {name} is {sizes}")
        parameter.copy_(tensor)
    return model
