"""What the index finds again, and what leaves it first, as paths of Pages see it."""

from __future__ import annotations

import numpy as np

from ramet.cache.pages import Pages, Path


def ids(*values: int) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, np.int32)


def filled(pages: Pages, n: int) -> Path:
    path = Path()
    assert pages.extend(path, n) is not None
    return path


def test_the_index_finds_full_pages_by_their_exact_tokens() -> None:
    pages = Pages(8, 4)
    path = filled(pages, 10)
    tokens = np.arange(10, dtype=np.int32)
    pages.keep(pages.keys(tokens), path)
    pages.release(path)
    assert pages.match(pages.keys(tokens)).length == 8
    assert pages.match(pages.keys(ids(0, 1, 2, 3, 4, 5, 6, 9))).length == 4
    assert pages.match(pages.keys(ids(1, 2, 3, 4))).length == 0
    assert pages.match(pages.keys(tokens, salt="tenant")).length == 0


def test_pages_that_run_out_come_from_the_least_recently_used_states() -> None:
    pages = Pages(4, 4)
    for start in (0, 100):
        path = filled(pages, 8)
        pages.keep(pages.keys(np.arange(start, start + 8, dtype=np.int32)), path)
        pages.release(path)
    held = pages.match(pages.keys(np.arange(8, dtype=np.int32)))
    assert held.length == 8
    path = filled(pages, 8)  # the other state goes: this one is held
    assert pages.index.evicted == 2
    assert pages.extend(Path(), 1) is None
    assert pages.match(pages.keys(np.arange(100, 108, dtype=np.int32))).length == 0
    for p in (held, path):
        pages.release(p)
    pages.index.clear()
    assert pages.n_free == 4


def test_the_oldest_state_goes_whole_before_any_page_of_a_newer_one() -> None:
    pages = Pages(6, 4)
    states = [np.arange(start, start + 8, dtype=np.int32) for start in (0, 100, 200)]
    for tokens in states:
        path = filled(pages, 8)
        pages.keep(pages.keys(tokens), path)
        pages.release(path)
    pages.release(pages.match(pages.keys(states[0])))  # used again: the second is the oldest now
    filled(pages, 8)
    assert [pages.match(pages.keys(tokens)).length for tokens in states] == [8, 0, 8]


def test_a_state_kept_twice_is_stored_once() -> None:
    pages = Pages(8, 4)
    tokens = np.arange(8, dtype=np.int32)
    for _ in range(2):
        path = filled(pages, 8)
        pages.keep(pages.keys(tokens), path)
        pages.release(path)
    assert (pages.n_indexed, pages.n_free) == (2, 6)


def test_a_page_that_nobody_holds_can_go_though_a_later_one_is_held() -> None:
    pages = Pages(4, 4)
    tokens = np.arange(8, dtype=np.int32)
    first, second = filled(pages, 4), filled(pages, 8)
    pages.keep(pages.keys(tokens[:4]), first)
    pages.keep(pages.keys(tokens), second)  # its second page follows the first one's page
    pages.release(first)
    assert pages.extend(second, 8) is not None
    assert pages.match(pages.keys(tokens)).length == 0
    pages.keep(pages.keys(np.arange(16, dtype=np.int32)), second)
    assert pages.match(pages.keys(tokens)).length == 8


class Recording:
    """A level below that takes all, and gives nothing back."""

    def __init__(self) -> None:
        self.pages: list[int] = []

    def __contains__(self, key: bytes) -> bool:
        return False

    def spill_page(self, key: bytes, page: int) -> None:
        self.pages.append(page)

    def spill_state(self, key: bytes, slot: int) -> None:
        raise AssertionError

    def fetch_page(self, key: bytes, page: int) -> bool:
        return False

    fetch_state = fetch_page

    def check(self, key: bytes) -> None:
        raise AssertionError

    def has_lost(self, key: bytes) -> bool:
        return False


def test_what_was_used_last_is_spilled_last() -> None:
    """So that a level below that is too small keeps it."""
    below = Recording()
    pages = Pages(6, 4, lower=below)
    paths = [filled(pages, 8) for _ in range(3)]
    for i, path in enumerate(paths):
        pages.keep(pages.keys(np.arange(100 * i, 100 * i + 8, dtype=np.int32)), path)
    own = [list(path.pages) for path in paths]
    for path in paths:
        pages.release(path)
    pages.release(pages.match(pages.keys(np.arange(8, dtype=np.int32))))
    while pages.index.spill():
        pass
    assert below.pages == [*own[1][::-1], *own[2][::-1], *own[0][::-1]]
    assert pages.n_free == 6
