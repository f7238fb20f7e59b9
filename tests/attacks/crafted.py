"""Checkpoints that somebody made to do harm: a tiny one with a part replaced, and how its loading must end."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from attacks.bounded import bounded
from fixtures import tiny

from ramet.engine import Engine
from ramet.errors import CheckpointError
from tests.weights.test_checkpoint import copied

MIB = 64  # what a tiny model takes, and some; a crafted one takes what its files do
LOADED: dict[str, Any] = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 20}


def load(source: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Engine.load(source, **LOADED).close()


def refused(source: Path, *told: str, mib: int = MIB) -> None:
    """Loading ends in one line that has each of the texts in it, and takes no memory to speak of."""
    with bounded(mib), pytest.raises(CheckpointError) as caught:
        load(source)
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 2000
    for text in told:
        assert text in message


def loads_or_refuses(source: Path, mib: int = MIB) -> None:
    with bounded(mib):
        try:
            load(source)
        except CheckpointError as error:
            assert str(error).isprintable()  # noqa: PT017


@pytest.fixture(scope="module")
def warm() -> None:
    """What is imported and compiled once is none of an attack's."""
    for source in (tiny.llama(), tiny.gguf_of(tiny.llama()), tiny.gemma3(multimodal=True), tiny.qwen3_5_moe()):
        load(source)


def edited(target: Path, source: Path | None = None, file: str = "config.json", **keys: Any) -> Path:
    """A copy of a tiny checkpoint, keys of one of its JSON files replaced; what is nested by its path, with dots."""
    directory = copied(source or tiny.llama(), target)
    path = directory / file
    raw = json.loads(path.read_text()) if path.exists() else {}
    for key, value in keys.items():
        *outer, last = key.split("__")
        inner = raw
        for name in outer:
            inner = inner[name]
        inner[last] = value
    path.write_text(json.dumps(raw))
    return directory


def replaced(target: Path, file: str, content: bytes | Callable[[Path], None], source: Path | None = None) -> Path:
    """A copy of a tiny checkpoint in which a file is another thing."""
    directory = copied(source or tiny.llama(), target)
    path = directory / file
    path.unlink(missing_ok=True)
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    return directory


def safetensors(header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data
