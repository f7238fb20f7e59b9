"""The tier on disk: its queue, its budget, and a directory that others use too."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fixtures.tier_entries import N_BYTES, entry, key, same
from fixtures.waiting import GUARD_S

from ramet.cache.directory import Directory
from ramet.cache.disk import Disk
from ramet.cache.entry import Entry

Open = Callable[..., Disk]


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Open]:
    """Opens disk tiers on one directory; closes them all."""
    opened: list[Disk] = []

    def made(max_bytes: int = 10**6, identity: str = "model", **settings: int) -> Disk:
        opened.append(Disk(tmp_path / "states", max_bytes, identity, **settings))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


class Gate:
    """Holds back every write until it is opened; `reached` is set when one waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        write = Directory.write

        def gated(directory: Directory, name: str, entry: Entry) -> int:
            self.reached.set()
            assert self.open.wait(GUARD_S)
            return write(directory, name, entry)

        monkeypatch.setattr(Directory, "write", gated)


def put(disk: Disk, *numbers: int) -> None:
    for number in numbers:
        disk.put(key(number), entry(number))


def there(disk: Disk, upto: int = 20) -> set[int]:
    return {n for n in range(upto) if key(n) in disk}


def files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.safetensors"))


def test_an_entry_waiting_to_be_written_is_found(disks: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = Gate(monkeypatch)
    disk = disks()
    put(disk, 1, 2)
    assert gate.reached.wait(GUARD_S)
    assert same(disk.get(key(1)), 1)
    assert same(disk.get(key(2)), 2)
    assert files(tmp_path) == []
    assert disk.stats()["disk_tier_queued_bytes"] == 2 * N_BYTES
    gate.open.set()
    disk.flush()
    assert len(files(tmp_path)) == 2
    assert disk.stats()["disk_tier_queued_bytes"] == 0


def test_a_full_queue_drops_and_counts(disks: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    disk = disks(queue_bytes=2 * N_BYTES)
    put(disk, 1, 2, 3, 4, 1)
    assert there(disk) == {1, 2}
    assert disk.stats()["disk_tier_dropped_total"] == 2
    gate.open.set()
    disk.flush()
    put(disk, 3)
    assert there(disk) == {1, 2, 3}


def test_an_entry_larger_than_the_queue_is_written_alone(disks: Open) -> None:
    disk = disks(queue_bytes=10)
    put(disk, 1)
    disk.flush()
    assert same(disk.get(key(1)), 1)


def test_an_entry_larger_than_the_budget_is_dropped(disks: Open, tmp_path: Path) -> None:
    disk = disks(N_BYTES - 1)
    put(disk, 1)
    disk.flush()
    assert (there(disk), files(tmp_path)) == (set(), [])
    assert disk.stats()["disk_tier_dropped_total"] == 1


def test_an_entry_whose_file_alone_exceeds_the_budget(disks: Open, tmp_path: Path) -> None:
    disk = disks(N_BYTES)
    put(disk, 1)
    disk.flush()
    assert (there(disk), files(tmp_path)) == (set(), [])


def test_clear_while_writing_leaves_nothing(disks: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gate = Gate(monkeypatch)
    disk = disks()
    put(disk, 1, 2, 3)
    assert gate.reached.wait(GUARD_S)
    clearing = threading.Thread(target=disk.clear)
    clearing.start()
    gate.open.set()
    clearing.join()
    disk.flush()
    assert (there(disk), files(tmp_path)) == (set(), [])


def test_an_entry_cleared_before_the_thread_came_to_it_is_not_written(disks: Open, tmp_path: Path) -> None:
    disk = disks()
    disk._store(Directory(tmp_path, "model").name(key(1)), entry(1))
    assert (there(disk), files(tmp_path)) == (set(), [])


def test_names_are_for_people_and_fan_out(disks: Open, tmp_path: Path) -> None:
    disk = disks(identity="smollm2, bfloat16, 32 tokens a page")
    disk.put(bytes(range(20)), entry(0))
    disk.flush()
    (file,) = files(tmp_path)
    assert (file.name, file.parent.name) == (bytes(range(20)).hex() + ".safetensors", "00")
    note = json.loads((file.parents[1] / "identity.json").read_text())
    assert note == {"identity": "smollm2, bfloat16, 32 tokens a page"}
    assert not list((tmp_path / "states").glob(".ramet-writing-*"))


def test_only_the_user_can_read_states(disks: Open, tmp_path: Path) -> None:
    put(disks(), 1)
    assert (tmp_path / "states").stat().st_mode & 0o077 == 0


def test_a_smaller_budget_at_the_next_start(disks: Open, tmp_path: Path) -> None:
    disk = disks()
    put(disk, *range(6))
    disk.close()
    smaller = disks(4 * N_BYTES)
    kept = there(smaller)
    assert 2 <= len(kept) <= 4
    assert kept == set(range(6 - len(kept), 6))
    assert sum(f.stat().st_size for f in files(tmp_path)) <= 4 * N_BYTES


def test_the_budget_counts_files_of_other_identities(disks: Open, tmp_path: Path) -> None:
    old = disks(identity="old")
    put(old, *range(6))
    old.close()
    new = disks(5 * N_BYTES, identity="new")
    assert there(new) == set()
    put(new, *range(4))
    new.flush()
    assert sum(f.stat().st_size for f in files(tmp_path)) <= 5 * N_BYTES
    assert there(disks(identity="old")) == set()  # the least recently used
    assert 2 <= len(there(new)) <= 4


def test_what_another_process_wrote_is_found_and_counted(disks: Open, tmp_path: Path) -> None:
    first, second = disks(8 * N_BYTES), disks(8 * N_BYTES)
    put(second, 1)
    second.flush()
    assert there(first) == set()
    put(first, 2)  # more than an eighth of the budget: the directory is read again
    first.flush()
    assert same(first.get(key(1)), 1)
    put(first, *range(3, 9))
    put(second, *range(10, 16))
    first.flush()
    second.flush()
    assert sum(f.stat().st_size for f in files(tmp_path)) <= 9.5 * N_BYTES  # one file above: both wrote at a time


def test_a_file_that_another_process_removed_is_a_miss(
    disks: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = disks()
    put(disk, 1)
    disk.flush()
    files(tmp_path)[0].unlink()
    assert disk.get(key(1)) is None
    assert there(disk) == set()
    assert caplog.records == []
    put(disk, 1)
    disk.flush()
    assert same(disk.get(key(1)), 1)


def test_a_directory_removed_meanwhile_is_made_again(disks: Open, tmp_path: Path) -> None:
    disk = disks()
    put(disk, 1)
    disk.flush()
    (tmp_path / "states").rename(tmp_path / "elsewhere")
    put(disk, 2)
    disk.flush()
    assert same(disk.get(key(2)), 2)
    assert disk.get(key(1)) is None


def test_foreign_files_are_left_alone(disks: Open, tmp_path: Path) -> None:
    disk = disks()
    put(disk, 1)
    disk.close()
    own = files(tmp_path)[0]
    foreign = [
        tmp_path / "states" / "model.safetensors",
        tmp_path / "states" / "notes" / own.parent.name / own.name,
        own.with_name("weights.safetensors"),
        own.with_suffix(".bak"),
        own.with_name("f" * 40 + ".safetensors"),
    ]
    for file in foreign[:-1]:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 10**5)
    foreign[-1].mkdir()  # a directory by an entry's name
    again = disks(8 * N_BYTES)
    again.clear()
    put(again, *range(12))
    again.flush()
    assert all(file.exists() for file in foreign)
    assert again.stats()["disk_tier_failures_total"] == 0


def test_what_a_killed_process_left_is_removed_when_old(disks: Open, tmp_path: Path) -> None:
    disks().close()
    old, young = (tmp_path / "states" / f".ramet-writing-{name}" for name in ("old", "young"))
    for scratch in (old, young):
        scratch.mkdir()
        (scratch / "half").write_bytes(b"x")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    disks()
    assert (old.exists(), young.exists()) == (False, True)


def test_thousands_of_files_are_found_in_their_order(disks: Open, tmp_path: Path) -> None:
    names = Directory(tmp_path / "states", "model")
    names.prepare()
    for number in range(3000):
        file = tmp_path / "states" / names.name(number.to_bytes(2, "big") * 10)
        file.parent.mkdir(exist_ok=True)
        file.touch()
        os.utime(file, ns=(0, 10**18 - number))
    found = list(names.scan())
    assert found == [names.name(number.to_bytes(2, "big") * 10) for number in reversed(range(3000))]
    assert disks().stats()["disk_tier_entries"] == 3000
