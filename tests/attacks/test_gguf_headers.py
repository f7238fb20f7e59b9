"""GGUF files of strangers: counts, lengths, types and offsets that are not so, and values of another kind."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from attacks.crafted import loads_or_refuses, refused, warm  # noqa: F401
from fixtures import tiny

pytestmark = pytest.mark.usefixtures("warm")
KINDS = {int: ("<Bq", gguf.GGUFValueType.INT64), float: ("<Bd", gguf.GGUFValueType.FLOAT64)}
U32, TEXT, ARRAY = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY


def text(value: bytes, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(kind: int, size: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, size) + items


def tensor(name: bytes, shape: tuple[int, ...] = (4,), kind: int = 0, at: int = 0, n: int | None = None) -> bytes:
    n_dimensions = len(shape) if n is None else n
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", n_dimensions, *shape, kind, at)


def file(
    *keys: bytes, tensors: tuple[bytes, ...] = (), n_keys: int | None = None, n_tensors: int | None = None,
    data: int = 64,
) -> bytes:  # fmt: skip
    counts = len(tensors) if n_tensors is None else n_tensors, len(keys) if n_keys is None else n_keys
    head = b"GGUF" + struct.pack("<IQQ", 3, *counts) + b"".join(keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32 + data)


def aligned(value: int, kind: gguf.GGUFValueType = U32, layout: str = "<I") -> bytes:
    return file(key(b"general.alignment", kind, struct.pack(layout, value)), tensors=(tensor(b"t"),))


def nested(depth: int) -> bytes:
    return b"".join(array(ARRAY, 1) for _ in range(depth)) + array(U32, 0)


HEADERS: dict[str, tuple[bytes, str]] = {
    "length of a key": (file(text(b"", 2**63), n_keys=1), "key 0"),
    "length of a text": (file(key(b"a", TEXT, text(b"", 2**63))), "a takes 9223372036854775808 bytes"),
    "not UTF-8": (file(key(b"\xff\xfe", U32, bytes(4))), "UTF-8"),
    "text not UTF-8": (file(key(b"a", TEXT, text(b"\xff"))), "a is not UTF-8"),
    "no name": (file(key(b"", U32, bytes(4))), "key 0"),
    "long name": (file(key(b"n" * 10_000, U32, bytes(4))), "10000 letters"),
    "key twice": (file(key(b"a", U32, bytes(4)), key(b"a", U32, bytes(4))), "'a', which is there twice"),
    "many keys": (file(n_keys=2**60), "key"),
    "many tensors": (file(n_tensors=2**60), "tensor"),
    "type": (file(key(b"a", 99, bytes(8))), "a has a value of type 99"),
    "type of an array": (file(key(b"a", ARRAY, array(99, 1))), "type 99"),
    "array": (file(key(b"a", ARRAY, array(U32, 2**62))), "array of 4611686018427387904 entries"),
    "array of texts": (file(key(b"a", ARRAY, array(TEXT, 2**62))), "a is an array"),
    "array of bytes": (file(key(b"a", ARRAY, array(0, 4_000_000))), "a takes 4000000 bytes"),
    "array of nothing": (file(key(b"a", ARRAY, array(TEXT, 4_000_000))), "a"),
    "nested": (file(key(b"a", ARRAY, nested(100_000))), "a has arrays inside each other"),
    "alignment 0": (aligned(0), "general.alignment is 0"),
    "alignment 3": (aligned(3), "general.alignment is 3"),
    "alignment -32": (aligned(-32, gguf.GGUFValueType.INT32, "<i"), "general.alignment is -32"),
    "alignment huge": (aligned(2**63, gguf.GGUFValueType.UINT64, "<Q"), "t reaches behind the end"),
    "alignment text": (file(key(b"general.alignment", TEXT, text(b"32"))), "general.alignment is '32'"),
    "alignment float": (aligned(32, gguf.GGUFValueType.FLOAT32, "<f"), "general.alignment is 32.0"),
    "dimensions": (file(tensors=(tensor(b"t", n=2**31),)), "t has 2147483648 dimensions"),
    "no dimensions": (file(tensors=(tensor(b"t", ()),)), "t has 0 dimensions"),
    "dimension 0": (file(tensors=(tensor(b"t", (4, 0)),)), "t has the shape (0, 4)"),
    "dimension huge": (file(tensors=(tensor(b"t", (2**63,)),)), "t reaches behind the end"),
    "product": (file(tensors=(tensor(b"t", (2**32, 2**32, 2**32)),)), "t reaches behind the end"),
    "tensor's type": (file(tensors=(tensor(b"t", kind=77),)), "t is stored as type 77"),
    "rows of blocks": (file(tensors=(tensor(b"t", (4,), kind=8),)), "t has the shape (4,)"),
    "offset beyond": (file(tensors=(tensor(b"t", at=2**40),)), "t reaches behind the end"),
    "offset odd": (file(tensors=(tensor(b"t", at=1),)), "t begins at 1"),
    "overlap": (file(tensors=(tensor(b"t"), tensor(b"u"))), "begins before t ends"),
    "tensor twice": (file(tensors=(tensor(b"t"), tensor(b"t", at=32))), "'t', which is there twice"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "little-endian"),
    "empty": (b"", "model.gguf"),
    "four letters": (b"GGUF", "cut short"),
}


@pytest.mark.parametrize("which", HEADERS)
def test_headers(which: str, tmp_path: Path) -> None:
    content, told = HEADERS[which]
    (tmp_path / "model.gguf").write_bytes(content)
    refused(tmp_path / "model.gguf", "model.gguf", told)


def model(path: Path, family: str = "llama", **changes: Any) -> Path:
    """The tiny model of a family with other metadata: None leaves a key out, bytes are its type and value."""
    own = tiny.model(getattr(tiny, family)())
    raw = {name: changes.pop(name) for name in [*changes] if isinstance(changes[name], bytes)}
    writer = gguf.GGUFWriter(path, tiny.architecture(own.config))
    tiny.write_config(writer, own.config)
    tiny.write_tokenizer(writer)
    for name, value in changes.items():
        named = name.replace("__", ".")
        writer.kv_data[0].pop(named, None)
        if value is not None:
            add(writer, named, value)
    for name in raw:
        writer.kv_data[0].pop(name.replace("__", "."), None)
    for name, value in own.state_dict().items():
        if name != "lm_head.weight":
            tiny.write_tensor(writer, own.config, name, value.numpy())
    tiny.finish(writer)
    return path


def add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(name, value)
    elif isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_key_value(name, value, gguf.GGUFValueType.INT64)
    elif isinstance(value, float):
        writer.add_float64(name, value)
    else:
        writer.add_array(name, value)


SIZES = (
    "context_length", "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length",
)  # fmt: skip


TOKENS = ("bos", "eos", "padding", "unknown", "eot", "eom")


@pytest.mark.parametrize("value", [0, -1, 10**12, 2**62, 2.5, "many", True, [1, 2], ["a"], float("nan")])
@pytest.mark.parametrize("size", SIZES)
def test_sizes(size: str, value: object, tmp_path: Path) -> None:
    path = model(tmp_path / "model.gguf", **{f"llama.{size}": value})
    refused(path, "model.gguf", f"llama.{size}")


@pytest.mark.parametrize(("name", "value"), [
    ("llama.block_count", 1_000_000), ("llama.attention.head_count", None), ("llama.block_count", None),
    ("llama.attention.layer_norm_rms_epsilon", 0.0), ("llama.attention.layer_norm_rms_epsilon", float("nan")),
    ("llama.attention.layer_norm_rms_epsilon", "x"), ("llama.rope.freq_base", 0.0),
    ("llama.rope.freq_base", float("inf")), ("llama.rope.freq_base", "x"), ("llama.rope.scaling.type", 3),
    ("llama.rope.scaling.factor", -1.0), ("llama.rope.scaling.factor", [1.0]), ("llama.rope.dimension_count", "x"),
    ("llama.rope.dimension_count", 2**40), ("general.architecture", 3), ("general.architecture", ["llama"]),
    ("general.type", 3), ("split.count", "two"), ("split.count", -1),
    ("tokenizer.chat_template", 3), ("tokenizer.chat_template", ["a"]), ("tokenizer.chat_template", "x" * (1 << 21)),
    ("tokenizer.ggml.tokens", 3), ("tokenizer.ggml.tokens", "abc"), ("tokenizer.ggml.tokens", [1, 2]),
    ("tokenizer.ggml.tokens", None), ("tokenizer.ggml.tokens", ["a", "a"]),
    ("tokenizer.ggml.merges", 3),
    ("tokenizer.ggml.merges", [1]), ("tokenizer.ggml.merges", ["no such"]), ("tokenizer.ggml.token_type", [1]),
    ("tokenizer.ggml.token_type", "x"), ("tokenizer.ggml.token_type", [1.5]), ("tokenizer.ggml.model", 3),
    ("tokenizer.ggml.pre", ["x"]), ("tokenizer.ggml.add_bos_token", 2), ("tokenizer.ggml.add_bos_token", "yes"),
    *((f"tokenizer.ggml.{name}_token_id", value) for name in TOKENS for value in (-1, 5000, 2**62, "x", [1], 1.0)),
])  # fmt: skip
def test_values_of_another_kind(name: str, value: object, tmp_path: Path) -> None:
    refused(model(tmp_path / "model.gguf", **{name: value}), "model.gguf", name)


@pytest.mark.parametrize(("name", "value"), [
    ("sliding_window", 0), ("sliding_window", "x"), ("sliding_window", 2**40), ("sliding_window_pattern", 0),
    ("sliding_window_pattern", -3), ("sliding_window_pattern", "x"), ("sliding_window_pattern", [True]),
    ("sliding_window_pattern", [1, 0]), ("sliding_window_pattern", ["a", "b"]),
])  # fmt: skip
def test_windows(name: str, value: object, tmp_path: Path) -> None:
    path = model(tmp_path / "model.gguf", "gemma3", **{f"gemma3.attention.{name}": value})
    refused(path, "model.gguf", f"gemma3.attention.{name}")


@pytest.mark.parametrize(("name", "value"), [
    ("scores", [1.0]), ("scores", 3), ("scores", ["a"]), ("scores", "x"), ("token_type", [1]), ("add_space_prefix", 3),
])  # fmt: skip
def test_sentence_pieces(name: str, value: object, tmp_path: Path) -> None:
    n = tiny.tokenizer().get_vocab_size()
    settings: dict[str, Any] = {"model": "llama", "scores": [0.5] * n, "token_type": [1] * n, name: value}
    path = model(tmp_path / "model.gguf", **{f"tokenizer.ggml.{key}": value for key, value in settings.items()})
    refused(path, "model.gguf", name)


def test_a_piece_of_a_megabyte(tmp_path: Path) -> None:
    """Each way to cut it would be looked at."""
    n = tiny.tokenizer().get_vocab_size()
    tokens = ["a" * 1_000_000, *(f"t{i}" for i in range(n - 1))]
    settings: dict[str, Any] = {"model": "llama", "scores": [0.5] * n, "token_type": [1] * n, "tokens": tokens}
    path = model(tmp_path / "model.gguf", **{f"tokenizer.ggml.{key}": value for key, value in settings.items()})
    refused(path, "tokenizer.ggml.tokens has one of 1000000 letters")


@pytest.mark.parametrize("shape", [(3,), (8, 8), (1,), (10_000,)])
def test_factors_of_another_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    config = tiny.model(tiny.llama()).config
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    tiny.write_config(writer, config)
    for name, value in tiny.model(tiny.llama()).state_dict().items():
        if name != "lm_head.weight":
            tiny.write_tensor(writer, config, name, value.numpy())
    writer.add_tensor("rope_freqs.weight", np.ones(shape, np.float32))
    tiny.finish(writer)
    refused(tmp_path / "model.gguf", "rope_freqs.weight")


@pytest.mark.parametrize("types", [0, 99, -5])
def test_types_out_of_range(types: int, tmp_path: Path) -> None:
    n = tiny.tokenizer().get_vocab_size()
    loads_or_refuses(model(tmp_path / "model.gguf", **{"tokenizer.ggml.token_type": [types] * n}))


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    tokens = [f"t{i}" for i in range(5000)]
    settings = {"tokens": tokens, "merges": None, "token_type": None, "bos_token_id": None, "eos_token_id": 0}
    path = model(tmp_path / "model.gguf", **{f"tokenizer.ggml.{key}": value for key, value in settings.items()})
    refused(path, "model.gguf: the vocabulary has the id 4999")
