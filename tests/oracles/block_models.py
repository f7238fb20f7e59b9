"""SDAR, SDAR-MoE and LLaDA2.0 in plain torch, float32, under the names that checkpoints have: one sequence at a time,
the whole of it, with a dense mask. It shares nothing with Ramet's own pass."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fixtures import tiny
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer
from torch.nn.functional import silu

from ramet.config import make_config
from ramet.families import FAMILIES

Weights = dict[str, torch.Tensor]

_COMMON: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_scaling": None,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": False,
}  # fmt: skip
_SDAR = _COMMON | {
    "rope_theta": 1e6, "attention_bias": False, "use_sliding_window": False, "sliding_window": None,
    "bos_token_id": 1, "eos_token_id": 1, "fuse_cross_entropy": True, "micro_forward": False, "debug": False,
    "ep_size": 1, "attn_implementation": "sdpa",
}  # fmt: skip
RAW: dict[str, dict[str, Any]] = {  # config.json without vocab_size
    "sdar": _SDAR | {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "intermediate_size": 96},
    "sdar_moe": _SDAR | {
        "model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"], "intermediate_size": 200, "num_experts": 8,
        "num_experts_per_tok": 3, "moe_intermediate_size": 40, "norm_topk_prob": True, "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
    "llada2_moe": _COMMON | {
        "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"], "intermediate_size": 80,
        "first_k_dense_replace": 1, "num_experts": 12, "num_experts_per_tok": 3, "num_shared_experts": 2,
        "moe_intermediate_size": 24, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "score_function": "sigmoid", "norm_topk_prob": True, "moe_router_enable_expert_bias": True,
        "use_qk_norm": True, "use_qkv_bias": False, "use_bias": False, "norm_head": False, "router_dtype": "fp32",
        "rope_theta": 6e5, "partial_rotary_factor": 0.5, "pad_token_id": 1, "eos_token_id": 1,
    },
}  # fmt: skip


@dataclass(frozen=True)
class BlockModel:
    """`raw` is what config.json holds. Called as a model of `transformers`, with the mask of tests/oracles/trees.py."""

    raw: Mapping[str, Any]
    weights: Weights

    @classmethod
    def random(cls, name: str, vocab_size: int, seed: int = 0, **changed: Any) -> BlockModel:
        """Weights large enough that probabilities are far from uniform."""
        raw = RAW[name] | {"vocab_size": vocab_size} | changed
        generator = torch.Generator().manual_seed(seed)
        return cls(raw, {name: _drawn(name, shape, generator) for name, shape in shapes(raw).items()})

    @property
    def config(self) -> Any:
        return make_config(self.raw, FAMILIES, "config.json")

    def state_dict(self) -> Weights:
        return self.weights

    @torch.no_grad()
    def __call__(
        self,
        *,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        logits_to_keep: torch.Tensor | None = None,
        **_: Any,
    ) -> SimpleNamespace:
        n = input_ids.shape[1]
        seen = torch.ones(n, n, dtype=torch.bool).tril() if attention_mask is None else attention_mask[0, 0] == 0
        logits = self.logits(input_ids[0], seen)
        return SimpleNamespace(logits=(logits if logits_to_keep is None else logits[logits_to_keep])[None])

    def logits(self, ids: torch.Tensor, seen: torch.Tensor, positions: torch.Tensor | None = None) -> torch.Tensor:
        """[T, V] of ids [T]; seen [T, T]: which keys each row sees; positions [T], 0 1 .. unless given."""
        llada = self.raw["model_type"] == "llada2_moe"
        x = self.weights[f"model.{'word_embeddings' if llada else 'embed_tokens'}.weight"][ids]
        for i in range(self.raw["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x = x + self._attention(self._norm(x, f"{at}.input_layernorm"), at, seen, positions)
            x = x + self._mlp(self._norm(x, f"{at}.post_attention_layernorm"), i, f"{at}.mlp")
        return self._linear(self._norm(x, "model.norm"), "lm_head")

    def _attention(self, x: torch.Tensor, at: str, seen: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        n, own = self.raw["num_key_value_heads"], self.raw["num_attention_heads"]
        if self.raw["model_type"] == "llada2_moe":
            at += ".attention"
            norms, out = ("query_layernorm", "key_layernorm"), "dense"
            heads = self._linear(x, f"{at}.query_key_value").unflatten(1, (own + 2 * n, -1))
            q, k, v = heads[:, :own], heads[:, own : own + n], heads[:, own + n :]
        else:
            at += ".self_attn"
            norms, out = ("q_norm", "k_norm"), "o_proj"
            q, k, v = (self._linear(x, f"{at}.{part}_proj").unflatten(1, (-1, self.raw["head_dim"])) for part in "qkv")
        where = torch.arange(len(x)) if positions is None else positions
        q, k = (self._turned(self._norm(each, f"{at}.{norm}"), where) for each, norm in zip((q, k), norms, strict=True))
        made = []
        for head in range(own):
            shared = head // (own // n)
            scores = q[:, head] @ k[:, shared].T / self.raw["head_dim"] ** 0.5
            made.append(scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v[:, shared])
        return self._linear(torch.cat(made, 1), f"{at}.{out}")

    def _turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [T, H, D]: pairs (i, i + R / 2) of the first R numbers turned by position * theta^(-2 i / R)."""
        n = int(self.raw["head_dim"] * self.raw.get("partial_rotary_factor", 1))
        pair = torch.arange(n // 2)
        angles = positions[:, None] * self.raw["rope_theta"] ** (-2.0 * pair / n)
        turned = torch.complex(x[..., : n // 2], x[..., n // 2 : n]) * torch.polar(torch.ones(1), angles)[:, None]
        return torch.cat((turned.real, turned.imag, x[..., n:]), -1)

    def _mlp(self, x: torch.Tensor, i: int, at: str) -> torch.Tensor:
        if "num_experts" not in self.raw or i < self.raw.get("first_k_dense_replace", 0):
            return self._gated(x, at)
        weights = torch.tensor([self._shares(scores, at) for scores in self._linear(x, f"{at}.gate")])  # [T, E]
        every = [self._gated(x, f"{at}.experts.{e}") * weights[:, e, None] for e in range(weights.shape[1])]
        made = torch.stack(every).sum(0)
        return made + self._gated(x, f"{at}.shared_experts") if self.raw.get("num_shared_experts") else made

    def _shares(self, scores: torch.Tensor, at: str) -> list[float]:
        """The weight of each expert for one row, 0 for those that it does not take."""
        llada = self.raw["model_type"] == "llada2_moe"
        shares = (scores.sigmoid() if llada else scores.softmax(-1)).tolist()
        order = self._biased(shares, at) if llada else shares
        best = sorted(range(len(shares)), key=lambda e: -order[e])[: self.raw["num_experts_per_tok"]]
        total = sum(shares[e] for e in best) / self.raw.get("routed_scaling_factor", 1)
        return [share / total if e in best else 0.0 for e, share in enumerate(shares)]

    def _biased(self, shares: list[float], at: str) -> list[float]:
        """By what experts are chosen; minus infinity outside the best groups."""
        biased = (torch.tensor(shares) + self.weights[f"{at}.gate.expert_bias"]).tolist()
        size = len(biased) // self.raw["n_group"]
        sums = [sum(sorted(biased[first : first + size])[-2:]) for first in range(0, len(biased), size)]
        best = sorted(range(len(sums)), key=lambda g: -sums[g])[: self.raw["topk_group"]]
        return [b if e // size in best else -torch.inf for e, b in enumerate(biased)]

    def _gated(self, x: torch.Tensor, at: str) -> torch.Tensor:
        gate, up = (self._linear(x, f"{at}.{part}_proj") for part in ("gate", "up"))
        return self._linear(silu(gate) * up, f"{at}.down_proj")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        bias = self.weights.get(f"{name}.bias")
        product = x @ self.weights[f"{name}.weight"].T
        return product if bias is None else product + bias

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        root = (x.square().mean(-1, keepdim=True) + self.raw["rms_norm_eps"]).sqrt()
        return x / root * self.weights[f"{name}.weight"]

    def save(self, directory: Path, dtype: torch.dtype = torch.float32, **changed: Any) -> Path:
        """config.json and model.safetensors; `changed` are keys of the former, None leaves one out."""
        directory.mkdir(parents=True, exist_ok=True)
        raw = {key: value for key, value in {**self.raw, **changed}.items() if key not in changed or value is not None}
        (directory / "config.json").write_text(json.dumps(raw), encoding="utf-8")
        weights = {name: weight.to(dtype).contiguous() for name, weight in self.weights.items()}
        save_file(weights, directory / "model.safetensors", {"format": "pt"})
        return directory


MASK = "<|MASK|>"


@functools.cache
def saved(name: str, *, suffix: str = "", **changed: Any) -> tuple[Path, BlockModel]:
    """A checkpoint directory with the shared tokenizer, which here has a mask too, and its model. suffix: of the
    directory's name, which is to tell SDAR's blocks, of 4 rows else; `changed` are keys of config.json."""
    made = Tokenizer.from_str(tiny.tokenizer().to_str())
    made.add_special_tokens([AddedToken(MASK, normalized=False, special=True)])
    ids = {"eos_token_id": made.token_to_id("<|endoftext|>"), "mask_token_id": made.token_to_id(MASK)}
    rows = {"block_size": 4} if name.startswith("sdar") and not suffix else {}
    model = BlockModel.random(name, made.get_vocab_size() + 5, **ids | rows | changed)
    directory = model.save(Path(tempfile.mkdtemp(prefix=f"{name}-", suffix=suffix, dir=tiny.root())))
    tiny.save_tokenizer(directory)
    made.save(str(directory / "tokenizer.json"))
    return directory, model


def block_causal(n: int, size: int) -> torch.Tensor:
    """[n, n]: a row sees its own block and those before it."""
    of = torch.arange(n) // size
    return of[None, :] <= of[:, None]


def shapes(raw: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every parameter of a published checkpoint."""
    llada, hidden, wide = raw["model_type"] == "llada2_moe", raw["hidden_size"], raw["num_attention_heads"]
    n, size = raw["num_key_value_heads"], raw["head_dim"]
    found: dict[str, tuple[int, ...]] = {
        f"model.{'word_embeddings' if llada else 'embed_tokens'}.weight": (raw["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (raw["vocab_size"], hidden),
    }
    for i in range(raw["num_hidden_layers"]):
        at = f"model.layers.{i}"
        found |= {f"{at}.{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
        if llada:
            own = f"{at}.attention"
            found |= {f"{own}.{name}_layernorm.weight": (size,) for name in ("query", "key")}
            found |= {
                f"{own}.query_key_value.weight": ((wide + 2 * n) * size, hidden),
                f"{own}.dense.weight": (hidden, wide * size),
            }
        else:
            own = f"{at}.self_attn"
            found |= {f"{own}.{name}_norm.weight": (size,) for name in "qk"}
            found |= {f"{own}.{p}_proj.weight": (k * size, hidden) for p, k in (("q", wide), ("k", n), ("v", n))}
            found[f"{own}.o_proj.weight"] = (hidden, wide * size)
        found |= _mlp_shapes(raw, i, f"{at}.mlp")
    return found


def _mlp_shapes(raw: Mapping[str, Any], i: int, at: str) -> dict[str, tuple[int, ...]]:
    hidden = raw["hidden_size"]
    if "num_experts" not in raw or i < raw.get("first_k_dense_replace", 0):
        return _gated_shapes(at, raw["intermediate_size"], hidden)
    n, size = raw["num_experts"], raw["moe_intermediate_size"]
    found: dict[str, tuple[int, ...]] = {f"{at}.gate.weight": (n, hidden)}
    for e in range(n):
        found |= _gated_shapes(f"{at}.experts.{e}", size, hidden)
    if raw["model_type"] == "llada2_moe":
        found[f"{at}.gate.expert_bias"] = (n,)
    if shared := raw.get("num_shared_experts", 0):
        found |= _gated_shapes(f"{at}.shared_experts", shared * size, hidden)
    return found


def _gated_shapes(at: str, size: int, hidden: int) -> dict[str, tuple[int, ...]]:
    rows = {"gate": (size, hidden), "up": (size, hidden), "down": (hidden, size)}
    return {f"{at}.{part}_proj.weight": shape for part, shape in rows.items()}


def _drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    if "norm" in name:
        return torch.rand(shape, generator=generator) + 0.5
    return torch.randn(shape, generator=generator) * 0.15
