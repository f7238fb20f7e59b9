"""Model: SDAR's layers in plain torch, to be trained; parameters have the names of checkpoints."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Of the model, by the names of config.json."""

    vocab_size: int
    hidden_size: int = 320
    intermediate_size: int = 896
    num_hidden_layers: int = 8
    num_attention_heads: int = 6
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0

    def config(self, *, block: int, mask: int, stop: int, end: int) -> dict[str, Any]:
        """What config.json holds."""
        return {
            "architectures": ["SDARForCausalLM"], "model_type": "sdar", **asdict(self), "hidden_act": "silu",
            "attention_bias": False, "rope_scaling": None, "tie_word_embeddings": True, "use_sliding_window": False,
            "sliding_window": None, "block_size": block, "mask_token_id": mask, "bos_token_id": None,
            "eos_token_id": stop, "pad_token_id": end, "torch_dtype": "bfloat16", "use_cache": False,
        }  # fmt: skip


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        wide, narrow = (n * shape.head_dim for n in (shape.num_attention_heads, shape.num_key_value_heads))
        hidden, inner = shape.hidden_size, shape.intermediate_size
        self.shape = shape
        self.input_layernorm, self.post_attention_layernorm = _norm(hidden, shape), _norm(hidden, shape)
        self.self_attn = nn.ModuleDict({
            "q_proj": _linear(hidden, wide), "k_proj": _linear(hidden, narrow), "v_proj": _linear(hidden, narrow),
            "o_proj": _linear(wide, hidden), "q_norm": _norm(shape.head_dim, shape),
            "k_norm": _norm(shape.head_dim, shape),
        })  # fmt: skip
        self.mlp = nn.ModuleDict({
            "gate_proj": _linear(hidden, inner), "up_proj": _linear(hidden, inner), "down_proj": _linear(inner, hidden),
        })  # fmt: skip

    def forward(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], bias: torch.Tensor) -> torch.Tensor:
        x = x + self._attention(self.input_layernorm(x), turns, bias)
        y = self.post_attention_layernorm(x)
        wide: torch.Tensor = F.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y)
        made: torch.Tensor = x + self.mlp["down_proj"](wide)
        return made

    def _attention(self, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], bias: torch.Tensor) -> torch.Tensor:
        own = self.self_attn
        q, k, v = (own[f"{part}_proj"](x).unflatten(2, (-1, self.shape.head_dim)).transpose(1, 2) for part in "qkv")
        q, k = _turned(own["q_norm"](q), turns), _turned(own["k_norm"](k), turns)
        made = _attended(q.to(v.dtype), k.to(v.dtype), v, bias)
        mixed: torch.Tensor = own["o_proj"](made.transpose(1, 2).flatten(2))
        return mixed


class Model(nn.Module):
    """The head is the embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        layers = [Layer(shape) for _ in range(shape.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = _norm(shape.hidden_size, shape)
        self.apply(_initialize)
        for layer in layers:  # so that the sum of all layers is as large as one would be
            for last in (layer.self_attn["o_proj"], layer.mlp["down_proj"]):
                assert isinstance(last, nn.Linear)
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.num_hidden_layers))

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """[N, T, C] of ids and positions [N, T]; seen [N, T, T]: which keys each row sees."""
        x = self.embed_tokens(tokens)
        turns = self._turns(positions)
        dtype = torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype
        bias = torch.zeros(seen.shape, dtype=dtype, device=x.device).masked_fill_(~seen, -torch.inf)[:, None]
        for layer in self.layers:
            x = layer(x, turns, bias)
        normed: torch.Tensor = self.norm(x)
        return normed

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [..., V]."""
        return F.linear(hidden, self.embed_tokens.weight)

    def _turns(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        half = self.shape.head_dim // 2
        rates = self.shape.rope_theta ** (-torch.arange(half, device=positions.device, dtype=torch.float32) / half)
        angles = positions[:, None, :, None].float() * rates
        return angles.cos(), angles.sin()  # [N, 1, T, D / 2]

    def save(self, directory: Path, config: dict[str, Any]) -> None:
        """config.json and model.safetensors, in bfloat16."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        weights = {
            f"model.{name}": weight.detach().to("cpu", torch.bfloat16).contiguous()
            for name, weight in self.state_dict().items()
        }
        save_file(weights, directory / "model.safetensors", {"format": "pt"})

    @classmethod
    def load(cls, directory: Path) -> Model:
        config = json.loads((directory / "config.json").read_text())
        model = cls(Shape(**{name: config[name] for name in Shape.__dataclass_fields__}))
        weights = load_file(directory / "model.safetensors")
        model.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items()})
        return model


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """[N, H, T, D] of q [N, H, T, D], k and v [N, G, T, D] and bias [N, 1, T, T]."""
    n = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _norm(size: int, shape: Shape) -> nn.RMSNorm:
    return nn.RMSNorm(size, eps=shape.rms_norm_eps)


def _linear(inner: int, outer: int) -> nn.Linear:
    return nn.Linear(inner, outer, bias=False)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)


def _turned(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Pairs (i, i + D / 2) turned by their angles."""
    cos, sin = turns
    a, b = x.float().chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def seen(documents: torch.Tensor, copies: torch.Tensor, blocks: torch.Tensor, stages: torch.Tensor) -> torch.Tensor:
    """[N, T, T]: which keys each row sees, of what each row is [N, T]; see training/data.py."""
    q, k = (slice(None), slice(None), None), (slice(None), None)
    same = documents[q] == documents[k]
    before = (copies[k] == 0) & (blocks[k] < blocks[q])
    own = (copies[k] == copies[q]) & (blocks[k] == blocks[q]) & (stages[k] <= stages[q])
    return same & (before | own)
