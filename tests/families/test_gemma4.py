"""Gemma 4: published shapes, what is refused, what is left alone, and the rows that its last layers do not compute."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import tiny
from fixtures.tiny_engine import expected, tiny_engine
from oracles import decoders
from oracles.answers import assert_close
from oracles.trees import evaluate
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel

from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.layers.decoder import Decoder
from ramet.layers.per_layer import PerLayerPart
from ramet.layers.shape import ModelShape
from ramet.ops import Linear, Ops, OpShape, choose
from ramet.round import pack
from ramet.tree import Read, Segment, Tree
from ramet.units import Unit, Units
from tests.decide.test_decisions_exact import STATE, request

CPU = torch.device("cpu")
FOUR, FIVE = (["sliding_attention"] * n + ["full_attention"] for n in (4, 5))
_COMMON = {"head_dim": 256, "global_head_dim": 512, "final_logit_softcapping": 30.0}
_SMALL = _COMMON | {"num_attention_heads": 8, "sliding_window": 512, "hidden_size_per_layer_input": 256}
_LARGE = _COMMON | {
    "sliding_window": 1024, "attention_k_eq_v": True, "use_bidirectional_attention": "vision",
    "hidden_size_per_layer_input": 0,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "E2B": _SMALL | {
        "hidden_size": 1536, "num_hidden_layers": 35, "layer_types": FOUR * 7, "intermediate_size": 6144,
        "num_key_value_heads": 1, "num_kv_shared_layers": 20, "use_double_wide_mlp": True,
    },
    "E4B": _SMALL | {
        "hidden_size": 2560, "num_hidden_layers": 42, "layer_types": FIVE * 7, "intermediate_size": 10240,
        "num_key_value_heads": 2, "num_kv_shared_layers": 18,
    },
    "31B": _LARGE | {
        "hidden_size": 5376, "num_hidden_layers": 60, "layer_types": FIVE * 10, "intermediate_size": 21504,
        "num_attention_heads": 32, "num_key_value_heads": 16, "num_global_key_value_heads": 4,
    },
    "26B-A4B": _LARGE | {
        "hidden_size": 2816, "num_hidden_layers": 30, "layer_types": FIVE * 5, "intermediate_size": 2112,
        "num_attention_heads": 16, "num_key_value_heads": 8, "num_global_key_value_heads": 2,
        "enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
    },
}  # fmt: skip


def meta(model_type: str, auto: Any, **config: Any) -> tuple[ModelShape, dict[str, tuple[int, ...]]]:
    """Our shape of a configuration, and the shapes of the parameters that transformers' model of it has."""
    made = AutoConfig.for_model(model_type, **config)
    with torch.device("meta"):
        state = auto.from_config(made).state_dict()
    return FAMILIES[model_type].shape(made.get_text_config()), {name: tuple(t.shape) for name, t in state.items()}


def unclaimed(model_type: str, shape: ModelShape, state: dict[str, tuple[int, ...]]) -> set[str]:
    """Checks the shape of every weight; returns the parameters that no weight is made of."""
    left = set(state)
    for name, weight in FAMILIES[model_type].plan(shape, state.keys()).items():
        parts = [state[part] for part in weight.parts]
        assert weight.shape == (sum(part[0] for part in parts), *parts[0][1:]), name
        left -= set(weight.parts)
    return left


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes(name: str) -> None:
    config = PUBLISHED[name]
    shape, state = meta("gemma4_text", AutoModelForCausalLM, **config)
    assert not unclaimed("gemma4_text", shape, state)
    assert shape.n_every == config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)


def test_twenty_of_the_layers_of_e2b_compute_only_the_rows_that_are_read() -> None:
    shape, _ = meta("gemma4_text", AutoModelForCausalLM, **PUBLISHED["E2B"])
    assert len(shape.layers) - shape.n_every == 20
    assert shape.lenders == {13, 14}


@pytest.mark.parametrize("model_type", ["gemma4", "gemma4_unified"])
def test_towers_are_left_alone(model_type: str) -> None:
    sizes = {"num_hidden_layers": 6, "layer_types": FIVE, "num_kv_shared_layers": 0}
    shape, state = meta(model_type, AutoModelForImageTextToText, text_config=sizes, vision_config={}, audio_config={})
    left = unclaimed(model_type, shape, state)
    assert left
    assert all(name.startswith(FAMILIES[model_type].unused) for name in left)
    assert not any("language_model" in name for name in left)


@pytest.mark.parametrize(("changed", "message"), [
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
    ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
    ({"attention_bias": True}, "attention_bias is True"),
    ({"num_kv_shared_layers": 5}, "no layer of type full_attention with keys of its own"),
    ({"num_kv_shared_layers": 6}, "no layer of type full_attention or sliding_attention"),
    ({"vocab_size_per_layer_input": 100}, "vocab_size_per_layer_input is 100"),
    ({"layer_types": [*FIVE[:5], "chunked_attention", "full_attention"], "num_hidden_layers": 7}, "chunked_attention"),
])  # fmt: skip
def test_what_is_not_served(changed: dict[str, Any], message: str) -> None:
    config = AutoConfig.for_model("gemma4_text", **{"num_hidden_layers": 6, "layer_types": [*FIVE]} | changed)
    with pytest.raises(CheckpointError, match=message):
        FAMILIES["gemma4_text"].shape(config)


@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("maker", [tiny.gemma4, tiny.gemma4_moe])
def test_decisions(maker: Any, multimodal: bool) -> None:
    """Of a checkpoint that transformers saved, in chunks, and again from what is kept."""
    directory = maker(multimodal=multimodal)
    model = tiny.model(directory)
    with tiny_engine(source=directory, max_round_tokens=96) as engine:
        for method in ("letters", "options"):
            asked = request(STATE * 2, "noul", "choice", "score", x_method=method)
            assert_close(engine.decide(asked).answers, expected(engine, model, asked))
            again = engine.decide(asked)
            assert again.usage.x_cached_tokens
            assert_close(again.answers, expected(engine, model, asked))


def with_tensors(tmp_path: Path, extra: dict[str, torch.Tensor]) -> Path:
    directory = tmp_path / "c"
    shutil.copytree(tiny.gemma4(), directory)
    file = directory / "model.safetensors"
    save_file(load_file(file) | extra, file, metadata={"format": "pt"})
    return directory


def test_keys_that_published_checkpoints_have_for_layers_that_read_anothers(tmp_path: Path) -> None:
    extra = {f"model.layers.3.self_attn.{name}.weight": torch.full((4, 4), torch.nan) for name in ("k_proj", "v_proj")}
    extra["model.layers.3.self_attn.k_norm.weight"] = torch.full((4,), torch.nan)
    directory, asked = with_tensors(tmp_path, extra), request(STATE, "noul", "choice")
    with tiny_engine(source=directory) as engine:
        assert_close(engine.decide(asked).answers, expected(engine, tiny.model(tiny.gemma4()), asked))


@pytest.mark.parametrize("name", ["layers.3.self_attn.k_proj.bias", "layers.1.self_attn.v_norm.weight", "extra.weight"])
def test_a_parameter_that_nothing_uses(name: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"nothing uses model.{name}"):
        tiny_engine(source=with_tensors(tmp_path, {f"model.{name}": torch.zeros(4)}))


@dataclasses.dataclass
class Counting:
    """A product that notes how many rows it is given."""

    inner: Linear
    seen: list[int]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return self.inner(x)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return self.inner.add(x, residual)


def counted() -> tuple[Decoder, list[int]]:
    """The decoder of "gemma4", and the rows that its products are given, in their order."""
    seen: list[int] = []
    choice = choose(CPU)

    def counting(shape: OpShape) -> Ops:
        ops = choice(shape)
        return dataclasses.replace(ops, pack=lambda weight, bias=None: Counting(ops.pack(weight, bias), seen))

    return decoders.build("gemma4", counting), seen


def test_layers_behind_the_last_with_keys_see_only_the_rows_that_are_read() -> None:
    rng = np.random.default_rng(0)
    state, question = (rng.integers(0, decoders.VOCAB_SIZE, n).astype(np.int32) for n in (40, 9))
    tree = Tree.of([Segment(state), *(Segment(question[i:], 0, reads=[Read([1, 2])]) for i in range(2))])
    decoder, seen = counted()
    packed = pack(Units.of([Unit(tree)]))
    found, wanted = packed.results(*decoder(packed.on(CPU), None))[0], evaluate(decoders.oracle("gemma4"), tree)
    for i in range(2):
        np.testing.assert_allclose(np.exp(found.logprobs(i)), np.exp(wanted.logprobs(i)), rtol=0, atol=1e-5)
    every, read = 57, 2
    inputs, keys, rest = [every, read], [every], 6  # rest: queries, output, the MLP's two and those of a layer's own
    assert seen == [*inputs, *[every] * rest, *keys, *[read] * rest, *[read] * (3 * rest)]  # at first keys with queries


def test_a_round_that_reads_nothing_leaves_keys_alone() -> None:
    decoder, seen = counted()
    stream = pack(Units.of([Unit(Tree.of([Segment(range(30))]))])).on(CPU)
    assert not len(decoder.hidden(stream, None))
    assert set(seen) == {30}


@torch.no_grad()
def test_embeddings_are_rounded_as_by_transformers() -> None:
    """In bfloat16 each layer's own differ in at most a few places, by a bit, where norms are summed otherwise."""
    model: PreTrainedModel = decoders.oracle("gemma4")
    theirs = type(model)(model.config).to(torch.bfloat16).model
    theirs.load_state_dict(model.model.state_dict())
    tokens = torch.arange(decoders.VOCAB_SIZE)
    embedded = theirs.embed_tokens(tokens[None])
    wanted = theirs.project_per_layer_inputs(embedded, theirs.get_per_layer_inputs(tokens[None], embedded))[0].unbind(1)
    ops = choose(CPU)(OpShape(torch.bfloat16))
    part = PerLayerPart(
        theirs.embed_tokens_per_layer.weight, ops.pack(theirs.per_layer_model_projection.weight),
        theirs.per_layer_projection_norm.weight.float(), 96, 1e-6, ops,
    )  # fmt: skip
    ours = part(tokens, embedded[0])
    assert len(ours) == len(wanted)
    for own, their in zip(ours, wanted, strict=True):
        assert (own != their).float().mean() < 0.01
        torch.testing.assert_close(own, their, rtol=2**-7, atol=2**-9)
