"""Joining: a file that has the right hash, or none; what cannot be is said before anything is written."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from fixtures.packages import INSTALL, NAME, PIECES, WHOLE, make_known

from ramet.errors import CheckpointError
from ramet.weights import joining
from ramet.weights.joining import joined


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_known(monkeypatch, tmp_path / "cache") / "split.gguf"


@pytest.fixture
def files(tmp_path: Path) -> list[Path | None]:
    """The parts, installed."""
    found: list[Path | None] = []
    for n, piece in enumerate(PIECES, 1):
        found.append(tmp_path / f"part{n}.bin")
        (tmp_path / f"part{n}.bin").write_bytes(piece)
    return found


def test_parts_are_joined(target: Path, files: list[Path | None]) -> None:
    assert joined(NAME, files, target) == target
    assert target.read_bytes() == WHOLE
    assert list(target.parent.iterdir()) == [target]


def test_parts_in_another_order(target: Path, files: list[Path | None]) -> None:
    with pytest.raises(CheckpointError, match=rf"do not join to the right file: {INSTALL} --force-reinstall$"):
        joined(NAME, files[::-1], target)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"second half and more"])
def test_parts_of_another_size(
    content: bytes, target: Path, files: list[Path | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_join", None)  # nothing is begun
    (tmp_path / "part2.bin").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"come to \d+ bytes, and the file has 23: .* --force-reinstall$"):
        joined(NAME, files, target)


def test_a_disk_without_room(target: Path, files: list[Path | None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_join", None)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=22))
    with pytest.raises(CheckpointError, match=r"split takes 0 MB to join, and .* has 0 MB left: make room.*RAMET_"):
        joined(NAME, files, target)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=200_000_000))
    with pytest.raises(CheckpointError, match=r"split takes 268 MB to join, and .* 200 MB left"):  # with its wheels
        joined(NAME, [files[0], None], target)


def test_a_part_never_makes_the_file_much_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a crafted archive would."""
    monkeypatch.setattr(joining, "_READ", 4)
    (source := tmp_path / "long").write_bytes(bytes(1000))
    with source.open("rb") as held, (tmp_path / "out").open("wb") as out:
        assert joining._append(held, out, joining.hashlib.sha256(), 10) == 12


def test_a_bar_is_shown_in_a_terminal_alone(
    target: Path, files: list[Path | None], capsys: pytest.CaptureFixture[str]
) -> None:
    joined(NAME, files, target)
    assert capsys.readouterr().err == ""


def test_two_at_once(target: Path, files: list[Path | None]) -> None:
    """Each has a directory of its own, and the file is whole whoever comes last."""
    threads = [threading.Thread(target=joined, args=(NAME, files, target)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() == WHOLE
    assert list(target.parent.iterdir()) == [target]


def test_what_a_killed_process_left_behind_is_removed(target: Path, files: list[Path | None]) -> None:
    (left := target.parent / "joining-abc").mkdir()
    (left / "split.gguf").write_bytes(b"a half")
    joined(NAME, files, target)
    assert not left.exists()
