"""States on disk are found by the model that made them, and by no other; what is damaged is mended at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.tiny_engine import checkpoint, tiny_engine
from oracles import block_models
from oracles.answers import assert_close
from safetensors.torch import load_file, save_file

from ramet.decision import Decision
from ramet.engine import identity
from ramet.engine.engine import Engine

STATE = "The tenant wrote that the heating failed again on Sunday night. " * 12
ASKED = {
    "heating": {"type": "noul", "instructions": "Does it fail?"},
    "who": {"type": "choice", "instructions": "Who writes?", "criteria": dict.fromkeys(["tenant", "owner"])},
}
FAMILIES = ("gemma3", "qwen3", "qwen3_5")
Change = Callable[[Path], None]


def decide(source: Path, **settings: Any) -> tuple[Decision, dict[str, float]]:
    """An answer, and the engine's figures once it is closed."""
    with tiny_engine("qwen3", source, **settings) as engine:
        found = engine.decide(state=STATE, questions=ASKED)
    return found, engine.stats()


def copied(family: str, to: Path) -> Path:
    return Path(shutil.copytree(checkpoint(family), to))


def weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Change:
    def apply(source: Path) -> None:
        file = source / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return apply


def setting(name: str, value: Any) -> Change:
    def apply(source: Path) -> None:
        told = json.loads((source / "config.json").read_text())
        rope = told.get("rope_parameters", {})
        if name in rope:
            rope[name] = value
        else:
            assert name in told
            told[name] = value
        (source / "config.json").write_text(json.dumps(told))

    return apply


def six_rows(tensors: dict[str, torch.Tensor]) -> None:
    """Of tokens of the state that a sample of the tensor would pass over."""
    with tiny_engine("qwen3") as engine:
        tokens = engine.decider._tokenizer.encode(STATE)
    embedding = tensors["model.embed_tokens.weight"]
    step = max(1, embedding.numel() // 256)
    sampled = {at // embedding.shape[1] for at in range(0, embedding.numel(), step)}
    rows = sorted(set(tokens) - sampled)[:6]
    assert len(rows) == 6
    embedding[rows] = torch.randn(6, embedding.shape[1], generator=torch.Generator().manual_seed(1)) * 3


def one_bit(tensors: dict[str, torch.Tensor]) -> None:
    number = tensors["model.layers.1.mlp.down_proj.weight"].view(torch.int32)[3, 5:6]
    number ^= 1


def a_little(tensors: dict[str, torch.Tensor]) -> None:
    for tensor in tensors.values():
        tensor *= 1.001


@pytest.mark.parametrize(
    "change",
    [
        weights(six_rows), weights(one_bit), weights(a_little), setting("rope_theta", 2e4),
        setting("rms_norm_eps", 1e-3), setting("max_position_embeddings", 16384),
    ],
    ids=["six_rows", "one_bit", "a_little", "rope_theta", "rms_norm_eps", "max_position_embeddings"],
)  # fmt: skip
def test_another_model_finds_no_states(change: Change, tmp_path: Path) -> None:
    source, states = copied("qwen3", tmp_path / "model"), tmp_path / "states"
    before, _ = decide(source, disk_cache=states)
    again, _ = decide(source, disk_cache=states)
    assert again.usage.x_cached_tokens > 200
    assert_close(again.answers, before.answers)
    change(source)
    expected, _ = decide(source)
    found, stats = decide(source, disk_cache=states)
    assert found.usage.x_cached_tokens == 0
    assert stats["cache_disk_tier_hits_total"] == 0
    assert_close(found.answers, expected.answers, atol=0)


@pytest.mark.parametrize(
    "settings", [{"dtype": "bfloat16"}, {"ops": {"attention": "reference"}}, {"ops": {"linear": "reference"}}]
)
def test_another_way_to_compute_finds_no_states(settings: dict[str, Any], tmp_path: Path) -> None:
    decide(checkpoint("qwen3"), disk_cache=tmp_path)
    assert decide(checkpoint("qwen3"), disk_cache=tmp_path, **settings)[0].usage.x_cached_tokens == 0


def test_other_code_finds_no_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decide(checkpoint("qwen3"), disk_cache=tmp_path)
    monkeypatch.setattr("ramet.engine.cache.code", lambda: "ramet of tomorrow")
    assert decide(checkpoint("qwen3"), disk_cache=tmp_path)[0].usage.x_cached_tokens == 0


def test_the_code_is_that_of_every_source_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "ramet"
    (package / "ops" / "native").mkdir(parents=True)
    for name in ("__init__.py", "ops/head.py", "ops/native/attention.cpp", "ops/native/units.h"):
        (package / name).write_text("1")
    monkeypatch.setattr(identity.ramet, "__file__", str(package / "__init__.py"))
    found = {identity.code.__wrapped__()}
    for file in sorted(package.rglob("*.*")):
        file.write_text("2")
        found.add(identity.code.__wrapped__())
    assert len(found) == 5


def test_pages_of_another_size_are_other_states(tmp_path: Path) -> None:
    """Whose keys would be equal where both end."""
    source, _ = block_models.saved("sdar", suffix="-b8")

    def n_models(block: int) -> int:
        chosen = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 24, "chunk_size": "4"}
        with Engine.load(source, disk_cache=tmp_path, block_size=block, **chosen) as engine:
            engine.decide(state=STATE, questions=ASKED)
        return len([each for each in tmp_path.iterdir() if each.is_dir()])

    assert [n_models(block) for block in (8, 32, 8)] == [1, 2, 2]


def a_bit(data: bytes, rest: list[bytes]) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 4]) + data[-8:]


def cut_off(data: bytes, rest: list[bytes]) -> bytes:
    return data[: len(data) // 2]


def emptied(data: bytes, rest: list[bytes]) -> bytes:
    return b""


def exchanged(data: bytes, rest: list[bytes]) -> bytes:
    """Another one's, whole."""
    return next(other for other in rest if other != data)


@pytest.mark.parametrize(("spoil", "memory"), [(a_bit, 0), (cut_off, 1 << 22), (emptied, 0), (exchanged, 1 << 22)])
@pytest.mark.parametrize("family", FAMILIES)
def test_all_that_is_damaged_is_written_again_by_the_request_that_finds_it(
    family: str, spoil: Callable[[bytes, list[bytes]], bytes], memory: int, tmp_path: Path
) -> None:
    source, settings = checkpoint(family), {"disk_cache": tmp_path, "memory_cache_bytes": memory}
    expected, _ = decide(source, **settings)
    files = sorted(tmp_path.rglob("*.safetensors"))
    sound = {file: file.read_bytes() for file in files}
    assert len(files) > 10
    for file in files:
        file.write_bytes(spoil(sound[file], list(sound.values())))
    with tiny_engine("qwen3", source, **settings) as engine:
        found = engine.decide(state=STATE, questions=ASKED)
        assert found.usage.x_cached_tokens == 0
        assert_close(found.answers, expected.answers, atol=0)
        tiers = engine.cache.tiers
        assert tiers is not None
        tiers.flush()
        assert {file: file.read_bytes() for file in files} == sound
        assert engine.stats()["cache_disk_tier_damaged_total"] == len(files)
    again, _ = decide(source, **settings)
    assert again.usage.x_cached_tokens > 200
    assert_close(again.answers, expected.answers)


@pytest.mark.parametrize("family", FAMILIES)
def test_some_that_are_damaged_leave_the_others(family: str, tmp_path: Path) -> None:
    source = checkpoint(family)
    expected, _ = decide(source, disk_cache=tmp_path)
    files = sorted(tmp_path.rglob("*.safetensors"))
    sound = {file: file.read_bytes() for file in files}
    for file in files[::3]:
        file.write_bytes(a_bit(sound[file], []))
    found, _ = decide(source, disk_cache=tmp_path)
    assert_close(found.answers, expected.answers)
    again, stats = decide(source, disk_cache=tmp_path)
    assert_close(again.answers, expected.answers)
    assert again.usage.x_cached_tokens > 200
    assert stats["cache_disk_tier_damaged_total"] == 0
