"""Checkpoints of strangers: sizes that the files do not have, values of another kind, files that are none. Each ends in
one line that names the file and the field, before anything of that size is made."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attacks.bounded import bounded
from attacks.crafted import MIB, edited, load, loads_or_refuses, refused, replaced, safetensors, warm  # noqa: F401
from click.testing import CliRunner
from fixtures import tiny
from safetensors.torch import load_file, save

from ramet import cli
from tests.weights.test_checkpoint import copied

pytestmark = pytest.mark.usefixtures("warm")
CONFIG, SINGLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
HUGE = 10**12

# Sizes, which are looked at before anything is made of them


@pytest.mark.parametrize("value", [HUGE, 1_000_000, 2**63, 10**300, 0, -1, 2.5, True, "many", [2], {}])
@pytest.mark.parametrize("key", [
    "num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "num_key_value_heads", "head_dim",
])  # fmt: skip
def test_sizes_of_a_configuration(key: str, value: object, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", **{key: value}), CONFIG, key)


@pytest.mark.parametrize(("family", "key", "value"), [
    ("qwen3_5", "linear_num_key_heads", HUGE), ("qwen3_5", "linear_conv_kernel_dim", 0),
    ("qwen3_5", "linear_num_value_heads", -4), ("qwen3_5_moe", "num_experts", 10**9),
    ("qwen3_5_moe", "num_experts_per_tok", HUGE), ("qwen3_5_moe", "moe_intermediate_size", HUGE),
    ("qwen3_5_moe", "num_experts", "8"), ("gemma4", "num_kv_shared_layers", HUGE),
    ("gemma4", "hidden_size_per_layer_input", HUGE), ("gemma4", "vocab_size_per_layer_input", HUGE),
    ("gemma4", "global_head_dim", HUGE), ("gemma4_moe", "num_global_key_value_heads", HUGE),
    ("gemma3", "sliding_window", HUGE), ("gemma3", "sliding_window", -1), ("gemma3", "sliding_window", "wide"),
    ("gemma3", "query_pre_attn_scalar", 0), ("gemma3", "query_pre_attn_scalar", -4.0),
    ("llama", "max_position_embeddings", 2**40), ("llama", "max_position_embeddings", 0),
    ("llama", "intermediate_size", HUGE), ("llama", "num_labels", HUGE), ("llama", "rms_norm_eps", "small"),
    ("llama", "rms_norm_eps", -1.0), ("llama", "eos_token_id", 2**31), ("llama", "eos_token_id", [1, "x"]),
    ("llama", "eos_token_id", {}), ("llama", "get_text_config", 1), ("llama", "attribute_map", {"a": "b"}),
    ("llama", "__class__", "x"), ("llama", "text_config", 3), ("llama", "text_config", {}),
    ("llama", "tie_word_embeddings", "yes"),
])  # fmt: skip
def test_numbers_of_every_family(family: str, key: str, value: object, tmp_path: Path) -> None:
    maker: Callable[[], Path] = getattr(tiny, family)
    directory = copied(maker(), tmp_path / "c")
    raw = json.loads((directory / CONFIG).read_text()) | {key: value}
    (directory / CONFIG).write_text(json.dumps(raw))
    refused(directory, CONFIG, key)


@pytest.mark.parametrize("key", ["text_config__num_hidden_layers", "vision_config__num_hidden_layers"])
def test_sizes_of_the_parts_of_a_configuration(key: str, tmp_path: Path) -> None:
    directory = edited(tmp_path / "c", tiny.gemma3(multimodal=True), **{key: HUGE})
    refused(directory, CONFIG, "num_hidden_layers")


@pytest.mark.parametrize("kinds", [
    ["full_attention"] * 500_000, ["full_attention"] * 3, [f"kind {i}" * 100 for i in range(2)], [1, None], [[]] * 2,
    "full_attention", 7,
])  # fmt: skip
def test_types_of_layers(kinds: object, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", tiny.qwen3(), layer_types=kinds), CONFIG, "layer_types", mib=96)


@pytest.mark.parametrize("rope", [
    {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1e9},
    {"rope_type": "default", "rope_theta": 0}, {"rope_type": "default", "rope_theta": -1.0},
    {"rope_type": "default", "rope_theta": "x"}, {"rope_type": [], "rope_theta": 1e4},
    {"rope_type": "linear", "rope_theta": 1e4, "factor": 0}, {"rope_type": "linear", "rope_theta": 1e4, "factor": "x"},
    {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 9, "long_factor": [1.0] * 9},
    {"rope_type": "spiral", "rope_theta": 1e4}, [], 3, "default",
])  # fmt: skip
def test_rotary_embeddings(rope: object, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", rope_parameters=rope), CONFIG)


def test_experts_that_the_files_lack_are_not_named(tmp_path: Path) -> None:
    """Every layer would name each of them."""
    directory = copied(tiny.qwen3_5_moe(), tmp_path / "c")
    raw = json.loads((directory / CONFIG).read_text()) | {"num_experts": 1000}
    (directory / CONFIG).write_text(json.dumps(raw))
    refused(directory, "num_experts")


# Files that are no JSON, no text, or nothing to be read


@pytest.mark.parametrize(
    "file", [CONFIG, SETTINGS, TOKENIZER, "generation_config.json", "special_tokens_map.json", INDEX]
)
@pytest.mark.parametrize("content", [
    b"", b"\xff\xfe{}", b"[]", b"3", b'{"a": NaN}', b'{"a": 1e999}', b'{"a": ' + b"9" * 5000 + b"}", b"[" * 200_000,
    b'{"a":' * 200_000,
])  # fmt: skip
def test_json_that_is_none(file: str, content: bytes, tmp_path: Path) -> None:
    refused(replaced(tmp_path / "c", file, content), file)


@pytest.mark.parametrize("file", [CONFIG, SETTINGS])
def test_keys_that_are_there_twice(file: str, tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c")
    text = (directory / file).read_text()
    (directory / file).write_text(text.replace("{", '{"twice": 1, "twice": 2,', 1))
    refused(directory, file, "twice")


def grown(path: Path) -> None:
    """A gigabyte that takes no room."""
    with path.open("wb") as file:
        file.truncate(1 << 30)


def listening(path: Path) -> None:
    at = Path.cwd()
    os.chdir(path.parent)  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(at)


@pytest.mark.parametrize("file", [
    CONFIG, SETTINGS, TOKENIZER, SINGLE, "generation_config.json", "chat_template.jinja", INDEX, "other.json",
])  # fmt: skip
@pytest.mark.parametrize("made", [
    grown, listening, Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to(path),
], ids=["gigabyte", "socket", "directory", "pipe", "dangling", "loop"])  # fmt: skip
def test_files_that_are_none(file: str, made: Callable[[Path], None], tmp_path: Path) -> None:
    directory = replaced(tmp_path / "c", file, made)
    if made is grown and file == "other.json":
        return  # it is hashed, and no more
    refused(directory, file)


@pytest.mark.parametrize("made", [listening, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_gguf_files_that_are_none(made: Callable[[Path], None], tmp_path: Path) -> None:
    made(tmp_path / "model.gguf")
    refused(tmp_path / "model.gguf", "model.gguf")


def test_nesting(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": deep}
    refused(edited(tmp_path / "c", odd=deep), CONFIG, "deep")


# Headers and the index


def entry(**changes: Any) -> dict[str, Any]:
    return {"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


HEADERS: dict[str, bytes] = {
    "length": safetensors({}, length=2**63),
    "length of all": safetensors({}, length=2**64 - 1),
    "longer than the file": safetensors({}, length=100),
    "no JSON": safetensors(b"{"),
    "a list": safetensors(b"[]"),
    "twice": safetensors(b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},' * 2 + b'"y": 1}', bytes(8)),
    "no entry": safetensors({"x": 3}),
    "dtype": safetensors(entry(dtype="F99"), bytes(8)),
    "dtype kind": safetensors(entry(dtype=[]), bytes(8)),
    "shape zero": safetensors(entry(shape=[0], data_offsets=[0, 0])),
    "shape negative": safetensors(entry(shape=[-2]), bytes(8)),
    "shape huge": safetensors(entry(shape=[2**62, 2**62]), bytes(8)),
    "shape empty and huge": safetensors(entry(shape=[2**62, 0], data_offsets=[0, 0])),
    "shape float": safetensors(entry(shape=[2.0]), bytes(8)),
    "shape text": safetensors(entry(shape="2"), bytes(8)),
    "backwards": safetensors(entry(data_offsets=[8, 0]), bytes(8)),
    "beyond": safetensors(entry(data_offsets=[8, 16]), bytes(8)),
    "too few": safetensors(entry(data_offsets=[0, 4]), bytes(8)),
    "offsets": safetensors(entry(data_offsets=[0]), bytes(8)),
    "offset kinds": safetensors(entry(data_offsets=["0", 8]), bytes(8)),
    "overlap": safetensors(entry() | {"y": entry()["x"]}, bytes(8)),
    "gap": safetensors(entry(data_offsets=[8, 16]), bytes(16)),
    "rest": safetensors(entry(), bytes(64)),
    "name": safetensors({"n" * 100_000: entry()["x"]}, bytes(8)),
    "metadata": safetensors(entry() | {"__metadata__": {"a": 1}}, bytes(8)),
}


@pytest.mark.parametrize("which", HEADERS)
def test_headers(which: str, tmp_path: Path) -> None:
    refused(replaced(tmp_path / "c", SINGLE, HEADERS[which]), SINGLE)


def test_a_header_of_a_hundred_megabytes(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write((100_000_000).to_bytes(8, "little") + b"{")
            file.truncate(100_000_008)

    refused(replaced(tmp_path / "c", SINGLE, write), SINGLE, "header")


def test_names_that_move_the_cursor(tmp_path: Path) -> None:
    weights = load_file(tiny.llama() / SINGLE) | {"\x1b[2J\nodd": torch.ones(1)}
    refused(replaced(tmp_path / "c", SINGLE, save(weights)), "nothing uses  [2J odd")


@pytest.mark.parametrize("index", [
    [], {}, None, 3, "x", {"a": 1}, {"a": None}, {"a": ["b"]}, {"a": "../model.safetensors"}, {"a": "/etc/passwd"},
    {"a": "sub/x.safetensors"}, {"a": "config.json"}, {"a": ""}, {"a": ".."}, {"a": "\0.safetensors"},
    {"a": "x" * 5000 + ".safetensors"},
])  # fmt: skip
def test_indices(index: object, tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c")
    (directory / SINGLE).rename(directory / "model-00001-of-00001.safetensors")
    (directory / INDEX).write_text(json.dumps({"weight_map": index}))
    refused(directory, INDEX if index else "model")


# Tokenizers, templates and settings of replies


def tokenizer(**changes: Any) -> bytes:
    return json.dumps(json.loads(tiny.tokenizer().to_str()) | changes).encode()


def model(**changes: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []} | changes


TEMPLATE = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "X", "type_id": 0}}], "pair": []}
ADDED = {"content": "<x>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
TOKENIZERS: dict[str, bytes] = {
    "no model": tokenizer(model=None),
    "unknown model": tokenizer(model={"type": "Guess"}),
    "negative": tokenizer(model=model(vocab={"a": -1})),
    "huge": tokenizer(model=model(vocab={"a": 2**40})),
    "of 32 bits": tokenizer(model=model(vocab={"a": 0, "b": 2**32 - 1})),
    "behind the rows": tokenizer(model=model(vocab={"a": 0, "b": 5000})),
    "two with one id": tokenizer(model=model(vocab={"a": 0, "b": 0})),
    "merges": tokenizer(model=model(merges=7)),
    "a prefix that cuts a character": tokenizer(
        model=model(vocab={"a": 0, "é": 1, "aé": 2}, merges=[["a", "é"]], continuing_subword_prefix="x")
    ),
    "merges of none": tokenizer(model=model(merges=[["a", "c"]])),
    "an added id": tokenizer(added_tokens=[ADDED | {"id": -1}]),
    "added": tokenizer(added_tokens=3),
    "panic": tokenizer(post_processor=TEMPLATE | {"special_tokens": {}}),
    "panic of normalizers": tokenizer(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    "pattern": tokenizer(pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated"}),
}  # fmt: skip


@pytest.mark.parametrize("which", TOKENIZERS)
def test_tokenizers(which: str, tmp_path: Path) -> None:
    refused(replaced(tmp_path / "c", TOKENIZER, TOKENIZERS[which]), str(tmp_path))


def test_no_vocabulary(tmp_path: Path) -> None:
    loads_or_refuses(replaced(tmp_path / "c", TOKENIZER, tokenizer(model=model(vocab={}), added_tokens=[])))


def test_padding_is_switched_off_first(tmp_path: Path) -> None:
    """The library would end the process for lack of memory."""
    padding = {
        "strategy": {"Fixed": HUGE}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "a",
    }  # fmt: skip
    with bounded(MIB):
        load(replaced(tmp_path / "c", TOKENIZER, tokenizer(padding=padding)))


@pytest.mark.parametrize(("key", "value"), [
    ("eos_token", 3), ("eos_token", []), ("eos_token", {"content": 3}), ("bos_token", True), ("pad_token", 1.5),
    ("added_tokens_decoder", []), ("added_tokens_decoder", {"x": {"content": "a"}}),
    ("added_tokens_decoder", {"-1": {"content": "a"}}), ("added_tokens_decoder", {"9" * 5000: {"content": "a"}}),
    ("added_tokens_decoder", {"٣": {"content": "a"}}), ("added_tokens_decoder", {"3": "a"}),
    ("added_tokens_decoder", {"3": {}}), ("added_tokens_decoder", {"3": {"content": 5}}),
    ("added_tokens_decoder", {"3": {"content": "a", "special": "yes"}}),
    ("added_tokens_decoder", {"4294967296": {"content": "<new>"}}),
    ("added_tokens_decoder", {"3": {"content": "\ud800"}}), ("extra_special_tokens", {"image_token": 3}),
    ("chat_template", 3), ("chat_template", {}), ("chat_template", [1]), ("chat_template", ["x"]),
    ("chat_template", [{"name": "default", "template": 3}]), ("chat_template", [{"name": [], "template": "x"}]),
    ("chat_template", "x" * (1 << 21)),
])  # fmt: skip
def test_settings_of_a_tokenizer(key: str, value: object, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", file=SETTINGS, **{key: value}), SETTINGS, mib=48)


def test_special_tokens_map(tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", file="special_tokens_map.json", unk_token=[1]), "unk_token")


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    refused(replaced(tmp_path / "c", "chat_template.jinja", b"\xff\xfe"), "chat_template.jinja", "UTF-8")


@pytest.mark.parametrize(("key", "value"), [
    ("eos_token_id", "x"), ("eos_token_id", [1, None]), ("eos_token_id", 2**31), ("eos_token_id", -1),
    ("eos_token_id", 10**300), ("eos_token_id", True), ("eos_token_id", {}), ("temperature", "hot"),
    ("temperature", -1), ("temperature", 10**300), ("top_k", 2.5), ("top_k", 2**40), ("top_p", 0), ("top_p", []),
])  # fmt: skip
def test_settings_of_replies(key: str, value: object, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", file="generation_config.json", **{key: value}), "generation_config.json", key)


@pytest.mark.parametrize("end", [5000, [0, 5000]])
def test_ends_outside_the_vocabulary(end: object, tmp_path: Path) -> None:
    refused(edited(tmp_path / "c", eos_token_id=end), "the end of a text has the id 5000")


# The command line


def test_one_line_at_the_command_line(tmp_path: Path) -> None:
    directory = edited(tmp_path / "c", num_hidden_layers=HUGE)
    arguments = ["--state", "x", "--noul", "q=Is it late?", "--model", str(directory), "--device", "cpu"]
    result = CliRunner().invoke(cli.main, ["decide", *arguments])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
