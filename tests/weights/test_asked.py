"""What a checkpoint asks for where a request says nothing: variables of its chat template, and how ids are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny
from fixtures.tiny_engine import tiny_engine
from oracles import block_models
from transformers import AutoTokenizer

from ramet.engine import Engine
from ramet.errors import CheckpointError
from ramet.generation import GenerationRequest
from tests.decide.test_chat import THINKING
from tests.weights.test_checkpoint import copied

EMPTY = "<think>\n\n</think>\n\n"
USER = [{"role": "user", "content": "Is it late?"}]
SOURCES = {
    "qwen3": tiny.qwen3, "qwen3_5": tiny.qwen3_5, "gemma3": tiny.gemma3, "gemma4": tiny.gemma4, "llama": tiny.llama,
    "sdar": lambda: block_models.saved("sdar")[0], "llada2_moe": lambda: block_models.saved("llada2_moe")[0],
}  # fmt: skip


@pytest.mark.parametrize(("family", "thoughtless"), [
    ("qwen3", True), ("qwen3_5", True), ("gemma4", True), ("gemma3", False), ("llama", False), ("sdar", False),
    ("llada2_moe", False),
])  # fmt: skip
def test_variables_are_set_where_a_card_does(family: str, thoughtless: bool, tmp_path: Path) -> None:
    """Of chats, and of decisions, whose prompt is that of a chat. The template is Qwen3's, which SDAR has too: it
    writes an empty thought where `enable_thinking` is false."""
    directory = copied(SOURCES[family](), tmp_path / "c")
    (directory / "chat_template.jinja").write_text(THINKING)
    theirs, options = AutoTokenizer.from_pretrained(directory), {"enable_thinking": False} if thoughtless else {}
    plain = theirs.apply_chat_template(USER, add_generation_prompt=True, tokenize=True, return_dict=False, **options)
    with tiny_engine(source=directory) as engine:
        conversation, frame = engine.writer.conversation, engine.decider._frame
        tokenizer = conversation.tokenizer
        assert conversation.chat(USER) == plain == frame.prompt(tokenizer, USER[0]["content"])
        assert tokenizer.decode(plain).endswith(EMPTY) == thoughtless
        assert tokenizer.decode(conversation.chat(USER, {"enable_thinking": False})).endswith(EMPTY)


def told(source: Path, target: Path, **generation: Any) -> Path:
    """A copy with another generation_config.json."""
    directory = copied(source, target)
    (directory / "generation_config.json").write_text(json.dumps(generation))
    return directory


def drawn(engine: Engine, **asked: Any) -> list[int]:
    return engine.writer.generate(GenerationRequest((5, 6, 7), max_tokens=12, seed=1, ignore_eos=True, **asked)).tokens


OWN: dict[str, Any] = {"temperature": 0.9, "top_k": 5, "top_p": 0.8}


@pytest.mark.parametrize("family", ["llama", "sdar", "llada2_moe"])
def test_draws_are_as_generation_config_says(family: str, tmp_path: Path) -> None:
    """Of masks too; a request that says nothing and one that says the same have one text."""
    source = told(SOURCES[family](), tmp_path / "c", do_sample=True, **OWN)
    settings = {} if family == "llama" else {"mode": "block"}
    with tiny_engine(source=source, **settings) as engine:
        assert engine.describe()["draws"] == "at temperature 0.9, top_k 5, top_p 0.8"
        assert drawn(engine) == drawn(engine, **OWN)
        assert drawn(engine) != drawn(engine, temperature=0.0)


@pytest.mark.parametrize(("family", "generation", "wanted"), [
    ("sdar", {}, "the likeliest"),
    ("sdar", {"top_k": 20}, "the likeliest"),
    ("sdar", {"temperature": 0.6, "top_k": 20, "top_p": 0.95}, "at temperature 0.6, top_k 20, top_p 0.95"),
    ("sdar", {"do_sample": False, "temperature": 0.6}, "the likeliest"),
    ("sdar", {"do_sample": True}, "at temperature 1, top_k 0, top_p 1"),
    ("sdar", {"temperature": 0.0}, "the likeliest"),
    ("llama", {}, "at temperature 1, top_k 0, top_p 1"),
    ("llama", {"do_sample": False, "top_k": 3}, "the likeliest"),
])  # fmt: skip
def test_what_is_left_open(family: str, generation: dict[str, Any], wanted: str, tmp_path: Path) -> None:
    with tiny_engine(source=told(SOURCES[family](), tmp_path / "c", **generation)) as engine:
        assert engine.describe()["draws"] == wanted


@pytest.mark.parametrize(("key", "value"), [
    ("temperature", -1), ("temperature", "0.6"), ("top_k", 2.5), ("top_p", 0), ("top_p", 1.5), ("temperature", True),
])  # fmt: skip
def test_draws_that_are_none(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {key} is {value!r}"):
        tiny_engine(source=told(SOURCES["sdar"](), tmp_path / "c", **{key: value}))


def test_what_does_not_hold_is_named(tmp_path: Path) -> None:
    directory = told(tiny.llama(), tmp_path / "c", repetition_penalty=1.05, min_p=0.1, num_beams=1)
    with pytest.warns(
        UserWarning, match=r"generation_config\.json's min_p 0\.1, repetition_penalty 1\.05: not held to"
    ):
        tiny_engine(source=directory).close()
    tiny_engine(source=told(tiny.llama(), tmp_path / "d", repetition_penalty=1.0, max_new_tokens=9)).close()
