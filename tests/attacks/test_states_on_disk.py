"""A directory of states that others change: a miss and a warning each, never a wait, and no harm to what is theirs."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")

from attacks.bounded import bounded
from fixtures.tier_entries import N_BYTES, file_of, key, put, same

from ramet.cache.tiers import Tiers

MIB = 1 << 20


@pytest.fixture
def states(tmp_path: Path) -> Path:
    return tmp_path / "states"


@pytest.fixture
def opened() -> Iterator[Callable[[Path], Tiers]]:
    """Tiers on a directory alone; all are closed."""
    made: list[Tiers] = []

    def tiers(place: Path) -> Tiers:
        made.append(Tiers(0, place, 100 * N_BYTES, "model"))
        return made[-1]

    yield tiers
    for each in made:
        each.close()


def test_a_link_to_a_directory(tmp_path: Path, states: Path, opened: Callable[[Path], Tiers]) -> None:
    (tmp_path / "there").mkdir()
    states.symlink_to(tmp_path / "there")
    cache = opened(states)
    put(cache, 1)
    assert same(cache.get(key(1)), 1)
    assert states.is_symlink()


@pytest.mark.parametrize("target", ["states", "/dev/null", "/dev/full"])
def test_a_link_to_no_directory(
    target: str, states: Path, opened: Callable[[Path], Tiers], caplog: pytest.LogCaptureFixture
) -> None:
    states.symlink_to(target)
    cache = opened(states)
    put(cache, *range(5))
    assert [cache.get(key(n)) for n in range(5)] == [None] * 5
    assert "cannot write to" in caplog.messages[0]
    assert states.is_symlink()


def a_pipe(file: Path) -> None:
    os.mkfifo(file)


def without_end(file: Path) -> None:
    file.symlink_to("/dev/zero")


def a_link(file: Path) -> None:
    theirs = file.with_name("theirs")
    theirs.write_text("mine")
    file.symlink_to(theirs)


def grown(file: Path) -> None:
    with file.open("wb") as out:
        out.truncate(800 * MIB)


def a_directory(file: Path) -> None:
    file.mkdir()
    (file / "theirs").write_text("mine")


@pytest.mark.parametrize("spoil", [a_pipe, without_end, a_link, grown, a_directory])
@pytest.mark.parametrize("restarted", [False, True])
def test_what_lies_in_a_file_s_place(
    spoil: Callable[[Path], None],
    restarted: bool,
    states: Path,
    opened: Callable[[Path], Tiers],
    caplog: pytest.LogCaptureFixture,
) -> None:
    cache = opened(states)
    put(cache, 1, 2)
    file = file_of(states, 1)
    file.unlink()
    spoil(file)
    if restarted:
        cache = opened(states)
    with bounded(50):
        assert cache.get(key(1)) is None
    if not (restarted and spoil is grown):  # which goes beyond the budget, and takes the others' room
        assert same(cache.get(key(2)), 2)
    assert len(caplog.messages) <= 2
    put(cache, 3)
    assert same(cache.get(key(3)), 3)
    assert all(theirs.read_text() == "mine" for theirs in states.rglob("theirs"))


def test_what_was_left_behind_is_no_link(tmp_path: Path, states: Path, opened: Callable[[Path], Tiers]) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "file").write_text("mine")
    states.mkdir()
    link = states / ".ramet-writing-x"
    link.symlink_to(theirs)
    os.utime(link, (1, 1), follow_symlinks=False)
    opened(states)
    assert (theirs / "file").read_text() == "mine"


def test_a_directory_that_goes_while_it_is_used(
    states: Path, opened: Callable[[Path], Tiers], caplog: pytest.LogCaptureFixture
) -> None:
    cache = opened(states)
    put(cache, 1)
    shutil.rmtree(states)
    states.write_text("mine")
    put(cache, *range(2, 9))
    assert [cache.get(key(n)) for n in range(1, 9)] == [None] * 8
    assert states.read_text() == "mine"
    assert len(caplog.messages) <= 3  # of reading, of writing, and that it writes no more


def test_a_disk_that_fills_up(states: Path, opened: Callable[[Path], Tiers], caplog: pytest.LogCaptureFixture) -> None:
    """What is there is found; and what comes when there is room again, if that is soon."""
    cache = opened(states)
    put(cache, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        put(cache, 2, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    put(cache, 4)
    found = [cache.get(key(n)) for n in range(1, 5)]
    assert found[1:3] == [None, None]
    assert same(found[0], 1)
    assert same(found[3], 4)
    assert len(caplog.messages) == 1
    assert "File too large" in caplog.messages[0]
    assert not list(states.glob(".ramet-writing-*"))
