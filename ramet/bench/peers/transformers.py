"""transformers on the same weights: every question a whole sequence, the state in front of each.

It has the best of what its own interface offers for this work: no cache is written, the head runs on the last
row alone, attention is torch's fused one, and as all sequences of a shape are equally long the batch needs no padding
and no mask. Its head still computes the whole vocabulary of those rows, because no argument selects columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

from ramet.bench.core.samples import JsonObject
from ramet.bench.core.timing import Run, clocked
from ramet.bench.peers.peer import Contestant, Prompts
from ramet.errors import CheckpointError
from ramet.tree import FloatArray
from ramet.weights.checkpoint import Checkpoint

_HOW = {"attn_implementation": "sdpa"}


class TransformersPeer:
    """A model of transformers' own class: read by transformers where `source` is a directory of its own making, else
    filled with the tensors that our loader reads."""

    ratios = (
        ("batch", "ours", "batch_over_ours"),
        ("loop", "ours", "loop_over_ours"),
        ("pass", "floor", "pass_over_floor"),
    )

    def __init__(self, source: str | Path, checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> None:
        self.name = f"transformers {transformers.__version__}"
        model = _loaded(Path(source), dtype) if Path(source).is_dir() else _filled(checkpoint, dtype)
        self.model = model.to(device)

    def contestants(self, prompts: Prompts, columns: Sequence[int]) -> dict[str, Contestant]:
        """batch: all questions as one batch. loop: one question after another."""

        def batch(prompts: Prompts) -> Run:
            return partial(clocked, lambda: self._labels(_whole(prompts), columns))

        def loop(prompts: Prompts) -> Run:
            each = _whole(prompts)
            return partial(clocked, lambda: np.concatenate([self._labels([ids], columns) for ids in each]))

        return {"batch": batch, "loop": loop}

    def notes(self) -> JsonObject:
        return {}

    @torch.inference_mode()
    def _labels(self, sequences: list[list[int]], columns: Sequence[int]) -> FloatArray:
        """The labels' logits [sequences, columns]."""
        ids = torch.tensor(sequences, device=self.model.device)
        logits = self.model(input_ids=ids, logits_to_keep=1, use_cache=False).logits
        labels: FloatArray = logits[:, -1, list(columns)].float().cpu().numpy()
        return labels


def _whole(prompts: Prompts) -> list[list[int]]:
    return [ids for prompt in prompts for ids in prompt.whole()]


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
    missing = set(parameters) - checkpoint.names
    extra = checkpoint.names - set(parameters) - {"lm_head.weight"}
    if missing or extra:
        raise CheckpointError(f"{checkpoint.name}: transformers wants {sorted(missing)} and not {sorted(extra)}")
    for name, parameter in parameters.items():
        tensor = checkpoint.tensor(name)
        if tensor.shape != parameter.shape:
            sizes = f"{tuple(tensor.shape)}, not {tuple(parameter.shape)}"
            raise CheckpointError(f"{checkpoint.name}: {name} is {sizes}")
        parameter.copy_(tensor)
    return model
