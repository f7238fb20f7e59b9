"""A family in one file, this one. One call makes it known, and then its models load from safetensors and from GGUF,
decide and write.

The toy is Llama with another activation and names of its own, so transformers' Llama says what is right.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from fixtures import tiny
from fixtures.tiny_engine import expected, tiny_engine
from oracles.answers import assert_close
from pydantic import PositiveInt
from safetensors.torch import save_file

from ramet.config_schema import ConfigSchema
from ramet.errors import CheckpointError
from ramet.families import FAMILIES, Family, register
from ramet.families.configuration import attention_shape, model_shape, require
from ramet.families.gguf import LAYER_TENSORS, GgufArchitecture, GgufKeys
from ramet.families.plans import attention_plan, layers_plan, mlp_plan, norms, outer_plan
from ramet.families.weight import Plan
from ramet.generation import GenerationRequest
from ramet.layers.attention import AttentionShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape
from ramet.request import DecisionRequest
from ramet.text.pre_tokenizer import PreTokenizer
from ramet.weights import open_checkpoint

# The family: all that its file would hold.


class ToySchema(ConfigSchema):
    intermediate_size: PositiveInt


def toy_shape(config: Any) -> ModelShape:
    require(config, "hidden_act", "toy_gelu")
    layer = LayerShape(attention_shape(config), MLPShape(config.intermediate_size, "gelu_tanh"))
    return model_shape(config, [layer] * config.num_hidden_layers)


def toy_plan(shape: ModelShape, names: Collection[str]) -> Plan:
    return outer_plan(shape, names, None, embedding="words") | layers_plan(shape, names, partial(toy_layer, shape))


def toy_layer(shape: ModelShape, layer: LayerShape, at: str) -> Plan:
    assert isinstance(layer.mixer, AttentionShape)
    return {
        **norms(at, {"input_norm": "norm_1", "mlp_norm": "norm_2"}, shape.hidden_size),
        **attention_plan(shape.hidden_size, layer.mixer, f"{at}.attn"),
        **mlp_plan(shape, layer, at),
    }


def toy_gguf_config(keys: GgufKeys, raw: Mapping[str, Any]) -> dict[str, Any]:
    return {"hidden_act": keys.fields.text(keys.full("activation"))}


TOY = Family(
    ("toy",),
    toy_shape,
    toy_plan,
    aliases=("toy_in_training",),
    schema=ToySchema,
    embedding="words",
    gguf=GgufArchitecture(
        "toy-arch",
        "toy",
        {
            **{name: theirs.replace("self_attn", "attn") for name, theirs in LAYER_TENSORS.items()},
            "attn_norm": "norm_1",
            "ffn_norm": "norm_2",
        },
        keys=("activation",),
        config=toy_gguf_config,
        pre_tokenizers={"toy-words": PreTokenizer(split=tiny.QWEN2_SPLIT, nfc=True)},
    ),
    template_variables={"enable_thinking": False},
)

# What tests it.

RENAMED = {
    "embed_tokens": "words", "self_attn": "attn", "input_layernorm": "norm_1", "post_attention_layernorm": "norm_2",
}  # fmt: skip
QUESTIONS: dict[str, Any] = {
    "late": {"type": "noul", "instructions": "Is it late?"},
    "where": {"type": "choice", "criteria": {"on the way": None, "here": "It has come.", "lost": None}},
}


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    register(TOY)
    yield
    del FAMILIES["toy"]


@functools.cache
def llama() -> Path:
    return tiny.llama(tied=False, hidden_act="gelu_pytorch_tanh")


@functools.cache
def weights() -> dict[str, torch.Tensor]:
    found = {}
    for name, weight in tiny.model(llama()).state_dict().items():
        for old, new in RENAMED.items():
            name = name.replace(old, new)
        found[name] = weight.clone()
    return found


def safetensors(directory: Path, **changed: Any) -> Path:
    tiny.save_tokenizer(directory)
    save_file(weights(), directory / "model.safetensors")
    raw = json.loads((llama() / "config.json").read_text())
    raw |= {"model_type": "toy", "hidden_act": "toy_gelu", **changed}
    (directory / "config.json").write_text(json.dumps(raw))
    return directory


def gguf_file(directory: Path, activation: str = "toy_gelu") -> Path:
    path = directory / "toy.gguf"
    writer = gguf.GGUFWriter(path, "toy-arch")
    tiny.write_config(writer, tiny.model(llama()).config)
    writer.add_string("toy-arch.activation", activation)
    tiny.write_tokenizer(writer, "toy-words")
    outer = {"model.words": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    assert TOY.gguf is not None
    blocks = {theirs: name for name, theirs in TOY.gguf.layer_tensors.items()}
    for name, weight in weights().items():
        module = name.removesuffix(".weight")
        place, _, inner = module.removeprefix("model.layers.").partition(".")
        writer.add_tensor(f"{outer.get(module) or f'blk.{place}.{blocks[inner]}'}.weight", weight.numpy())
    tiny.finish(writer)
    return path


@pytest.mark.parametrize("saved", [safetensors, gguf_file], ids=["safetensors", "gguf"])
def test_it_decides_and_writes(saved: Any, tmp_path: Path) -> None:
    model, request = tiny.model(llama()), DecisionRequest.parse({"state": "It is late.", "questions": QUESTIONS})
    with tiny_engine("toy", source=saved(tmp_path)) as engine:
        assert_close(engine.decide(request).answers, expected(engine, model, request))
        prompt = torch.arange(40)
        reply = engine.writer.generate(GenerationRequest(tuple(prompt.tolist()), 12, temperature=0.0, ignore_eos=True))
    whole = torch.cat([prompt, torch.tensor(reply.tokens)])
    with torch.no_grad():
        likeliest = model(whole[None]).logits[0].argmax(-1)
    assert reply.tokens == likeliest[len(prompt) - 1 : -1].tolist()


def test_it_is_opened_as_it_says(tmp_path: Path) -> None:
    opened = open_checkpoint(safetensors(tmp_path, model_type="toy_in_training"))
    assert (opened.model_type, opened.family) == ("toy", TOY)
    assert opened.names == open_checkpoint(gguf_file(tmp_path)).names == weights().keys()


def test_what_it_refuses(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="intermediate_size: Input should be a valid integer"):
        open_checkpoint(safetensors(tmp_path, intermediate_size=None))
    for path in (safetensors(tmp_path, hidden_act="silu"), gguf_file(tmp_path, "silu")):
        checkpoint = open_checkpoint(path)
        with pytest.raises(CheckpointError, match="hidden_act is 'silu'; toy is implemented for 'toy_gelu'"):
            checkpoint.family.read(checkpoint.config)


def test_no_name_is_given_twice() -> None:
    with pytest.raises(ValueError, match="another family has the model type 'toy'"):
        register(TOY)
    with pytest.raises(ValueError, match="another family has the model type 'toy_in_training'"):
        register(Family(("toy_in_training",), toy_shape, toy_plan))
    assert FAMILIES["llama"].gguf is not None
    with pytest.raises(ValueError, match="another family has the GGUF architecture 'llama'"):
        register(Family(("toy_2",), toy_shape, toy_plan, gguf=FAMILIES["llama"].gguf))
    assert "toy_2" not in FAMILIES
