"""Which model this is: every byte of its files counts, and what is remembered of a file is what it is."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures import tiny

from ramet.errors import CheckpointError
from ramet.weights import Fingerprint, digest, open_checkpoint

MINUTE_NS = 60 * 10**9


def fingerprint(source: Path) -> str:
    with Fingerprint(open_checkpoint(source).files) as found:
        return found.result()


def flip(path: Path, at: int) -> None:
    """One bit, and all that tells of it put back as far as a program can."""
    told = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkpoint of one's own."""
    return Path(shutil.copytree(tiny.qwen3(), tmp_path / "model"))


def test_every_byte_of_the_weights_counts(copy: Path) -> None:
    found, weights = {fingerprint(copy)}, copy / "model.safetensors"
    places = np.random.default_rng(0).integers(4096, weights.stat().st_size, 12).tolist()
    for at in [*places, weights.stat().st_size - 1]:
        flip(weights, at)
        found.add(fingerprint(copy))
        flip(weights, at)
    assert len(found) == 14


def test_every_part_of_a_file_counts_wherever_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "_PART", 64)
    monkeypatch.setattr(digest, "_READ", 16)
    found = set()
    for n in (0, 1, 15, 16, 63, 64, 65, 500):
        file = tmp_path / str(n)
        for data in {bytes(n), bytes(n - 1) + b"x" if n else b""}:
            file.write_bytes(data)
            found.add(of(file))
    assert len(found) == 15


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_the_other_files_count(copy: Path, name: str) -> None:
    before, path = fingerprint(copy), copy / name
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"rope_theta": 5e5, "x": 1}))
    assert fingerprint(copy) != before


def test_a_template_beside_the_others_counts(copy: Path) -> None:
    before = fingerprint(copy)
    (copy / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(copy) != before


def test_names_and_times_do_not_count(copy: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another" / "hf_ckpt"
    shutil.copytree(copy, elsewhere)
    os.utime(elsewhere / "model.safetensors", ns=(MINUTE_NS, MINUTE_NS))
    assert fingerprint(elsewhere) == fingerprint(copy)
    linked = tmp_path / "snapshot"
    linked.mkdir()
    for file in copy.iterdir():
        (linked / file.name).symlink_to(file)
    assert fingerprint(linked) == fingerprint(copy)


def test_a_gguf_file_counts_whole(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(tiny.gguf_of(tiny.llama()), path)
    before = fingerprint(path)
    renamed = path.rename(tmp_path / "other.gguf")
    assert fingerprint(renamed) == before
    flip(renamed, renamed.stat().st_size - 3)
    assert fingerprint(renamed) != before


def of(file: Path) -> str:
    with digest.Hashing([file]) as hashing:
        return hashing.results()[0]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """What is hashed, where every file is large enough to be remembered, and old enough."""
    read: list[Path] = []
    part = digest._part

    def noted(path: Path, start: int) -> bytes:
        read.append(path)
        return part(path, start)

    monkeypatch.setattr(digest, "_part", noted)
    monkeypatch.setattr(digest, "REMEMBERED", 1)
    monkeypatch.setattr(digest, "YOUNG_S", -60.0)
    monkeypatch.setenv("RAMET_CACHE", str(tmp_path / "cache"))
    return read


@pytest.fixture
def file(tmp_path: Path) -> Path:
    place = tmp_path / "weights" / "model.safetensors"
    place.parent.mkdir()
    place.write_bytes(bytes(1000))
    return place


def test_a_file_is_hashed_once(reads: list[Path], file: Path) -> None:
    first = of(file)
    assert of(file) == first
    assert len(reads) == 1
    assert [each.name for each in file.parent.iterdir() if each != file] == [".model.safetensors.ramet-digest"]


def test_beside_or_in_the_cache_directory_or_nowhere(
    reads: list[Path], file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a read-only mount, which root cannot write to either."""
    write = Path.write_text

    def fails(path: Path, *given: Any, **more: Any) -> int:
        if path.parent in closed:
            raise OSError(30, "Read-only file system")
        return write(path, *given, **more)

    monkeypatch.setattr(Path, "write_text", fails)
    closed = {file.parent}
    first = of(file)
    assert of(file) == first
    assert len(reads) == 1
    assert [*file.parent.iterdir()] == [file]
    shutil.rmtree(tmp_path / "cache")
    closed.add(tmp_path / "cache" / "digests")
    assert of(file) == of(file) == first
    assert len(reads) == 3


def rewritten(file: Path) -> None:
    file.write_bytes(b"x" * 1000)


def replaced(file: Path) -> None:
    """Another file of the same size and time."""
    told, other = file.stat(), file.with_name("other")
    other.write_bytes(b"x" * 1000)
    os.utime(other, ns=(told.st_atime_ns, told.st_mtime_ns))
    other.replace(file)


def flipped(file: Path) -> None:
    """In place, with the old time put back: the time of the change to the inode stays."""
    time.sleep(0.02)  # a tick of the kernel's clock
    flip(file, 500)


def shortened(file: Path) -> None:
    os.truncate(file, 999)


@pytest.mark.parametrize("change", [rewritten, replaced, flipped, shortened])
def test_a_file_that_changes_is_hashed_again(reads: list[Path], file: Path, change: Any) -> None:
    first = of(file)
    change(file)
    assert of(file) != first
    assert len(reads) == 2


@pytest.mark.parametrize("spoil", ["", "{", "[]", '{"format": 9}', '{"format": 1}', "\0"])
def test_a_spoilt_note_is_no_note(reads: list[Path], file: Path, spoil: str) -> None:
    first = of(file)
    file.with_name(".model.safetensors.ramet-digest").write_text(spoil)
    assert of(file) == of(file) == first
    assert len(reads) == 2


def test_a_young_file_is_not_remembered(reads: list[Path], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may change once more within a tick of the clock that stamps it: no stamp would tell."""
    monkeypatch.setattr(digest, "YOUNG_S", 3600.0)
    of(file)
    rewritten(file)
    of(file)
    assert len(reads) == 2
    assert [*file.parent.iterdir()] == [file]


def test_a_small_file_is_read_again(reads: list[Path], file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digest, "REMEMBERED", 1001)
    of(file)
    of(file)
    assert len(reads) == 2
    assert [*file.parent.iterdir()] == [file]


def test_a_file_that_changes_while_it_is_read_is_refused(file: Path) -> None:
    with digest.Hashing([file]) as hashing:
        os.truncate(file, 10)
        with pytest.raises(CheckpointError, match=r"model.safetensors changed while it was read; start again"):
            hashing.results()


def test_a_file_that_is_gone_is_told(file: Path) -> None:
    file.unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors cannot be read"):
        digest.Hashing([file])
