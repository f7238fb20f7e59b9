"""Checkpoints in directories, their heads, where they are found, and strict loading."""

from __future__ import annotations

import contextlib
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import huggingface_hub
import pytest
import torch
from fixtures import tiny
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ramet.config import rope_frequencies
from ramet.errors import CheckpointError
from ramet.families.weight import Plan, Weight
from ramet.weights.checkpoint import Checkpoint, open_checkpoint
from ramet.weights.load import load
from ramet.weights.locate import Location, locate
from ramet.weights.safetensors import SafetensorsCheckpoint

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
NOT_FOUND = httpx2.Response(404, request=httpx2.Request("GET", "https://hub"))
INDEX = "model.safetensors.index.json"


def copied(source: Path, target: Path, **config: Any) -> Path:
    """A copy of a checkpoint, its configuration changed: None removes a key."""
    shutil.copytree(source, target)
    raw = json.loads((target / "config.json").read_text()) | config
    (target / "config.json").write_text(json.dumps({k: v for k, v in raw.items() if v is not None}))
    return target


def with_head(directory: Path, head: torch.Tensor | None) -> Path:
    weights = {name: t for name, t in load_file(directory / "model.safetensors").items() if name != HEAD}
    save_file(weights if head is None else weights | {HEAD: head}, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    directory = copied(tiny.llama(tied=False), tmp_path / "sharded")
    (directory / "model.safetensors").unlink()
    tiny.model(tiny.llama(tied=False)).save_pretrained(directory, max_shard_size="200KB")
    assert len(list(directory.glob("*.safetensors"))) > 2
    return directory


# Files


def test_single_and_sharded_are_the_same(sharded: Path) -> None:
    single, many = open_checkpoint(tiny.llama(tied=False)), open_checkpoint(str(sharded))
    assert single.names == many.names == set(tiny.model(tiny.llama(tied=False)).state_dict())
    for name, expected in tiny.model(tiny.llama(tied=False)).state_dict().items():
        assert torch.equal(single.tensor(name), expected)
        assert torch.equal(many.tensor(name), expected)
        assert many.shape(name) == expected.shape
    assert (many.name, many.model_type, type(many.config)) == ("sharded", "llama", LlamaConfig)


def test_a_missing_shard(sharded: Path) -> None:
    gone = sorted(sharded.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(CheckpointError, match=f"{gone.name} is missing; download"):
        open_checkpoint(sharded)


def test_an_index_that_names_an_absent_tensor(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    shard = index["weight_map"]["model.norm.weight"]
    (sharded / INDEX).write_text(json.dumps({"weight_map": index["weight_map"] | {"ghost.weight": shard}}))
    with pytest.raises(CheckpointError, match=rf"{shard}: ghost\.weight is absent"):
        open_checkpoint(sharded)


def test_a_file_cut_short(tmp_path: Path) -> None:
    path = copied(tiny.llama(), tmp_path / "c") / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged or cut short"):
        open_checkpoint(path.parent)
    path.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is missing"):
        open_checkpoint(path.parent)


def test_buffers_that_old_checkpoints_saved(tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c")
    weights = load_file(directory / "model.safetensors")
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(weights | buffer, directory / "model.safetensors", {"format": "pt"})
    assert open_checkpoint(directory).names == open_checkpoint(tiny.llama()).names


# Configurations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"config\.json is missing"),
        ("{", r"config\.json cannot be read as JSON"),
        ("[]", r"config\.json holds list"),
        ("{}", r"config\.json: unknown model_type None; known are diffusion_gemma, .*, sdar, sdar_moe$"),
        (
            '{"model_type": "mamba"}',
            r"config\.json: unknown model_type 'mamba'; known are diffusion_gemma, .*, sdar, sdar_moe$",
        ),
        (
            '{"model_type": "llama", "hidden_size": "wide"}',
            r"config\.json: hidden_size is 'wide'; it must be a whole number from 1",
        ),
    ],
)
def test_configurations_that_are_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(tmp_path)


def test_ends_of_text_from_the_models_configuration(tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c", eos_token_id=[7, 8])
    (directory / "generation_config.json").write_text('{"eos_token_id": [8, 9]}')
    checkpoint = open_checkpoint(directory)
    assert checkpoint.tokenizer().stop_ids == (checkpoint.tokenizer().control["<|im_end|>"], 7, 8, 9)
    assert checkpoint.tokenizer() is checkpoint.tokenizer()
    assert checkpoint.frame().opening == "user\n"


ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 512},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512
    },
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8, "original_max_position_embeddings": 2048},
}  # fmt: skip


@pytest.mark.parametrize("kind", ROPES)
def test_rope_frequencies_are_those_of_transformers(kind: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "max_position_embeddings": 2048}
    config = LlamaConfig(**sizes, rope_parameters={"rope_type": kind, "rope_theta": 5e5, **ROPES[kind]})
    theirs = LlamaRotaryEmbedding(config)
    frequencies, scale = rope_frequencies(config)
    assert torch.equal(frequencies, theirs.inv_freq)
    assert (frequencies.dtype, frequencies.shape, scale) == (torch.float32, (8,), theirs.attention_scaling)
    cosine, _ = theirs(torch.zeros(1, 1, 1), torch.tensor([[2047]]))
    torch.testing.assert_close((2047 * frequencies).cos() * scale, cosine[0, 0, :8])


def test_a_rope_that_depends_on_the_length() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, **ROPES["longrope"]}
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, max_position_embeddings=4096, rope_parameters=rope)
    with pytest.raises(CheckpointError, match="set max_position_embeddings to 2048"):
        rope_frequencies(config)


# Heads: what the configuration says against what the files hold


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([[1, 20, 300, 4, 50]])).logits  # type: ignore[no-any-return]


def loaded(directory: Path) -> Any:
    """transformers' model with our configuration and exactly our parameters."""
    checkpoint = open_checkpoint(directory)
    model = AutoModelForCausalLM.from_config(checkpoint.config, dtype=torch.float32).eval()
    expected = set(model.state_dict()) - ({HEAD} if checkpoint.config.tie_word_embeddings else set())
    assert checkpoint.names == expected
    model.load_state_dict({name: checkpoint.tensor(name) for name in checkpoint.names}, strict=False)
    model.tie_weights()
    return model


@pytest.mark.parametrize("equal_head", [True, False])
def test_tied_with_no_head_or_an_equal_one(equal_head: bool, tmp_path: Path) -> None:
    embedding = open_checkpoint(tiny.llama()).tensor(EMBEDDING).clone()
    directory = with_head(copied(tiny.llama(), tmp_path / "c"), embedding if equal_head else None)
    assert open_checkpoint(directory).config.tie_word_embeddings
    torch.testing.assert_close(logits(loaded(directory)), logits(tiny.model(tiny.llama())))


def test_tied_with_a_head_of_its_own(tmp_path: Path) -> None:
    """The file's head is used."""
    source = tiny.llama(tied=False)
    directory = copied(source, tmp_path / "c", tie_word_embeddings=True)
    with pytest.warns(UserWarning, match=r"lm_head\.weight differs from the embedding, so it is used"):
        assert not open_checkpoint(directory).config.tie_word_embeddings
    with pytest.warns(UserWarning, match="differs"):
        torch.testing.assert_close(logits(loaded(directory)), logits(tiny.model(source)))


def test_untied_without_a_head(tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c", tie_word_embeddings=False)
    with pytest.warns(UserWarning, match=r"hold no lm_head\.weight, so the embedding serves as head"):
        assert open_checkpoint(directory).config.tie_word_embeddings
    with pytest.warns(UserWarning, match="serves as head"):
        torch.testing.assert_close(logits(loaded(directory)), logits(tiny.model(tiny.llama())))


def test_untied_with_a_head() -> None:
    checkpoint = open_checkpoint(tiny.llama(tied=False))
    assert HEAD in checkpoint.names
    assert not checkpoint.config.tie_word_embeddings


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_gguf_with_and_without_a_head(tied: bool, head: bool) -> None:
    """A GGUF file has no flag: what it holds decides."""
    checkpoint = open_checkpoint(tiny.gguf_of(tiny.llama(tied=tied), head=head))
    assert (HEAD in checkpoint.names) == head
    assert checkpoint.config.tie_word_embeddings == (not head)
    if head:
        assert torch.equal(checkpoint.tensor(HEAD), tiny.model(tiny.llama(tied=tied)).state_dict()[HEAD])


@pytest.mark.parametrize("flag", [True, False])
def test_a_nested_flag(flag: bool, tmp_path: Path) -> None:
    text = {"model_type": "gemma3_text", "tie_word_embeddings": flag, "num_hidden_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))
    weights = {"language_model.model.embed_tokens.weight": torch.ones(4, 4)}
    save_file(weights, tmp_path / "model.safetensors")
    if flag:
        checkpoint = open_checkpoint(tmp_path)
    else:
        with pytest.warns(UserWarning, match="tie_word_embeddings false"):
            checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.tie_word_embeddings
    save_file(weights | {HEAD: torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    if flag:
        with pytest.warns(UserWarning, match="differs"):
            checkpoint = open_checkpoint(tmp_path)
    else:
        checkpoint = open_checkpoint(tmp_path)
    assert HEAD in checkpoint.names


def test_no_embedding(tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c")
    save_file({"bert.weight": torch.ones(1)}, directory / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"embed_tokens\.weight; this is no causal language model"):
        open_checkpoint(directory)


# Loading

QKV = tuple(f"model.layers.0.self_attn.{x}_proj.weight" for x in "qkv")


def plan_for(checkpoint: Checkpoint) -> Plan:
    plan = {name: Weight((name,), checkpoint.shape(name)) for name in checkpoint.names if name not in QKV}
    return {"qkv": Weight(QKV, (128, 64)), **plan}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantised", [False, True])
def test_merges(quantised: bool, dtype: torch.dtype) -> None:
    directory = tiny.llama()
    checkpoint = open_checkpoint(tiny.gguf_of(directory, "Q8_0") if quantised else directory)
    found = load(checkpoint, plan_for(checkpoint), dtype=dtype)
    assert torch.equal(found.pop("qkv"), torch.cat([checkpoint.tensor(name) for name in QKV]).to(dtype))
    for name, tensor in found.items():
        assert torch.equal(tensor, checkpoint.tensor(name).to(dtype))
        assert tensor.is_contiguous()


def test_loaded_tensors_are_no_views_of_the_file() -> None:
    checkpoint = open_checkpoint(tiny.llama())
    found = load(checkpoint, plan_for(checkpoint), dtype=torch.float32)
    found["model.norm.weight"].zero_()
    assert checkpoint.tensor("model.norm.weight").abs().sum() > 0


def test_strict_both_ways() -> None:
    checkpoint = open_checkpoint(tiny.llama())
    plan = plan_for(checkpoint)
    with pytest.raises(CheckpointError, match=r"not those of a llama model: missing are a\.weight, b\.weight$"):
        load(checkpoint, plan | {"ours": Weight(("a.weight", "b.weight"), (1,))}, dtype=torch.float32)
    with pytest.raises(CheckpointError, match=rf"nothing uses {QKV[1]}, {QKV[0]}, {QKV[2]}$"):
        load(checkpoint, {n: p for n, p in plan.items() if n != "qkv"}, dtype=torch.float32)
    with pytest.raises(CheckpointError, match=r"nothing uses .* and 12 more"):
        load(checkpoint, {}, dtype=torch.float32)


@pytest.mark.parametrize("missing", [False, True])
def test_threads_are_as_many_as_before(missing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are read in threads of one each; also where one cannot be."""
    checkpoint = open_checkpoint(tiny.llama())
    plan = {name: Weight((name,), checkpoint.shape(name)) for name in checkpoint.names}
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    used: set[int] = set()

    def read(name: str, out: torch.Tensor) -> None:
        used.add(torch.get_num_threads())
        out.fill_(torch.nan if missing else 1.0)

    monkeypatch.setattr(checkpoint, "read", read)
    try:
        with pytest.raises(CheckpointError, match="not finite") if missing else contextlib.nullcontext():
            load(checkpoint, plan, dtype=torch.float32)
        assert (used, torch.get_num_threads()) == ({1}, 3)
        with ThreadPoolExecutor(1) as later:
            assert later.submit(torch.get_num_threads).result() == 3
    finally:
        torch.set_num_threads(before)


def test_shapes() -> None:
    checkpoint = open_checkpoint(tiny.llama())
    plan = plan_for(checkpoint)
    assert load(checkpoint, plan, dtype=torch.float32)["qkv"].shape == (128, 64)
    with pytest.raises(CheckpointError, match=r"q_proj\.weight \(64, 64\), .* but the configuration needs \(96, 64\)"):
        load(checkpoint, plan | {"qkv": Weight(QKV, (96, 64))}, dtype=torch.float32)
    odd = plan | {"qkv": Weight((*QKV, "model.norm.weight"), (192, 64))}
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight \(64,\), but the configuration needs \(192, 64\)"):
        load(checkpoint, odd, dtype=torch.float32)


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = open_checkpoint(tiny.llama())
    plan = plan_for(checkpoint)
    load(checkpoint, plan, dtype=torch.float32)
    load(checkpoint, plan, dtype=torch.float32, progress=False)
    assert capsys.readouterr().err == ""  # captured, so no terminal
    load(checkpoint, plan, dtype=torch.float32, progress=True)
    assert f"Loading {checkpoint.name}" in capsys.readouterr().err


# Where checkpoints are


def test_the_packaged_model() -> None:
    found = locate("smollm2")
    assert found.name == "smollm2"
    assert found.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_local_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "some.gguf"
    file.touch()
    assert locate(file) == locate(tmp_path) == Location(file, "some")
    (tmp_path / "other.gguf").touch()
    with pytest.raises(CheckpointError, match=r"several \.gguf files; name one: other\.gguf, some\.gguf"):
        locate(tmp_path)
    (tmp_path / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    assert locate(tmp_path) == Location(tmp_path, tmp_path.name)
    assert locate(".") == Location(Path(), tmp_path.name)
    with pytest.raises(CheckpointError, match=r"config\.json is no \.gguf file"):
        locate(tmp_path / "config.json")
    for absent in ("nothing", "./owner/name", str(tmp_path / "gone"), tmp_path / "gone", "a/b/c"):
        with pytest.raises(CheckpointError, match=r"no file or directory, no known model \(smollm2, gemma3-270m, qwen"):
            locate(absent)


class Hub:
    """Stands for snapshot_download: a directory, or an error."""

    def __init__(self, directory: Path, error: Exception | None = None) -> None:
        self.directory, self.error, self.calls = directory, error, list[dict[str, Any]]()

    def __call__(self, repo: str, **options: Any) -> str:
        self.calls.append({"repo": repo, **options})
        if self.error:
            raise self.error
        return str(self.directory)


def test_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", hub := Hub(tmp_path))
    with pytest.raises(CheckpointError, match=r"owner/name holds no config\.json.* owner/name:FILE\.gguf"):
        locate("owner/name")
    (tmp_path / "config.json").touch()
    assert locate("owner/name") == Location(tmp_path, "owner/name")
    assert hub.calls[-1]["allow_patterns"] == ["*.json", "*.safetensors", "*.jinja"]
    assert "*/*" in hub.calls[-1]["ignore_patterns"]
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "x.gguf").touch()
    for source in ("owner/name:q/x.gguf", "owner/name/q/x.gguf"):
        assert locate(source) == Location(tmp_path / "q" / "x.gguf", "x")
        assert hub.calls[-1] == {"repo": "owner/name", "allow_patterns": ["q/x.gguf"], "ignore_patterns": None}
    with pytest.raises(CheckpointError, match=r"owner/name holds no y\.gguf"):
        locate("owner/name:y.gguf")


def test_a_hub_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors = {
        "cannot be reached": LocalEntryNotFoundError("offline"),
        "set HF_TOKEN": RepositoryNotFoundError("404", response=NOT_FOUND),
        "cannot be fetched: disk full": OSError("disk full"),
    }
    for message, error in errors.items():
        monkeypatch.setattr(huggingface_hub, "snapshot_download", Hub(tmp_path, error))
        with pytest.raises(CheckpointError, match=f"owner/name .*{message}"):
            locate("owner/name")


def test_offline_mode_of_the_hub_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="owner/name is not in the local cache"):
        locate("owner/name")


def test_a_name_for_people() -> None:
    assert SafetensorsCheckpoint(tiny.llama(), "acme/tiny:v1").name == "acme/tiny:v1"
