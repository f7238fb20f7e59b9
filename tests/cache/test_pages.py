from __future__ import annotations

import numpy as np
import pytest

from ramet.cache.pages import Pages, Path


def filled(pages: Pages, n: int) -> Path:
    path = Path()
    assert pages.extend(path, n) is not None
    return path


def test_slots_run_through_a_paths_pages() -> None:
    pages = Pages(4, 4)
    path = filled(pages, 3)
    room = pages.extend(path, 6)
    assert room is not None
    slots, copy = room
    assert copy is None
    assert (slots % 4).tolist() == [3, 0, 1, 2, 3, 0]
    assert (slots // 4).tolist() == [path.pages[0]] + [path.pages[1]] * 4 + [path.pages[2]]


def test_a_forks_shared_last_page_is_copied_before_it_is_written() -> None:
    pages = Pages(4, 4)
    path = filled(pages, 6)
    fork = pages.fork(path)
    room = pages.extend(fork, 1)
    assert room is not None
    assert room[1] == (path.pages[1], fork.pages[1])
    assert fork.pages[0] == path.pages[0]
    assert fork.pages[1] != path.pages[1]
    pages.release(path)
    pages.release(fork)
    assert pages.n_free == 4


def test_a_shorter_fork_holds_only_the_pages_of_its_rows() -> None:
    pages = Pages(4, 4)
    path = filled(pages, 12)
    fork = pages.fork(path, 5)
    assert (fork.length, len(fork.pages)) == (5, 2)


def test_no_room_changes_nothing() -> None:
    pages = Pages(2, 4)
    path = filled(pages, 6)
    assert pages.extend(path, 4) is None
    assert (path.length, len(path.pages), pages.n_free) == (6, 2, 0)


def test_random_use_ends_with_every_page_free() -> None:
    rng = np.random.default_rng(1)
    pages = Pages(20, 4)
    held: list[tuple[Path, np.ndarray]] = []  # type: ignore[type-arg]
    for _ in range(3000):
        kind = rng.integers(0, 4)
        if kind == 0 or not held:
            tokens = rng.integers(0, 2, 12).astype(np.int32)
            path = pages.match(pages.keys(tokens))
            held.append((path, tokens[: path.length]))
        elif kind == 1:
            i = rng.integers(len(held))
            path, tokens = held[i]
            new = rng.integers(0, 2, int(rng.integers(1, 7))).astype(np.int32)
            if pages.extend(path, len(new)):
                held[i] = (path, np.concatenate([tokens, new]))
                pages.keep(pages.keys(held[i][1]), path)
        elif kind == 2:
            path, tokens = held[rng.integers(len(held))]
            n = int(rng.integers(0, path.length + 1))
            held.append((pages.fork(path, n), tokens[:n]))
        else:
            pages.release(held.pop(int(rng.integers(len(held))))[0])
    assert pages.index.evicted > 0
    for path, _ in held:
        pages.release(path)
    assert pages.n_free + pages.n_indexed == 20
    pages.index.clear()
    assert pages.n_free == 20


@pytest.mark.parametrize("salt", ["", "a", "a\0block 4", "4 ", "1 a", "\0block 4", "1", " "])
def test_no_salt_spells_another_ones_block(salt: str) -> None:
    """Salts come from callers: one must not name what another's rows are kept under."""
    pages, tokens = Pages(4, 4), np.arange(4, dtype=np.int32)
    own = pages.keys(tokens, salt, 1)
    salts = ["", "a", "a\0block 4", "4 ", "1 a", "\0block 4", "1", " "]
    others = [
        pages.keys(tokens, other, block) for other in salts for block in (1, 4, 14) if (other, block) != (salt, 1)
    ]
    assert own not in others
