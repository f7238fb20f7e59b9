"""Checkpoints that are mutated at random: each loads, or is refused in words, whatever has been changed.

RAMET_ATTACK_EXAMPLES=20000 looks for an hour where the default takes some seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import gguf
import pytest
from attacks.crafted import loads_or_refuses, warm  # noqa: F401
from attacks.test_gguf_headers import array, file, key, tensor, text
from fixtures import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("warm")
EXAMPLES = settings(max_examples=int(os.environ.get("RAMET_ATTACK_EXAMPLES", "25")), database=None)
SINGLE = "model.safetensors"
MIB = 96
COUNTS = st.sampled_from([0, 1, 2, 3, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
ODD = st.sampled_from([
    None, True, False, 0, 1, -1, 2, 3, 7, 31, 1000, 2**31, 2**62, 2**63, 10**12, 10**300, 0.5, 1.5, -2.0, 0.0, 1e308,
    "", "x", "default", "\ud800", "\0", "é" * 100, [], [1], [[]], ["x"] * 3, [None], {}, {"a": 1}, {"content": "a"},
])  # fmt: skip


def loaded(path: Path, content: bytes, source: Path | None = None) -> None:
    path.write_bytes(content)
    loads_or_refuses(source or path, MIB)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@st.composite
def mutated(draw: st.DrawFn, whole: bytes, n_head: int) -> bytes:
    """A file with a few changes among its first `n_head` bytes."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, min(n_head, len(data)) - 1))
        match draw(st.sampled_from(["bit", "byte", "long", "int", "cut", "insert", "delete", "copy"])):
            case "bit":
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "byte":
                data[at] = draw(st.integers(0, 255))
            case "long":
                data[at : at + 8] = struct.pack("<Q", draw(COUNTS))
            case "int":
                data[at : at + 4] = struct.pack("<I", draw(COUNTS) % 2**32)
            case "cut":
                del data[draw(st.integers(at, len(data))) :]
            case "insert":
                data[at:at] = draw(st.binary(max_size=64))
            case "delete":
                del data[at : at + draw(st.integers(1, 64))]
            case "copy":
                other = draw(st.integers(0, min(n_head, len(data)) - 1))
                data[at : at + 16] = data[other : other + 16]
        if not data:
            break
    return bytes(data)


WHOLE_GGUF = tiny.gguf_of(tiny.llama()).read_bytes()
N_GGUF = WHOLE_GGUF.index(b"blk.1.ffn_down.weight") + 2000


@EXAMPLES
@given(mutated(WHOLE_GGUF, N_GGUF))
def test_gguf_files(directory: Path, content: bytes) -> None:
    loaded(directory / "model.gguf", content)


@EXAMPLES
@given(mutated(WHOLE_GGUF, WHOLE_GGUF.index(b"tokenizer.ggml.tokens")))
def test_the_first_keys_of_gguf_files(directory: Path, content: bytes) -> None:
    """Most of the header is a vocabulary."""
    loaded(directory / "model.gguf", content)


NAMES = st.one_of(
    st.sampled_from([b"general.architecture", b"general.alignment", b"llama.block_count", b"token_embd.weight"]),
    st.binary(max_size=20),
)
VALUES = st.one_of(
    st.tuples(
        st.just(int(gguf.GGUFValueType.STRING)), st.builds(text, st.sampled_from([b"llama", b"gemma3", b"\xff"]))
    ),
    st.tuples(
        st.just(int(gguf.GGUFValueType.ARRAY)), st.builds(array, st.integers(0, 15), COUNTS, st.binary(max_size=64))
    ),
    st.tuples(st.integers(0, 15), st.binary(max_size=16)),
)
KEYS = st.lists(st.builds(lambda name, value: key(name, *value), NAMES, VALUES), max_size=5)
SHAPES = st.lists(st.one_of(COUNTS, st.integers(0, 64)), max_size=5).map(tuple)
TENSORS = st.lists(st.builds(tensor, NAMES, SHAPES, st.integers(0, 45), COUNTS), max_size=4)
NUMBERS = st.one_of(st.none(), COUNTS)


@EXAMPLES
@given(KEYS, TENSORS, NUMBERS, NUMBERS)
def test_made_gguf_headers(
    directory: Path, keys: list[bytes], tensors: list[bytes], n_keys: int | None, n_tensors: int | None
) -> None:
    loaded(directory / "model.gguf", file(*keys, tensors=tuple(tensors), n_keys=n_keys, n_tensors=n_tensors))


@pytest.fixture(scope="module")
def copies(directory: Path) -> dict[str, Path]:
    makers = {"llama": tiny.llama, "gemma3": tiny.gemma3, "gemma4": tiny.gemma4_moe, "qwen3_5": tiny.qwen3_5_moe}
    return {name: Path(shutil.copytree(maker(), directory / name)) for name, maker in makers.items()}


WHOLE = (tiny.llama() / SINGLE).read_bytes()
N_HEAD = 8 + int.from_bytes(WHOLE[:8], "little")


@EXAMPLES
@given(mutated(WHOLE, N_HEAD))
def test_safetensors_files(copies: dict[str, Path], content: bytes) -> None:
    loaded(copies["llama"] / SINGLE, content, copies["llama"])
    (copies["llama"] / SINGLE).write_bytes(WHOLE)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value inside, but for those of a vocabulary."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        yield (*at, name)
        if name not in ("vocab", "merges"):
            yield from places(inner, (*at, name))


def put(value: Any, place: tuple[Any, ...], other: Any) -> None:
    for name in place[:-1]:
        value = value[name]
    value[place[-1]] = deepcopy(other)  # else a list that is drawn twice would hold itself


@EXAMPLES
@given(st.data())
def test_safetensors_headers(copies: dict[str, Path], data: st.DataObject) -> None:
    header = json.loads(WHOLE[8:N_HEAD])
    put(header, data.draw(st.sampled_from([*places(header)])), data.draw(ODD))
    head = json.dumps(header).encode()
    loaded(copies["llama"] / SINGLE, len(head).to_bytes(8, "little") + head + WHOLE[N_HEAD:], copies["llama"])
    (copies["llama"] / SINGLE).write_bytes(WHOLE)


FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


@pytest.mark.parametrize("name", FILES)
@EXAMPLES
@given(st.data())
def test_json_files(copies: dict[str, Path], name: str, data: st.DataObject) -> None:
    source = copies[data.draw(st.sampled_from(sorted(copies)))]
    before = (source / name).read_bytes()
    raw = json.loads(before)
    for _ in range(data.draw(st.integers(1, 2))):
        put(raw, data.draw(st.sampled_from([*places(raw)])), data.draw(ODD))
    try:
        loaded(source / name, json.dumps(raw).encode(), source)
    finally:
        (source / name).write_bytes(before)
