"""The lower tiers together: memory, then disk, then gone."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fixtures.tier_entries import N_BYTES, entry, key, same

from ramet.cache.tiers import Tiers

Open = Callable[..., Tiers]
FILE = 2 * N_BYTES  # more than the file of one entry takes, less than two


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Open]:
    """Opens tiers with room for so many entries; closes them all."""
    opened: list[Tiers] = []

    def made(memory: int, disk: int, identity: str = "model") -> Tiers:
        opened.append(Tiers(memory * N_BYTES, tmp_path / "states", disk * FILE, identity))
        return opened[-1]

    yield made
    for each in opened:
        each.close()


def put(tiers: Tiers, *numbers: int) -> None:
    for number in numbers:
        tiers.put(key(number), entry(number))


def there(tiers: Tiers, upto: int = 20) -> set[int]:
    return {n for n in range(upto) if key(n) in tiers}


def test_memory_then_disk_then_gone(tiers: Open) -> None:
    cache = tiers(2, 3)
    put(cache, *range(10))
    cache.flush()
    stats = cache.stats()
    assert stats["memory_tier_entries"] == 2
    assert stats["memory_tier_bytes"] == 2 * N_BYTES
    assert stats["disk_tier_entries"] >= 3
    assert stats["disk_tier_bytes"] <= 3 * FILE
    assert stats["memory_tier_evicted_total"] == 8
    assert stats["disk_tier_evicted_total"] == 8 - stats["disk_tier_entries"]
    kept = there(cache)
    assert kept == set(range(10 - len(kept), 10))
    assert len(kept) == 2 + stats["disk_tier_entries"]
    assert all(cache.get(key(n)) is None for n in range(10) if n not in kept)
    assert all(same(cache.get(key(n)), n) for n in (9, 8, 7))  # two from memory, one from disk


def test_a_use_keeps_an_entry(tiers: Open) -> None:
    cache = tiers(3, 0)
    put(cache, 1, 2, 3)
    assert same(cache.get(key(1)), 1)
    put(cache, 2)  # once more
    put(cache, 4)
    assert there(cache) == {1, 2, 4}


def test_a_look_is_no_use(tiers: Open) -> None:
    cache = tiers(2, 0)
    put(cache, 1, 2)
    assert key(1) in cache
    put(cache, 3)
    assert there(cache) == {2, 3}


def test_an_entry_from_disk_is_in_memory_again(tiers: Open, tmp_path: Path) -> None:
    cache = tiers(1, 9)
    put(cache, 1, 2)
    cache.flush()
    assert same(cache.get(key(1)), 1)
    cache.flush()  # the other one goes to disk for it
    for file in tmp_path.rglob("*.safetensors"):
        file.unlink()
    assert same(cache.get(key(1)), 1)
    stats = cache.stats()
    assert (stats["disk_tier_hits_total"], stats["memory_tier_hits_total"], stats["tiers_misses_total"]) == (1, 1, 0)


def test_an_entry_on_disk_is_written_once(tiers: Open) -> None:
    cache = tiers(1, 9)
    put(cache, 1, 2, 1, 2, 1, 2)
    cache.flush()
    stats = cache.stats()
    assert stats["disk_tier_entries"] == 2
    assert stats["disk_tier_written_bytes_total"] == stats["disk_tier_bytes"]


def test_an_entry_larger_than_memory_goes_to_disk_and_moves_nothing_else(tiers: Open) -> None:
    cache = tiers(2, 9)
    put(cache, 1, 2)
    cache.put(key(3), {"a": torch.arange(1000.0)})
    cache.flush()
    assert cache.stats()["memory_tier_entries"] == 2
    found = cache.get(key(3))
    assert found is not None
    assert found["a"].tolist() == list(range(1000))
    assert cache.stats()["memory_tier_entries"] == 2


def test_each_tier_can_be_off(tiers: Open, tmp_path: Path) -> None:
    only_disk = tiers(0, 9)
    put(only_disk, 1, 2)
    assert same(only_disk.get(key(1)), 1)
    only_disk.close()
    only_memory = Tiers(9 * N_BYTES, None, 10**9, "model")
    put(only_memory, 1, 2)
    assert same(only_memory.get(key(1)), 1)
    only_memory.flush()
    only_memory.close()
    none = Tiers(0, tmp_path / "unused", 0, "model")
    put(none, 1)
    assert none.get(key(1)) is None
    assert key(1) not in none
    assert none.stats()["tiers_misses_total"] == 1
    none.clear()
    none.close()
    assert not (tmp_path / "unused").exists()


def test_memory_holds_no_more_than_the_view_that_was_put(tiers: Open) -> None:
    cache = tiers(1, 0)
    base = torch.zeros(1000, 4)
    cache.put(key(1), {"a": base[3]})
    base += 1
    found = cache.get(key(1))
    assert found is not None
    assert found["a"].untyped_storage().nbytes() == 16
    assert found["a"].tolist() == [0.0] * 4


def test_a_callers_dictionary_is_its_own(tiers: Open) -> None:
    cache = tiers(1, 0)
    put(cache, 1)
    found = cache.get(key(1))
    assert found is not None
    found.clear()
    assert same(cache.get(key(1)), 1)


def test_a_restart_finds_what_was_in_memory_and_on_disk(tiers: Open) -> None:
    cache = tiers(2, 9)
    put(cache, 1, 2, 3, 4)
    cache.close()
    again = tiers(2, 9)
    assert there(again) == {1, 2, 3, 4}
    assert all(same(again.get(key(n)), n) for n in (1, 2, 3, 4))


def test_a_restart_keeps_the_order_of_use(tiers: Open) -> None:
    cache = tiers(2, 9)
    put(cache, 1, 2, 3, 4)
    cache.flush()
    assert same(cache.get(key(1)), 1)  # 3 leaves memory: last used are 4, then 1
    cache.close()
    again = tiers(0, 9)
    put(again, *range(5, 20))
    again.flush()
    n_kept = int(again.stats()["disk_tier_entries"])
    assert there(again) == set([2, 3, 4, 1, *range(5, 20)][-n_kept:])


def test_close_marks_what_was_on_disk_already(tiers: Open) -> None:
    cache = tiers(1, 9)
    put(cache, 1, 2)
    cache.flush()
    assert same(cache.get(key(1)), 1)  # 2 leaves memory and is written after 1 was
    cache.close()
    assert there(tiers(0, 1)) == {1}


def test_close_writes_the_last_used_that_fit(tiers: Open) -> None:
    cache = tiers(8, 2)
    put(cache, *range(8))
    cache.close()
    again = tiers(0, 2)
    kept = there(again)
    assert len(kept) >= 2
    assert kept == set(range(8 - len(kept), 8))


def test_nothing_is_there_after_close(tiers: Open) -> None:
    cache = tiers(1, 9)
    put(cache, 1, 2)
    cache.close()
    cache.close()
    put(cache, 3)
    assert there(cache) == set()
    assert [cache.get(key(n)) for n in (1, 2, 3)] == [None] * 3
    cache.flush()
    assert cache.stats()["memory_tier_entries"] == 0


def test_clear_forgets_everything(tiers: Open) -> None:
    cache = tiers(1, 9)
    put(cache, 1, 2, 3)
    cache.flush()
    cache.clear()
    assert there(cache) == set()
    put(cache, 2, 4)
    assert same(cache.get(key(2)), 2)
    cache.close()
    assert there(tiers(0, 9)) == {2, 4}


def test_another_identity_finds_nothing_and_loses_nothing(tiers: Open) -> None:
    mine = tiers(0, 9, "a model")
    put(mine, 1)
    mine.close()
    other = tiers(0, 9, "another model")
    assert other.get(key(1)) is None
    other.clear()
    other.close()
    assert same(tiers(0, 9, "a model").get(key(1)), 1)


def test_figures_are_names_for_metrics(tiers: Open) -> None:
    cache = tiers(1, 2)
    for name, value in cache.stats().items():
        assert re.fullmatch("[a-z_]+", name)
        assert type(value) is float


def test_random_use_returns_what_was_put_within_the_budgets(tiers: Open, tmp_path: Path) -> None:
    draw = random.Random(0)
    cache = tiers(3, 4)
    hits = 0
    for _ in range(400):
        number = draw.randrange(12)
        if draw.random() < 0.5:
            put(cache, number)
        else:
            found = cache.get(key(number))
            assert found is None or same(found, number)
            hits += found is not None
        if draw.random() < 0.05:
            cache.close()
            cache = tiers(3, 4)
        assert cache.stats()["memory_tier_bytes"] <= 3 * N_BYTES
    cache.flush()
    stats = cache.stats()
    sizes = [file.stat().st_size for file in tmp_path.rglob("*.safetensors")]
    assert (len(sizes), sum(sizes)) == (stats["disk_tier_entries"], stats["disk_tier_bytes"])
    assert sum(sizes) <= 4 * FILE
    assert hits > 100


def test_several_threads_and_two_processes_worth_of_tiers(tiers: Open) -> None:
    caches = [tiers(2, 3), tiers(2, 3)]

    def work(seed: int) -> int:
        draw, cache, hits = random.Random(seed), caches[seed % 2], 0
        for _ in range(60):
            number = draw.randrange(8)
            found = cache.get(key(number))
            assert found is None or same(found, number)
            hits += found is not None
            put(cache, draw.randrange(8))
            cache.stats()
            if draw.random() < 0.02:
                cache.clear()
        return hits

    with ThreadPoolExecutor(4) as pool:
        hits = sum(pool.map(work, range(4)))
    total = [cache.stats() for cache in caches]
    assert hits == sum(s["memory_tier_hits_total"] + s["disk_tier_hits_total"] for s in total) > 0
    assert hits + sum(s["tiers_misses_total"] for s in total) == 240
    assert all(s["disk_tier_failures_total"] == s["disk_tier_damaged_total"] == 0 for s in total)
