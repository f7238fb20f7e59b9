"""transformers' DiffusionGemma on the same random weights: a pass over the prompts, then one over the canvases.

Both are one call of its own. It has the fastest of its attentions and of its experts, which are its defaults (torch's
fused attention, grouped products); all prompts of a batch are equally long, so that it needs no padding. It computes
the logits of every row of a canvas, because no argument selects rows or columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from transformers import DiffusionGemmaForBlockDiffusion

from ramet.bench.core.canvases import CanvasRead
from ramet.bench.core.random_model import RandomModel, free_bytes, scrambled
from ramet.bench.core.random_weights import RandomWeights
from ramet.tree import FloatArray, IntArray

_SPARE_BYTES = 6 << 30  # that stay free where the peer has weights of its own
_ENCODER, _DECODER = "model.encoder.language_model.", "model.decoder."  # two names of one tensor


class DiffusionPeer:
    """transformers' model, on the device and in the dtype of ours. shared: whether its weights are views of one block,
    for which there is always room, instead of copies."""

    def __init__(self, source: RandomModel) -> None:
        device = source.decoder.device
        self.name = f"transformers {transformers.__version__}"
        self.shared = free_bytes(device) < source.weights.n_bytes + _SPARE_BYTES
        with torch.device("meta"):
            model = DiffusionGemmaForBlockDiffusion._from_config(source.config, dtype=source.decoder.dtype)
        _fill_computed(model, device)
        _fill(model, source.weights, shared=self.shared)
        if source.even:
            _route_evenly(model)
        self.model = model.requires_grad_(requires_grad=False).eval()

    @property
    def how(self) -> dict[str, str]:
        """Which of its implementations it takes."""
        config = self.model.config
        return {
            "attention": str(config._attn_implementation),
            "experts": str(config._experts_implementation),
            "weights": "views of one block" if self.shared else "its own",
        }

    @torch.inference_mode()
    def __call__(self, batch: Sequence[CanvasRead]) -> FloatArray:
        """Logits [reads, columns] of the slots of a batch of one form, each with a single canvas."""
        device = self.model.device
        prompts = _stacked([read.prompt for read in batch], device)
        canvases = _stacked([read.canvases[0] for read in batch], device)
        logits = self.model(input_ids=prompts, decoder_input_ids=canvases).logits
        slots = logits[:, list(batch[0].form.slots)]
        columns = _stacked([read.columns for read in batch], device)
        found = slots.gather(2, columns[:, None].expand(-1, slots.shape[1], -1))
        labels: FloatArray = found.flatten(0, 1).float().cpu().numpy()
        return labels


def _stacked(ids: Sequence[IntArray], device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.stack(ids).astype(np.int64)).to(device)


def _route_evenly(model: Any) -> None:
    """Its routers see what ours see in place of the logits, at the same cost."""
    for place, module in model.named_modules():
        if place.endswith(".router.proj"):
            module.register_forward_hook(lambda _module, _inputs, logits: scrambled(logits))


def _fill_computed(model: Any, device: torch.device) -> None:
    """What no checkpoint has: rotary embeddings' frequencies, and the scale of embeddings."""
    for module in model.modules():
        if type(module).__name__.endswith("TextRotaryEmbedding"):
            made = type(module)(module.config)
            for name, buffer in made.named_buffers():
                module.register_buffer(name, buffer.to(device), persistent=False)
        elif hasattr(module, "scalar_embed_scale"):
            scale = torch.tensor(module.scalar_embed_scale, device=device)
            module.register_buffer("embed_scale", scale, persistent=False)


def _fill(model: Any, weights: RandomWeights, *, shared: bool) -> None:
    """Every parameter of the text model; the tower for images gets memory and no more."""
    made: dict[str, torch.Tensor] = {}  # by their names below the decoder, so that two names of one tensor are one
    found: dict[str, torch.Tensor] = {}
    for name, empty in model.state_dict().items():
        theirs = name if name in weights.parts else name.replace(_ENCODER, _DECODER)
        if theirs not in weights.parts:
            continue
        if theirs not in made:
            part = weights.part(theirs).view(empty.shape)
            made[theirs] = part if shared else part.clone()
        found[name] = made[theirs]
    model.load_state_dict(found, strict=False, assign=True)
    model.tie_weights()
    for place, module in model.named_modules():
        if place.endswith(("vision_tower", "embed_vision")):
            module.to_empty(device=weights.device)
    left = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    assert not left, left
