"""Plans: the names of weights that most checkpoints share, for families to put together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch

from ramet.errors import CheckpointError
from ramet.families.weight import Plan, Weight
from ramet.layers.attention import AttentionShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape

LAYER_NORMS = {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
OUTPUT_NORMS = {  # of layers with norms on what their halves add
    "input_norm": "input_layernorm",
    "mixer_post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp_post_norm": "post_feedforward_layernorm",
}
QKV = ("q_proj", "kv_proj")
QK_NORMS = {"q_norm": "q_norm", "k_norm": "k_norm"}
Transform = Callable[[torch.Tensor], torch.Tensor] | None

_MOST_OF_FILES, _SPARE = 2, 1024  # parameters that a plan may have, times those of the files, and so many more


def prefix(names: Collection[str]) -> str:
    """What the names of the text model's parameters begin with: a multimodal checkpoint has it inside another, one of
    an encoder and a decoder as the latter."""
    inner = ("model.language_model.", "model.decoder.")
    return next((each for each in inner if any(name.startswith(each) for name in names)), "model.")


def add_one(weight: torch.Tensor) -> torch.Tensor:
    """For norms whose checkpoints hold the difference from one; float32, in which the layers use it."""
    return weight.float() + 1


def outer_plan(
    shape: ModelShape,
    names: Collection[str],
    transform: Transform,
    *,
    embedding: str = "embed_tokens",
) -> Plan:
    """Embedding, final norm (with the family's `transform` of norms), and the head where the checkpoint has one."""
    at, vocabulary, hidden = prefix(names), shape.vocab_size, shape.hidden_size
    plan = {
        "embedding": Weight((f"{at}{embedding}.weight",), (vocabulary, hidden)),
        "final_norm": Weight((f"{at}norm.weight",), (hidden,), transform),
    }
    if "lm_head.weight" in names:
        plan["head"] = Weight(("lm_head.weight",), (vocabulary, hidden))
    return plan


def layers_plan(shape: ModelShape, names: Collection[str], own: Callable[[LayerShape, str], Plan]) -> Plan:
    """What `own` names of each layer, given its shape and what its parameters' names begin with. Raises CheckpointError
    where that comes to many more names than the checkpoint's, `names`."""
    at, n_parts = prefix(names), 0
    found: Plan = {}
    for i, layer in enumerate(shape.layers):
        plan = own(layer, f"{at}layers.{i}")
        found |= {f"{i}.{name}": weight for name, weight in plan.items()}
        n_parts += sum(len(weight.parts) for weight in plan.values())
        if n_parts > _MOST_OF_FILES * len(names) + _SPARE:
            raise CheckpointError(
                f"config.json: the first {i + 1} of num_hidden_layers {len(shape.layers)} have {n_parts} parameters, "
                f"and the files hold {len(names)} tensors: they belong to different models; download both again"
            )
    return found


def norms(at: str, names: Mapping[str, str], size: int, transform: Transform = None) -> Plan:
    """Weights of norms, our name -> the name below `at`."""
    return {ours: Weight((f"{at}.{theirs}.weight",), (size,), transform) for ours, theirs in names.items()}


def products(at: str, sizes: dict[str, tuple[tuple[str, ...], int, int]], biased: Collection[str] = ()) -> Plan:
    """Weights of products, our name -> (the names below `at`, rows in all, columns), and the biases of those that are
    `biased`."""
    plan = {}
    for name, (parts, n_out, n_in) in sizes.items():
        plan[name] = Weight(tuple(f"{at}.{part}.weight" for part in parts), (n_out, n_in))
        if name in biased:
            plan[f"{name}_bias"] = Weight(tuple(f"{at}.{part}.bias" for part in parts), (n_out,))
    return plan


def attention_plan(hidden: int, mixer: AttentionShape, at: str) -> Plan:
    """The products of attention as nearly every checkpoint names them; with a gate the queries' has twice the rows."""
    wide, narrow = mixer.n_heads * mixer.head_dim, mixer.n_kv_heads * mixer.head_dim
    sizes = {
        "q_proj": (("q_proj",), wide * (2 if mixer.gated else 1), hidden),
        "kv_proj": (("k_proj", "v_proj"), 2 * narrow, hidden),
        "o_proj": (("o_proj",), hidden, wide),
    }
    return products(at, sizes, mixer.biased)


def mlp_plan(shape: ModelShape, layer: LayerShape, at: str) -> Plan:
    """The gated MLP as nearly every checkpoint names it."""
    assert isinstance(layer.mlp, MLPShape)
    return gated_products(f"{at}.mlp", layer.mlp, shape.hidden_size)


def gated_products(at: str, mlp: MLPShape, hidden: int) -> Plan:
    """The products of a gated MLP."""
    size = mlp.size
    sizes = {"gate_up_proj": (("gate_proj", "up_proj"), 2 * size, hidden), "down_proj": (("down_proj",), hidden, size)}
    return products(at, sizes, sizes if mlp.bias else ())
