"""Configurations of model types that transformers does not know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from oracles.block_models import RAW, BlockModel
from transformers import CONFIG_MAPPING

from ramet.config import config_of, make_config, raw_config, rope_frequencies
from ramet.config_schema import COUNTING
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.layers.attention import AttentionShape
from ramet.layers.experts import ExpertsShape, GroupsShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape

SCHEMAS = {name: family.schema for name, family in FAMILIES.items() if family.schema is not None}
# The keys of JetLM/SDAR-4B-Chat, of SDAR-30B-A3B and of inclusionAI/LLaDA2.0-mini.
PUBLISHED: dict[str, dict[str, Any]] = {
    "sdar": {
        "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 32768,
    },
    "sdar_moe": {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
    "llada2_moe": {
        "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 20, "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 157184, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 512, "n_group": 8, "topk_group": 4, "num_shared_experts": 1,
    },
}  # fmt: skip


def shape(name: str, **changed: Any) -> ModelShape:
    """Of the tiny configuration, changed; None takes a key out."""
    raw = {key: value for key, value in (RAW[name] | {"vocab_size": 99} | changed).items() if value is not None}
    return FAMILIES[name].shape(make_config(raw, FAMILIES, "config.json"))


def test_transformers_still_does_not_know_them() -> None:
    """Where it does, its own class is to be read."""
    assert not set(SCHEMAS) & set(CONFIG_MAPPING)
    assert set(SCHEMAS) == set(RAW)


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_shapes(name: str) -> None:
    raw, found = PUBLISHED[name], shape(name, **PUBLISHED[name])
    assert (found.vocab_size, found.hidden_size, len(found.layers)) == (
        raw["vocab_size"], raw["hidden_size"], raw["num_hidden_layers"],
    )  # fmt: skip
    mixers = {layer.mixer for layer in found.layers}
    heads, kept = raw["num_attention_heads"], raw["num_key_value_heads"]
    assert mixers == {AttentionShape(heads, kept, 128, 128**-0.5, qk_norm=True)}


def test_the_layers_of_llada() -> None:
    """The first is dense, and two experts are shared by the tiny one."""
    dense, *rest = (layer.mlp for layer in shape("llada2_moe", **PUBLISHED["llada2_moe"]).layers)
    assert dense == MLPShape(5120)
    assert set(rest) == {ExpertsShape(256, 8, 512, 512, groups=GroupsShape(8, 4, 2.5))}
    assert shape("llada2_moe").layers[1].mlp == ExpertsShape(12, 3, 24, 48, groups=GroupsShape(4, 2, 2.5))
    assert {type(layer.mlp) for layer in shape("llada2_moe", first_k_dense_replace=0).layers} == {ExpertsShape}
    alone = shape("llada2_moe", num_shared_experts=0).layers[-1].mlp
    assert isinstance(alone, ExpertsShape)
    assert alone.shared_size == 0
    assert shape("sdar_moe").layers[0].mlp == ExpertsShape(8, 3, 40)


@pytest.mark.parametrize(("name", "changed", "message"), [
    ("sdar", {"hidden_size": None}, "hidden_size: Field required"),
    ("sdar", {"head_dim": "128"}, "head_dim: Input should be a valid integer"),
    ("sdar", {"num_hidden_layers": 0}, "num_hidden_layers: Input should be greater than 0"),
    ("sdar", {"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
    ("sdar", {"use_sliding_window": True}, "use_sliding_window is True"),
    ("sdar", {"layer_types": ["linear_attention"] * 3}, "layer_types has linear_attention"),
    ("sdar", {"layer_types": ["sliding_attention"] * 3, "sliding_window": 8}, "layer_types has sliding_attention"),
    ("sdar", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; sdar is implemented for whole heads"),
    ("sdar", {"logits_scaling": 8.0}, "logits_scaling is 8.0, which sdar is not implemented for"),
    ("sdar_moe", {"rotary_dim": 8}, "rotary_dim is 8"),
    ("sdar_moe", {"routed_scaling_factor": 2.5}, "routed_scaling_factor is 2.5"),
    ("llada2_moe", {"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
    ("llada2_moe", {"sliding_window": 4096, "use_sliding_window": True}, "sliding_window is 4096"),
    ("sdar", {"rope_theta": None}, "rope_theta is missing"),
    ("sdar", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "of the kind 'dynamic'; served are default, linear"),
    ("sdar", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "no original_max_position_embeddings"),
    ("sdar_moe", {"norm_topk_prob": False}, "norm_topk_prob is False"),
    ("sdar_moe", {"norm_topk_prob": None}, "norm_topk_prob: Field required"),
    ("sdar_moe", {"mlp_only_layers": [1]}, r"mlp_only_layers is \[1\]"),
    ("sdar_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
    ("sdar_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok is 9, of num_experts 8"),
    ("llada2_moe", {"expert_capacity": 64}, "expert_capacity is 64: .* depend on its whole block"),
    ("llada2_moe", {"score_function": "softmax"}, "score_function is 'softmax'"),
    ("llada2_moe", {"score_function": None}, "score_function: Field required"),
    ("llada2_moe", {"norm_topk_prob": False}, "norm_topk_prob is False"),
    ("llada2_moe", {"moe_router_enable_expert_bias": False}, "moe_router_enable_expert_bias is False"),
    ("llada2_moe", {"use_qk_norm": False}, "use_qk_norm is False"),
    ("llada2_moe", {"use_qkv_bias": True}, "use_qkv_bias is True"),
    ("llada2_moe", {"use_bias": True}, "use_bias is True"),
    ("llada2_moe", {"norm_head": True}, "norm_head is True"),
    ("llada2_moe", {"n_group": 5}, "num_experts 12 makes no n_group 5 of two or more"),
    ("llada2_moe", {"n_group": 12, "topk_group": 3}, "no n_group 12 of two or more"),
    ("llada2_moe", {"topk_group": 5}, "num_experts_per_tok 3 of topk_group 5 of n_group 4 cannot be chosen"),
    ("llada2_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok 7 of topk_group 2"),
    ("llada2_moe", {"partial_rotary_factor": None}, "partial_rotary_factor or rotary_dim must say"),
    ("llada2_moe", {"rotary_dim": 16}, "partial_rotary_factor or rotary_dim must say"),
])  # fmt: skip
def test_what_is_refused(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        shape(name, **changed)


@pytest.mark.parametrize("name", sorted(RAW))
def test_keys_at_their_neutral_values_pass(name: str) -> None:
    """Published files have many: a window that is off, soft caps that are none, a scale of one."""
    idle = {key: values[-1] for key, values in COUNTING.items() if key not in SCHEMAS[name].model_fields}
    idle |= {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28, "is_causal": False}
    assert shape(name, **idle) == shape(name)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: vocab_size: .*; hidden_size: .*; hidden_act: "):
        make_config(
            {"model_type": "sdar"} | RAW["sdar"] | {"hidden_size": -1, "hidden_act": 3}, FAMILIES, "config.json"
        )


@pytest.mark.parametrize("name", sorted(RAW))
def test_a_file(name: str, tmp_path: Path) -> None:
    """Keys of training frameworks are ignored, and where newer releases put the rotary embedding is read."""
    BlockModel.random(name, 99).save(tmp_path, use_deepep=True, skip_checkpoint={"a": 1})
    config = config_of(raw_config(tmp_path, FAMILIES), FAMILIES, "here")
    assert config.model_type == name
    assert config.get_text_config() is config
    assert config.tie_word_embeddings is False
    assert not hasattr(config, "use_deepep")
    rope = {"rope_type": "default", "rope_theta": RAW[name]["rope_theta"]}
    moved = {**RAW[name], "vocab_size": 99, "rope_theta": None, "rope_scaling": None, "rope_parameters": rope}
    again = make_config(moved, FAMILIES, "config.json")
    torch.testing.assert_close(rope_frequencies(again), rope_frequencies(config), rtol=0, atol=0)


@pytest.mark.parametrize(("told", "size"), [
    ({"partial_rotary_factor": 0.5}, 8), ({"partial_rotary_factor": None, "rotary_dim": 4}, 4),
    ({"partial_rotary_factor": 0.5, "rotary_dim": 8}, 8), ({"partial_rotary_factor": 1.0}, 16),
])  # fmt: skip
@pytest.mark.parametrize("scaling", [None, {"type": "linear", "factor": 2.0}])
def test_the_part_of_a_head_that_is_turned(told: dict[str, Any], size: int, scaling: dict[str, Any] | None) -> None:
    raw = RAW["llada2_moe"] | {"vocab_size": 99, "rope_scaling": scaling} | told
    found, scale = rope_frequencies(make_config(raw, FAMILIES, "config.json"))
    wanted = 6e5 ** -(torch.arange(0, size, 2) / size) / (2 if scaling else 1)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=0)
    assert scale == 1


def test_yarn_turns_a_part_too() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
    raw = RAW["llada2_moe"] | {"vocab_size": 99, "rope_scaling": scaling}
    found, scale = rope_frequencies(make_config(raw, FAMILIES, "config.json"))
    plain, _ = rope_frequencies(make_config(raw | {"rope_scaling": None}, FAMILIES, "config.json"))
    assert len(found) == len(plain) == 4
    assert bool((found <= plain).all())
    assert float(found[-1]) == pytest.approx(float(plain[-1]) / 4)
    assert scale > 1


@pytest.mark.parametrize("name", ["block_size", "block_length"])
def test_both_names_of_a_block(name: str) -> None:
    assert make_config(RAW["sdar"] | {"vocab_size": 99, name: 8}, FAMILIES, "config.json").block_size == 8
