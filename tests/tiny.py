"""Tiny random checkpoints, saved by `transformers`, and the same as GGUF in the usual converter's layout.

Everything is made once a session, below one temporary directory that goes away at the end.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import shutil
import string
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tokenizers
import torch
import transformers
from gguf import GGMLQuantizationType
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from transformers import PretrainedConfig, PreTrainedModel

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HYBRID = {
    "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "head_dim": 32, "initializer_range": 0.1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": True},
}  # fmt: skip
_EXPERTS = {
    "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
}  # fmt: skip
_GEMMA4 = {  # layers that read keys of others, embeddings of each layer's own
    "num_hidden_layers": 5, "layer_types": ["sliding_attention", "full_attention"] * 2 + ["full_attention"],
    "num_kv_shared_layers": 3, "use_double_wide_mlp": True, "hidden_size_per_layer_input": 16,
    "sliding_window": 24, "global_head_dim": 32, "initializer_range": 0.1,
}  # fmt: skip
_GEMMA4_MOE = _GEMMA4 | {
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
    "num_global_key_value_heads": 1, "final_logit_softcapping": 3.0,
    "enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32,
}  # fmt: skip
_WINDOWED = {
    "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"], "query_pre_attn_scalar": 16,
    "initializer_range": 0.1,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    },
}  # fmt: skip
_WORDS = "yes no true false user assistant system the of and to a in is it that he was for on are with state answer"


@functools.cache
def llama(*, tied: bool = True, **config: Any) -> Path:
    """A checkpoint directory: Llama, 2 layers, 4 heads, 2 key heads of 16, float32, `tokenizer()`."""
    return _saved(transformers.LlamaConfig(**_sizes(tied) | config), "llama")


@functools.cache
def qwen3(*, tied: bool = True, **config: Any) -> Path:
    """The same for Qwen3, whose norms of q and k are random too. Its head size is not hidden / heads."""
    return _saved(transformers.Qwen3Config(**_sizes(tied) | {"head_dim": 24} | config), "qwen3")


@functools.cache
def qwen3_5(*, multimodal: bool = False, **config: Any) -> Path:
    """The same for Qwen3.5, 4 layers, the last of attention: by itself, or inside the multimodal model as published."""
    return _qwen3_5("qwen3_5", _sizes(config.pop("tied", True)) | _HYBRID | config, multimodal)


@functools.cache
def qwen3_5_moe(*, multimodal: bool = False, **config: Any) -> Path:
    """The same for Qwen3.5-MoE: 8 experts of 32, 3 chosen."""
    sizes = _sizes(config.pop("tied", True)) | _HYBRID | _EXPERTS | config
    del sizes["intermediate_size"]
    return _qwen3_5("qwen3_5_moe", sizes, multimodal)


@functools.cache
def gemma4(*, tied: bool = True, multimodal: bool = False, **config: Any) -> Path:
    """The same for Gemma 4 as the small ones are: by itself, or inside the multimodal model as published."""
    return _gemma4(_sizes(tied) | _GEMMA4 | config, multimodal)


@functools.cache
def gemma4_moe(*, tied: bool = True, multimodal: bool = False, **config: Any) -> Path:
    """The same for Gemma 4 as the large ones are: keys that are values, a soft cap, 8 experts of 32, 3 chosen."""
    return _gemma4(_sizes(tied) | _GEMMA4_MOE | config, multimodal)


@functools.cache
def gemma3(*, tied: bool = True, multimodal: bool = False, **config: Any) -> Path:
    """The same for Gemma 3, a sliding layer of 16 rows and a full one: by itself, or inside the multimodal model, whose
    names `save_pretrained` writes as they are published. The model adds one to its norms' weights."""
    sizes = _sizes(tied) | _WINDOWED | config
    if not multimodal:
        return _saved(transformers.Gemma3TextConfig(**sizes), "gemma3")
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14}
    whole = transformers.Gemma3Config(
        text_config=sizes, vision_config=vision, mm_tokens_per_image=4, image_token_index=5, tie_word_embeddings=tied,
        initializer_range=sizes["initializer_range"],
    )  # fmt: skip
    return _saved(whole, "gemma3-multimodal", transformers.AutoModelForImageTextToText)


@functools.cache
def model(directory: Path) -> PreTrainedModel:
    """transformers' own model of a directory, float32, eager attention, eval mode."""
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(directory, dtype=torch.float32, attn_implementation="eager").eval()


@functools.cache
def gguf_of(directory: Path, kind: str = "F32", *, head: bool | None = None) -> Path:
    """A directory's model as GGUF; matrices stored as `kind`. `head` overrides whether output.weight is written."""
    path = directory.with_suffix(f".{kind}{'' if head is None else head}.gguf")
    config, state = model(directory).config, dict(model(directory).state_dict())
    written = not config.tie_word_embeddings if head is None else head
    if not written:
        del state["lm_head.weight"]
    writer = gguf.GGUFWriter(path, architecture(config))
    write_config(writer, config)
    write_tokenizer(writer)
    for name, tensor in state.items():
        write_tensor(writer, config, name, tensor.numpy(), kind)
    finish(writer)
    return path


def architecture(config: PretrainedConfig) -> str:
    """GGUF's word for a model type."""
    return str(config.model_type).removesuffix("_text")


def write_config(writer: gguf.GGUFWriter, config: PretrainedConfig) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if config.model_type == "llama":
        writer.add_rope_dimension_count(config.head_dim)
        writer.add_vocab_size(config.vocab_size)


def write_tokenizer(writer: gguf.GGUFWriter, pre: str = "qwen2", template: str | None = CHATML) -> None:
    """The keys of `tokenizer()`. No add_bos_token: the caller may add it."""
    state = json.loads(tokenizer().to_str())
    control = {entry["content"]: entry["id"] for entry in state["added_tokens"]}
    texts = sorted(state["model"]["vocab"] | control, key=(state["model"]["vocab"] | control).__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(texts)
    writer.add_token_types([gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in texts])
    writer.add_token_merges([" ".join(merge) for merge in state["model"]["merges"]])
    writer.add_bos_token_id(control["<|endoftext|>"])
    writer.add_eos_token_id(control["<|im_end|>"])
    if template is not None:
        writer.add_chat_template(template)


def write_tensor(writer: gguf.GGUFWriter, config: PretrainedConfig, name: str, values: Any, kind: str = "F32") -> None:
    """One parameter under GGUF's name. Llama's q and k are permuted, and Gemma's norms get one added, as converters
    do; vectors stay F32."""
    if config.model_type == "llama" and name.split(".")[-2] in ("q_proj", "k_proj"):
        heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        values = values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        values = values + 1
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture(config))
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    target = names.get_name(name, try_suffixes=(".weight", ".bias"))
    stored = GGMLQuantizationType[kind if values.ndim > 1 else "F32"]
    writer.add_tensor(target, gguf.quants.quantize(np.ascontiguousarray(values, np.float32), stored), raw_dtype=stored)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@functools.cache
def tokenizer() -> tokenizers.Tokenizer:
    """Byte-level BPE of 1.7 thousand entries, split as Qwen2 splits: bytes, some words, digits, A to ZZ with and
    without a space before. The control tokens stand at the end of the vocabulary. Do not change it: it is shared."""
    vocabulary = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: list[tuple[str, str]] = []
    letters = string.ascii_uppercase
    pairs = ["".join(pair) for pair in itertools.product(letters, letters)]
    entries = [*_WORDS.split(), *letters, *pairs, *string.digits]
    for entry in [*entries, *("Ġ" + e for e in entries), "ĠĠ", "ĊĊ", "Ã©", "ðŁ"]:
        for left, right in ((entry[:n], entry[n]) for n in range(1, len(entry))):
            if left + right not in vocabulary:
                vocabulary[left + right] = len(vocabulary)
                merges.append((left, right))
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in CONTROL])
    return made


def save_tokenizer(directory: Path, template: str | None = CHATML, **settings: Any) -> None:
    """tokenizer.json and tokenizer_config.json; `settings` are further keys of the latter."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    config |= settings if template is None else {"chat_template": template, **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


@functools.cache
def root() -> Path:
    """The session's temporary directory."""
    directory = Path(tempfile.mkdtemp(prefix="ramet-tiny-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _sizes(tied: bool) -> dict[str, Any]:
    control = {text: tokenizer().token_to_id(text) for text in CONTROL}
    return {
        "vocab_size": tokenizer().get_vocab_size(),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": tied,
        "initializer_range": 0.2,  # large enough that answers differ from question to question
        "bos_token_id": control["<|endoftext|>"],
        "eos_token_id": control["<|im_end|>"],
        "pad_token_id": control["<|endoftext|>"],
    }


def _qwen3_5(model_type: str, sizes: dict[str, Any], multimodal: bool) -> Path:
    """Its norms' weights are random around one, to which the model adds one."""
    if not multimodal:
        return _saved(transformers.AutoConfig.for_model(f"{model_type}_text", **sizes), model_type)
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    tied = sizes["tie_word_embeddings"]
    config = transformers.AutoConfig.for_model(
        model_type, text_config=sizes, vision_config=vision, tie_word_embeddings=tied
    )
    return _saved(config, f"{model_type}-multimodal", transformers.AutoModelForImageTextToText)


def _gemma4(sizes: dict[str, Any], multimodal: bool) -> Path:
    sizes = sizes | {"vocab_size_per_layer_input": sizes["vocab_size"]}
    if not multimodal:
        return _saved(transformers.Gemma4TextConfig(**sizes), "gemma4")
    tower = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision = tower | {"intermediate_size": 32, "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 64}
    config = transformers.Gemma4Config(
        text_config=sizes, vision_config=vision, audio_config=tower | {"output_proj_dims": 32},
        tie_word_embeddings=sizes["tie_word_embeddings"],
    )  # fmt: skip
    return _saved(config, "gemma4-multimodal", transformers.AutoModelForImageTextToText)


def _saved(config: PretrainedConfig, kind: str, auto: Any = transformers.AutoModelForCausalLM) -> Path:
    directory = Path(tempfile.mkdtemp(prefix=f"{kind}-", dir=root()))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = auto.from_config(config, dtype=torch.float32)
        for name, parameter in made.named_parameters():
            if "norm" in name:  # all ones as made, which would hide a norm that is left out
                torch.nn.init.normal_(parameter, 1.0, 0.2)
        for name, scalar in made.named_buffers():
            if name.endswith("layer_scalar"):
                torch.nn.init.uniform_(scalar, 0.5, 1.5)
    made.save_pretrained(directory)
    save_tokenizer(directory)
    return directory
