"""Gemma 3: the sliding window by every path, configurations and names as published, and what is refused."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import tiny
from fixtures.tiny_engine import tiny_engine
from oracles import decoders
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig, PreTrainedModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding

from ramet.cache.pages import Pages
from ramet.config import config_of, make_config, raw_config, rope_frequencies
from ramet.engine.host import host_for
from ramet.engine.job import Job
from ramet.engine.runner import Runner
from ramet.engine.scheduler import Scheduler
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.families.gemma3 import GGUF, gemma3_shape
from ramet.layers.attention import AttentionShape
from ramet.tree import FloatArray, IntArray, Read, Segment, Tree
from ramet.weights.gguf_config import gguf_config

WINDOW, LENGTH, PAGE = 8, 24, 4
COLUMNS = np.arange(decoders.VOCAB_SIZE, dtype=np.int32)
IDS = np.random.default_rng(0).integers(0, decoders.VOCAB_SIZE, LENGTH).astype(np.int32)


@pytest.fixture(scope="module", autouse=True)
def one_sliding_layer() -> Any:
    """A model of decoders.py for this file alone."""
    config = decoders.CONFIGS["gemma3"].to_dict() | {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]}
    config |= {"sliding_window": WINDOW}
    decoders.CONFIGS["gemma3-window"] = Gemma3TextConfig(**config, attn_implementation="eager")
    yield
    del decoders.CONFIGS["gemma3-window"]


def in_rounds(ids: IntArray, budgets: list[int]) -> FloatArray:
    """Log-probabilities after the last id, computed in rounds of so many rows, through pages; the last for the rest."""
    store, pages = decoders.poisoned_store("gemma3-window", 16, PAGE), Pages(16, PAGE)
    scheduler, runner = (
        Scheduler(pages, max_round_tokens=budgets[0]),
        Runner(decoders.decoder("gemma3-window"), store, host_for(decoders.decoder("gemma3-window").device)),
    )
    job = Job(Tree.of([Segment(ids, reads=[Read(COLUMNS)])]), Future(), n_keep=len(ids))
    scheduler.add(job)
    rounds = []
    while len(scheduler):
        scheduler.max_round_tokens = budgets[min(len(rounds), len(budgets) - 1)]
        batch = scheduler.next()
        rounds.append(batch.n_tokens)
        scheduler.commit(batch, runner.run(batch))
    assert rounds[: len(budgets) - 1] == budgets[:-1]
    assert sum(rounds) == len(ids)
    return job.reads.logprobs(0)


def forked(ids: IntArray) -> FloatArray:
    """The last 8 ids as one of two branches of the first 16."""
    tree = Tree.of([
        Segment(ids[:16]),
        Segment(ids[:8], 0, reads=[Read(COLUMNS)]), Segment(ids[16:], 0, reads=[Read(COLUMNS)]),
    ])  # fmt: skip
    store, scheduler = decoders.poisoned_store("gemma3-window", 16, PAGE), Scheduler(Pages(16, PAGE), 64)
    job = Job(tree, Future(), n_keep=16)
    scheduler.add(job)
    batch = scheduler.next()
    scheduler.commit(
        batch,
        Runner(decoders.decoder("gemma3-window"), store, host_for(decoders.decoder("gemma3-window").device)).run(batch),
    )
    return job.reads.logprobs(1)


PATHS = {
    "one pass": lambda ids: in_rounds(ids, [64]),
    "chunks, cut at 5 and 8": lambda ids: in_rounds(ids, [5, 3, 64]),
    "token by token": lambda ids: in_rounds(ids, [1]),
    "a branch forked after 16": forked,
}


@torch.no_grad()
def theirs(ids: IntArray) -> FloatArray:
    model = decoders.oracle("gemma3-window")
    assert model.config._attn_implementation == "eager"
    return model(torch.tensor(ids[None]).long()).logits[0, -1].log_softmax(-1).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("path", PATHS)
def test_the_window_counts_the_querys_own_row(path: str) -> None:
    """D8: of a window of 8, a change at distance 7 is seen, one at 8 or 9 is not; the same by every path."""
    run = PATHS[path]
    plain = run(IDS)
    np.testing.assert_allclose(np.exp(plain), np.exp(theirs(IDS)), rtol=0, atol=1e-5)
    for distance, seen in ((WINDOW - 1, True), (WINDOW, False), (WINDOW + 1, False)):
        changed = IDS.copy()
        changed[LENGTH - 1 - distance] = (changed[LENGTH - 1 - distance] + 1) % decoders.VOCAB_SIZE
        found = run(changed)
        np.testing.assert_allclose(np.exp(found), np.exp(theirs(changed)), rtol=0, atol=1e-5)
        assert (np.abs(found - plain).max() > 1e-3) == seen
        assert seen or np.array_equal(found, plain)


PUBLISHED: dict[str, dict[str, Any]] = {  # as in the hub's config.json files of these sizes
    "1b": {
        "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 1152, "intermediate_size": 6912,
        "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144, "max_position_embeddings": 32768,
        "attn_logit_softcapping": None, "final_logit_softcapping": None,
    },
    "27b": {
        "model_type": "gemma3", "text_config": {
            "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
            "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16, "query_pre_attn_scalar": 168,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "vision_config": {"model_type": "siglip_vision_model"},
    },
}  # fmt: skip


@pytest.mark.parametrize("size", PUBLISHED)
def test_published_configurations(size: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[size]))
    config = config_of(raw_config(tmp_path, FAMILIES), FAMILIES, "here").get_text_config()
    shape, raw = gemma3_shape(config), PUBLISHED[size].get("text_config", PUBLISHED[size])
    mixers = [layer.mixer for layer in shape.layers]
    assert all(isinstance(mixer, AttentionShape) for mixer in mixers)
    assert [mixer.window for mixer in mixers[:7]] == [raw["sliding_window"]] * 5 + [0] + [raw["sliding_window"]]  # type: ignore[union-attr]
    assert {mixer.scale for mixer in mixers} == {raw["query_pre_attn_scalar"] ** -0.5}  # type: ignore[union-attr]
    assert shape.embedding_scale == raw["hidden_size"] ** 0.5
    reference = Gemma3RotaryEmbedding(config)
    for kind in shape.rotaries:
        found, scale = rope_frequencies(config, kind)
        torch.testing.assert_close(found, getattr(reference, f"{kind}_inv_freq"), rtol=1e-6, atol=0)
        assert scale == 1
    assert {shape.rotaries[mixer.rotary] for mixer in mixers if mixer.window} == {"sliding_attention"}  # type: ignore[union-attr]
    assert config_of(raw_config(tmp_path, FAMILIES), FAMILIES, "here").tie_word_embeddings


@pytest.mark.parametrize(("key", "value"), [
    ("final_logit_softcapping", 30.0), ("attn_logit_softcapping", 50.0), ("use_bidirectional_attention", True),
    ("hidden_activation", "silu"),
])  # fmt: skip
def test_what_its_layers_do_not_do_is_refused(key: str, value: Any) -> None:
    raw = {"model_type": "gemma3_text", "num_hidden_layers": 2, key: value}
    with pytest.raises(CheckpointError, match=key):
        gemma3_shape(make_config(raw, FAMILIES, "here"))


def test_layers_of_another_kind_are_refused() -> None:
    kinds = ["chunked_attention", "full_attention"]
    raw = {"model_type": "gemma3_text", "num_hidden_layers": 2, "layer_types": kinds}
    with pytest.raises(CheckpointError, match=r"layer_types|chunked_attention"):  # some releases refuse it themselves
        gemma3_shape(make_config(raw, FAMILIES, "here"))


def of_gguf(**changes: Any) -> Any:
    """The configuration of a GGUF file's metadata, as converters write them for 7 layers; None leaves a key out."""
    keys = {
        "context_length": 4096, "block_count": 7, "embedding_length": 64, "feed_forward_length": 128,
        "attention.head_count": 4, "attention.head_count_kv": 1, "attention.key_length": 24,
        "attention.value_length": 24, "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 512,
        "rope.freq_base": 1e6,
    }  # fmt: skip
    keys |= {name.replace("__", "."): value for name, value in changes.items()}
    metadata = {f"gemma3.{key}": value for key, value in keys.items() if value is not None}
    return gguf_config(
        metadata | {"general.architecture": "gemma3"}, GGUF, where="here", vocab_size=199, tied=True,
        biased=False, rope_factors=None,
    )  # fmt: skip


def test_what_gguf_leaves_unsaid() -> None:
    config = of_gguf()
    assert [kind[:4] for kind in config.layer_types] == ["slid"] * 5 + ["full", "slid"]
    assert config.rope_parameters["sliding_attention"] == {"rope_type": "default", "rope_theta": 1e4}
    assert (config.query_pre_attn_scalar, config.sliding_window, config.head_dim) == (24, 512, 24)
    assert of_gguf(block_count=62).query_pre_attn_scalar == 64 // 4  # the 27B model's alone is not its head size


def test_what_gguf_says() -> None:
    said = {"attention__sliding_window_pattern": 3, "rope__freq_base_swa": 500.0, "rope__scaling__type": "linear"}
    config = of_gguf(**said, rope__scaling__factor=8.0)
    assert [kind[:4] for kind in config.layer_types] == ["slid", "slid", "full"] * 2 + ["slid"]
    assert config.rope_parameters == {
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    }
    listed = of_gguf(attention__sliding_window_pattern=[True, False] * 3 + [True])
    assert [kind[:4] for kind in listed.layer_types] == ["slid", "full"] * 3 + ["slid"]


def test_gguf_that_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"here: gemma3\.attention\.sliding_window is missing"):
        of_gguf(attention__sliding_window=None)
    with pytest.raises(CheckpointError, match="final_logit_softcapping is 30"):
        gemma3_shape(of_gguf(final_logit_softcapping=30.0))


@torch.no_grad()
def last_row(model: PreTrainedModel, ids: IntArray) -> FloatArray:
    return model(torch.tensor(ids[None]).long()).logits[0, -1].log_softmax(-1).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("multimodal", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_checkpoints_that_transformers_saves(multimodal: bool, tied: bool, tmp_path: Path) -> None:
    """The multimodal one begins its names as it is published, and as transformers' modules are named."""
    directory = tiny.gemma3(tied=tied, multimodal=multimodal)
    ids = np.arange(40, dtype=np.int32) * 7
    wanted = last_row(tiny.model(directory), ids)
    stored = load_file(directory / "model.safetensors")
    assert any(name.startswith("language_model.model.") for name in stored) == multimodal
    sources = [directory]
    if multimodal:
        tiny.save_tokenizer(tmp_path)
        (tmp_path / "config.json").write_bytes((directory / "config.json").read_bytes())
        save_file({as_modules(name): weight for name, weight in stored.items()}, tmp_path / "model.safetensors")
        sources.append(tmp_path)
    for source in sources:
        with tiny_engine(source=source, method="options") as engine:
            read = Read(np.arange(engine.shape.vocab_size))
            found = engine.submit(Tree.of([Segment(ids, reads=[read])])).result().logprobs(0)
        np.testing.assert_allclose(np.exp(found), np.exp(wanted), rtol=0, atol=1e-5)
        assert np.exp(wanted).max() > 0.01


def as_modules(name: str) -> str:
    if name.startswith("language_model.lm_head"):
        return name.removeprefix("language_model.")
    return f"model.{name}".replace("language_model.model.", "language_model.")
