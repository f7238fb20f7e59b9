"""A directory that is missing, full, read-only or corrupt: a warning once a kind, a miss, and never an exception."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures.tier_entries import N_BYTES, file_of, key, put, same
from safetensors import SafetensorError

from ramet.cache import directory
from ramet.cache.disk import MAX_FAILURES
from ramet.cache.tiers import Tiers

Open = Callable[[], Tiers]


@pytest.fixture
def states(tmp_path: Path) -> Path:
    return tmp_path / "states"


@pytest.fixture
def tiers(states: Path) -> Iterator[Open]:
    """Opens tiers without memory, closes them all."""
    opened: list[Tiers] = []

    def made() -> Tiers:
        opened.append(Tiers(0, states, 100 * N_BYTES, "model"))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


def fails(error: Exception) -> Callable[..., Any]:
    def failing(*args: object, **settings: object) -> None:
        raise error

    return failing


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
DENIED = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
READ_ONLY = OSError(errno.EROFS, os.strerror(errno.EROFS))
# What safetensors raises when its own write fails.
NO_SPACE_INSIDE = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_a_missing_directory_is_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = Tiers(0, tmp_path / "a" / "b" / "states", 10**6, "model")
    put(cache, 1)
    assert same(cache.get(key(1)), 1)
    cache.close()
    assert caplog.records == []


def test_a_file_in_its_place(tiers: Open, states: Path, caplog: pytest.LogCaptureFixture) -> None:
    states.write_text("mine")
    cache = tiers()
    put(cache, *range(5))
    assert [cache.get(key(n)) for n in range(5)] == [None] * 5
    cache.clear()
    cache.close()
    assert states.read_text() == "mine"
    assert [r.levelname for r in caplog.records] == ["WARNING", "WARNING"]
    assert f"cannot write to {states}" in caplog.messages[0]
    assert "nothing more is written" in caplog.messages[1]
    assert cache.stats()["disk_tier_dropped_total"] == 5


@pytest.mark.parametrize("error", [NO_SPACE, DENIED, READ_ONLY, MemoryError(), NO_SPACE_INSIDE])
def test_writes_that_fail(
    tiers: Open, states: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tiers()
    put(cache, 1)
    monkeypatch.setattr(directory, "write_entry", fails(error))
    put(cache, *range(2, 9))
    stats = cache.stats()
    assert (stats["disk_tier_failures_total"], stats["disk_tier_dropped_total"]) == (MAX_FAILURES, 7)
    assert stats["disk_tier_writing"] == 0
    assert len(caplog.messages) == 2
    assert f"{type(error).__name__}: {error}" in caplog.messages[0]
    assert "nothing more is written" in caplog.messages[1]
    assert cache.get(key(2)) is None
    assert same(cache.get(key(1)), 1)  # what is there is still read
    assert not list(states.glob(".ramet-writing-*"))


def test_the_directory_for_writing_cannot_be_made(
    tiers: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tempfile, "TemporaryDirectory", fails(READ_ONLY))
    cache = tiers()
    put(cache, 1, 2, 3)
    cache.close()
    assert cache.stats()["disk_tier_entries"] == 0
    assert len(caplog.messages) == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes anywhere")
def test_a_read_only_directory_is_read(tiers: Open, states: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = tiers()
    put(first, 1)
    first.close()
    states.chmod(0o500)
    cache = tiers()
    put(cache, *range(2, 9))
    assert same(cache.get(key(1)), 1)
    states.chmod(0o700)
    assert len(caplog.messages) == 2


def test_a_failure_now_and_then_does_not_switch_off(
    tiers: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tiers()
    for number in range(0, 2 * MAX_FAILURES + 2, 2):
        with monkeypatch.context() as patch:
            patch.setattr(directory, "write_entry", fails(NO_SPACE))
            put(cache, number)
        put(cache, number + 1)
    stats = cache.stats()
    assert (stats["disk_tier_failures_total"], stats["disk_tier_entries"]) == (MAX_FAILURES + 1, MAX_FAILURES + 1)
    assert stats["disk_tier_writing"] == 1
    assert len(caplog.messages) == 1


def flip(data: bytes) -> bytes:
    return data[:-5] + bytes([data[-5] ^ 4]) + data[-4:]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "cut in the header": lambda data: data[:20],
    "empty": lambda data: b"",
    "a flipped bit": flip,
    "another shape": lambda data: data.replace(b"[2,100]", b"[100,2]"),
    "another dtype": lambda data: data.replace(b'"BF16"', b'"F16" '),
    "longer": lambda data: data + b"\0",
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("restarted", [False, True])
def test_a_damaged_file_is_a_miss_and_removed(
    tiers: Open, states: Path, damage: Callable[[bytes], bytes], restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tiers()
    put(cache, 1, 2, 3)
    for number in (1, 2):
        file = file_of(states, number)
        whole = file.read_bytes()
        file.write_bytes(damage(whole))
        assert file.read_bytes() != whole
    if restarted:
        cache = tiers()
    assert cache.get(key(1)) is None
    assert cache.get(key(2)) is None
    assert same(cache.get(key(3)), 3)
    assert len(list(states.rglob("*.safetensors"))) == 1
    assert cache.stats()["disk_tier_damaged_total"] == 2
    (message,) = caplog.messages  # once a kind
    assert key(1).hex() in message
    put(cache, 1)
    assert same(cache.get(key(1)), 1)


def test_an_entry_under_another_key_is_damage(tiers: Open, states: Path) -> None:
    cache = tiers()
    put(cache, 1, 2)
    file_of(states, 2).write_bytes(file_of(states, 1).read_bytes())
    assert cache.get(key(2)) is None


def test_an_entry_of_another_identity_is_damage(tiers: Open, states: Path) -> None:
    other = Tiers(0, states, 100 * N_BYTES, "another model")
    put(other, 1)
    moved = file_of(states, 1).read_bytes()
    other.clear()
    other.close()
    cache = tiers()
    put(cache, 1)
    file_of(states, 1).write_bytes(moved)
    assert cache.get(key(1)) is None
    assert cache.stats()["disk_tier_damaged_total"] == 1


def test_a_damaged_file_that_cannot_be_removed(
    tiers: Open, states: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tiers()
    put(cache, 1)
    file_of(states, 1).write_bytes(b"")
    monkeypatch.setattr(Path, "unlink", fails(DENIED))
    assert cache.get(key(1)) is None
    assert cache.get(key(1)) is None
    assert cache.stats()["disk_tier_damaged_total"] == 1
    assert ["is damaged" in m for m in caplog.messages] == [True, False]
    assert "cannot remove" in caplog.messages[1]


@pytest.mark.parametrize("error", [DENIED, OSError(errno.EIO, os.strerror(errno.EIO)), MemoryError()])
def test_a_file_that_cannot_be_read(
    tiers: Open, states: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = tiers()
    put(cache, 1, 2)
    monkeypatch.setattr(directory, "_opened", fails(error))
    assert cache.get(key(1)) is None
    assert cache.get(key(2)) is None
    (message,) = caplog.messages
    assert "cannot read" in message
    assert file_of(states, 1).exists()  # it may be sound


def test_room_that_cannot_be_made_stops_writing(
    states: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Tiers(0, states, 4 * N_BYTES, "model")
    put(cache, 1, 2)
    monkeypatch.setattr(Path, "unlink", fails(DENIED))
    put(cache, *range(3, 9))
    cache.close()
    assert sum(f.stat().st_size for f in states.rglob("*.safetensors")) <= 4 * N_BYTES
    assert len(caplog.messages) == 2
