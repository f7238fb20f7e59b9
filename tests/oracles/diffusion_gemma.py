"""DiffusionGemma by transformers in float32: tiny random models, and what one step of denoising makes of a canvas."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fixtures import tiny
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

VOCAB_SIZE = 199
_COMMON = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 96, "intermediate_size": 72, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32,
    "num_global_key_value_heads": 1, "sliding_window": 11, "num_experts": 8, "top_k_experts": 3,
    "moe_intermediate_size": 40, "max_position_embeddings": 2048, "use_bidirectional_attention": "vision",
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "final_logit_softcapping": 12.0,
}  # fmt: skip
_VISION = {
    "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
    "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64,
}  # fmt: skip
_PLAIN: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": _COMMON,
    "odd": _COMMON | {  # heads that the compiled kernels do not take, one expert a row, keys of as many heads
        "hidden_size": 52, "intermediate_size": 37, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 12,
        "global_head_dim": 24, "num_experts": 5, "top_k_experts": 1, "moe_intermediate_size": 13, "sliding_window": 3,
        "use_bidirectional_attention": None,
    },
    "wide": _COMMON | {  # a window wider than most prompts here; all experts chosen; full layers between
        "sliding_window": 40, "num_experts": 4, "top_k_experts": 4, "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2, "num_global_key_value_heads": None,
    },
}  # fmt: skip


def config(name: str, canvas_length: int = 16, **changed: Any) -> DiffusionGemmaConfig:
    text = copy.deepcopy(CONFIGS[name] | changed)
    return DiffusionGemmaConfig(text_config=text, vision_config=dict(_VISION), canvas_length=canvas_length)


@cache
def model(name: str) -> DiffusionGemmaForBlockDiffusion:
    """Weights large enough that probabilities are far from uniform; the scales of both modes differ."""
    return _random(config(name))


@cache
def saved(name: str, canvas_length: int = 16) -> Path:
    """A checkpoint that transformers saved, of the shared tokenizer's vocabulary."""
    directory = Path(tempfile.mkdtemp(prefix="diffusion-gemma-", dir=tiny.root()))
    _random(config(name, canvas_length, vocab_size=tiny.tokenizer().get_vocab_size())).save_pretrained(directory)
    tiny.save_tokenizer(directory)
    return directory


def load(directory: Path) -> DiffusionGemmaForBlockDiffusion:
    """transformers' model of a checkpoint."""
    return DiffusionGemmaForBlockDiffusion.from_pretrained(directory, **_PLAIN).eval()


@torch.no_grad()
def canvas_logits(
    model: DiffusionGemmaForBlockDiffusion, prompt: Sequence[int], canvas: Sequence[int],
    before: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """[W, V] after one step. before [W, V]: the logits on which it is conditioned, None at a first step."""
    return several_logits(model, prompt, [canvas], [before])[0]


@torch.no_grad()
def several_logits(
    model: DiffusionGemmaForBlockDiffusion, prompt: Sequence[int], canvases: Sequence[Sequence[int]],
    before: Sequence[torch.Tensor | None] = (),
) -> list[torch.Tensor]:  # fmt: skip
    """The same for each of several canvases, one after the other, on one prompt's cache."""
    encoded = model.model.encoder(input_ids=torch.tensor([list(prompt)]))
    name = "cache" if hasattr(encoded, "cache") else "past_key_values"  # in 5.24, and before
    found = []
    for i, canvas in enumerate(canvases):
        soft = before[i] if before else None
        found.append(
            model(
                decoder_input_ids=torch.tensor([list(canvas)]), **{name: getattr(encoded, name)},
                self_conditioning_logits=None if soft is None else soft[None],
            ).logits[0]
        )  # fmt: skip
    return found


def soft_embeddings(model: DiffusionGemmaForBlockDiffusion, logits: torch.Tensor) -> torch.Tensor:
    """[W, C]: what a step that gave these logits [W, V] expects of its canvas."""
    table = model.model.decoder.embed_tokens
    return logits.softmax(-1) @ table.weight.data * table.scalar_embed_scale


def _random(made: DiffusionGemmaConfig) -> DiffusionGemmaForBlockDiffusion:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = DiffusionGemmaForBlockDiffusion._from_config(made, **_PLAIN)
        scalars = [(place, x) for place, x in model.named_buffers() if place.endswith("layer_scalar")]
        for place, weight in [*model.named_parameters(), *scalars]:
            positive = "norm" in place or "scal" in place
            weight.data = torch.rand_like(weight) + 0.5 if positive else torch.randn_like(weight) * 0.15
    return model.eval()
