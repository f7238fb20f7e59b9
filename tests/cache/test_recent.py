"""The mapping in the order of last use."""

from __future__ import annotations

import pytest

from ramet.cache.recent import Recent


def filled(*sizes: int) -> Recent[str, int]:
    recent: Recent[str, int] = Recent(int)
    for name, size in zip("abcdef", sizes, strict=False):
        recent.put(name, size)
    return recent


def order(recent: Recent[str, int]) -> str:
    return "".join(name for name, _ in recent.items())


def test_a_use_moves_to_the_end_and_a_look_does_not() -> None:
    recent = filled(1, 2, 3)
    assert recent.get("a") == 1
    assert "b" in recent
    assert (order(recent), recent.oldest()) == ("bca", ("b", 2))


def test_bytes_are_of_what_is_held() -> None:
    recent = filled(1, 2, 3)
    recent.put("a", 10)
    assert (recent.n_bytes, order(recent)) == (15, "bca")
    recent.drop("b")
    recent.drop("b")
    assert (recent.n_bytes, len(recent)) == (13, 2)
    recent.clear()
    assert (recent.n_bytes, len(recent)) == (0, 0)


def test_a_value_without_bytes_counts_as_there() -> None:
    recent = filled(0, 1)
    assert recent.get("a") == 0
    recent.drop("a")
    assert "a" not in recent


def test_what_is_not_there() -> None:
    recent = filled()
    assert recent.get("a") is None
    with pytest.raises(StopIteration):
        recent.oldest()
