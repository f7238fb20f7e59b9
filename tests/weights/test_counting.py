"""Keys of config.json that change what is computed: each is read, or at its neutral value, or refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny
from fixtures.tiny_engine import MAKERS
from transformers import CONFIG_MAPPING, PretrainedConfig

from ramet.config_schema import COUNTING
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.layers.shape import ModelShape
from ramet.weights import open_checkpoint
from tests.weights.test_checkpoint import copied

# What a configuration's fields are to us. All that transformers gives a model type is in one of these.
READ = {  # by `shape`, `rope_frequencies`, the tokenizer or the plan of weights
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "tie_word_embeddings", "layer_types",
    "attention_bias", "mlp_bias", "sliding_window", "bos_token_id", "eos_token_id", "pad_token_id", "num_experts",
    "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size", "linear_conv_kernel_dim",
    "linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads",
    "query_pre_attn_scalar", "final_logit_softcapping", "attention_k_eq_v", "num_kv_shared_layers", "enable_moe_block",
    "use_double_wide_mlp", "top_k_experts", "hidden_size_per_layer_input", "vocab_size_per_layer_input",
    "canvas_length", "text_config",
}  # fmt: skip
REQUIRED = {"hidden_act", "hidden_activation", "use_bidirectional_attention", "attn_logit_softcapping"}
BY_LAYER_TYPES = {"use_sliding_window", "max_window_layers"}  # which the class has made of them
NOT_COMPUTED = {  # training, caches, and ids and towers of other inputs than text
    "initializer_range", "use_cache", "attention_dropout", "output_router_logits", "router_aux_loss_coef",
    "pretraining_tp", "vision_config", "audio_config", "mm_tokens_per_image",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(name for name in FAMILIES if FAMILIES[name].schema is None))
def test_every_field_of_transformers_is_accounted_for(name: str) -> None:
    """Where a release of transformers adds one, somebody has to say what it is."""
    common = {field.name for field in dataclasses.fields(PretrainedConfig)}
    own = {field.name for field in dataclasses.fields(CONFIG_MAPPING[name])} - common
    ids = {field for field in own if field.endswith(("token_id", "token_index"))}
    assert own - ids - READ - REQUIRED - BY_LAYER_TYPES - NOT_COMPUTED == set()


def shape_of(source: Path) -> ModelShape:
    """What the configuration of a checkpoint says."""
    checkpoint = open_checkpoint(source)
    return checkpoint.family.read(checkpoint.config)


def opened(source: Path, target: Path, **config: Any) -> Any:
    """With other keys of the text model."""
    raw = json.loads((source / "config.json").read_text())
    if "text_config" in raw:
        config = {"text_config": raw["text_config"] | config}
    return shape_of(copied(source, target, **config))


@pytest.mark.parametrize("key", COUNTING)
def test_a_key_that_counts(key: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is 7, which llama is not implemented for"):
        opened(tiny.llama(), tmp_path / "c", **{key: 7})
    for n, neutral in enumerate(COUNTING[key]):
        assert opened(tiny.llama(), tmp_path / str(n), **{key: neutral}) == shape_of(tiny.llama())


@pytest.mark.parametrize("family", sorted(MAKERS))
@pytest.mark.parametrize(("key", "value"), [("logit_scale", 0.5), ("residual_multiplier", 0.22), ("clip_qkv", 8.0)])
def test_of_every_family(family: str, key: str, value: float, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"{key} is {value}"):
        opened(MAKERS[family](), tmp_path / "c", **{key: value})


@pytest.mark.parametrize("make", [tiny.gemma3, tiny.gemma4, tiny.qwen3_5])
def test_of_the_text_model_within_another(make: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="embedding_multiplier is 12"):
        opened(make(multimodal=True), tmp_path / "c", embedding_multiplier=12)


@pytest.mark.parametrize(("make", "changed", "message"), [
    (tiny.llama, {"layer_types": ["sliding_attention", "full_attention"]}, "layer_types has sliding_attention; llama"),
    (tiny.llama, {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
     "partial_rotary_factor is 0.5; llama is implemented for whole heads"),
    (tiny.qwen2, {"dual_chunk_attention_config": {"chunk_size": 64}}, "dual_chunk_attention_config is .*qwen2 is"),
    (tiny.qwen3, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; qwen3 is"),
    (tiny.qwen3, {"layer_types": ["sliding_attention"] * 2, "use_sliding_window": False}, "sliding_window is None"),
    (tiny.gemma3, {"sliding_window": 0}, "layer_types has sliding_attention, but sliding_window is 0"),
    (tiny.gemma3, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
    (tiny.gemma3, {"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
    (tiny.gemma4, {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, which gemma4_text is not"),
    (tiny.gemma4, {"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
    (tiny.qwen3_5, {"attn_output_gate": False}, "attn_output_gate is False"),
])  # fmt: skip
def test_keys_that_are_read_at_other_values(make: Any, changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        opened(make(), tmp_path / "c", **changed)


def test_a_window_that_is_off_passes(tmp_path: Path) -> None:
    plain = shape_of(tiny.qwen3())
    assert opened(tiny.qwen3(), tmp_path / "c", sliding_window=64, use_sliding_window=False) == plain
    windowed = opened(tiny.qwen3(), tmp_path / "d", sliding_window=64, use_sliding_window=True, max_window_layers=1,
                      layer_types=["full_attention", "sliding_attention"])  # fmt: skip
    assert [layer.mixer.window for layer in windowed.layers] == [0, 64]


def test_qwen2s_windows_begin_where_its_configuration_says(tmp_path: Path) -> None:
    windows = {"sliding_window": 64, "max_window_layers": 1, "layer_types": None}
    whole = opened(tiny.qwen2(), tmp_path / "c", use_sliding_window=False, **windows)
    assert [layer.mixer.window for layer in whole.layers] == [0, 0]
    windowed = opened(tiny.qwen2(), tmp_path / "d", use_sliding_window=True, **windows)
    assert [layer.mixer.window for layer in windowed.layers] == [0, 64]


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none(text: str, tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c")
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 12345}).replace("12345", text))
    with pytest.raises(CheckpointError, match=f"cannot be read as JSON .{text} is no number"):
        open_checkpoint(directory)
