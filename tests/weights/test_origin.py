"""One model under several paths: what it is called, and that nothing else hangs on where it lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fixtures import tiny
from fixtures.tiny_engine import tiny_engine
from oracles import block_models

from ramet.errors import CheckpointError
from ramet.weights import open_checkpoint
from ramet.weights.locate import locate
from tests.weights.test_checkpoint import copied

HASH = "0123456789abcdef0123456789abcdef01234567"
SMOLLM = (
    "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|im_start|>system\nYou are a helpful AI "
    "assistant named SmolLM, trained by Hugging Face<|im_end|>\n{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def snapshot(source: Path, root: Path, repo: str) -> Path:
    """As the hub's cache lays a checkpoint down: links into blobs, below a directory called by a commit's hash."""
    kept = root / f"models--{repo.replace('/', '--')}"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text(HASH)
    made = kept / "snapshots" / HASH
    made.mkdir(parents=True)
    (kept / "blobs").mkdir()
    for n, path in enumerate(path for path in source.iterdir() if path.is_file()):
        (kept / "blobs" / f"blob{n}").write_bytes(path.read_bytes())
        (made / path.name).symlink_to(Path("..", "..", "blobs", f"blob{n}"))
    return made


@pytest.fixture
def unsized(tmp_path: Path) -> Path:
    """SDAR as it is published: its config.json tells no block."""
    return copied(block_models.saved("sdar")[0], tmp_path / "wren-1b-b32", block_size=None)


def resolved(source: Any, **settings: Any) -> tuple[str, str]:
    with tiny_engine(source=source, name=None, **settings) as engine:
        told = engine.describe()
        return told["model"], told["block_size"].partition(" ")[0]


def test_the_block_of_published_files(unsized: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = snapshot(unsized, tmp_path / "hub", "acme/wren-1b-b32")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert resolved(unsized) == ("wren-1b-b32", "32")
    assert resolved(made) == resolved(f"{made}/") == ("acme/wren-1b-b32", "32")
    assert resolved("acme/wren-1b-b32") == ("acme/wren-1b-b32", "32")
    link = tmp_path / "current"
    link.symlink_to(made)
    assert resolved(link) == ("acme/wren-1b-b32", "32")
    inner = copied(unsized, tmp_path / "SDAR-B32" / "hf_ckpt")
    assert resolved(inner) == ("hf_ckpt", "32")


def test_a_block_that_nothing_tells(unsized: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "model", tmp_path / "hf_ckpt", tmp_path / "SDAR-1.7B-Chat"):
        directory = copied(unsized, target)
        with pytest.raises(CheckpointError, match=r"say how many rows its blocks have.*give --block-size"):
            tiny_engine(source=directory)
        assert resolved(directory, block_size=8) == (target.name, "8")
    told = copied(unsized, tmp_path / "told", _name_or_path="acme/Wren-1b-B16")
    assert resolved(told) == ("told", "16")


def test_the_method_and_temperatures(tmp_path: Path) -> None:
    """They follow from the chat template, whatever the directory and the model are called."""
    source = copied(tiny.llama(), tmp_path / "SmolLM2-135M-Instruct")
    tiny.save_tokenizer(source, SMOLLM)
    plain = copied(tiny.llama(), tmp_path / "smollm2-tuned")
    places = [source, snapshot(source, tmp_path, "acme/SmolLM2"), copied(source, tmp_path / "model")]
    question = {
        "q": {"type": "choice", "instructions": "Which?", "criteria": {"a refund": None, "technical help": None}}
    }
    answers, settings = [], []
    for place, name in [*((place, None) for place in places), (source, "other")]:
        with tiny_engine(source=place, name=name) as engine:
            settings.append(engine.decider.settings)
            answers.append(engine.decide(state="The screen is cracked.", questions=question)["q"])
    assert settings == [settings[0]] * 4
    assert answers == [answers[0]] * 4
    assert (settings[0].method, settings[0].temperature.score) == ("options", 8.0)
    for name in (None, "SmolLM2-135M-Instruct"):
        with tiny_engine(source=plain, name=name) as engine:
            assert engine.decider.settings.method == "letters"


def test_what_a_model_is_called(tmp_path: Path) -> None:
    made = snapshot(tiny.llama(), tmp_path, "acme/tiny-1")
    assert locate(made).name == open_checkpoint(made).name == "acme/tiny-1"
    assert locate(snapshot(tiny.llama(), tmp_path, "gpt2")).name == "gpt2"
    other = tmp_path / "snapshots" / HASH
    other.parent.mkdir()
    assert locate(copied(tiny.llama(), other)).name == HASH  # nobody's cache: it has no other name


def test_the_twin_of_llada(tmp_path: Path) -> None:
    """The name under which a framework trains it."""
    source, _ = block_models.saved("llada2_moe")
    twin = copied(source, tmp_path / "twin", model_type="llada2_moe_veomni")
    assert json.loads((twin / "config.json").read_text())["model_type"] == "llada2_moe_veomni"
    question = {"q": {"type": "noul", "instructions": "Is it late?"}}
    answers = []
    for place in (source, twin):
        with tiny_engine(source=place) as engine:
            answers.append(engine.decide(state="It is late.", questions=question)["q"])
    assert answers[0] == answers[1]
