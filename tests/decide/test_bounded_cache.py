"""The bounded memory of questions."""

from __future__ import annotations

from ramet.decide.bounded_cache import BoundedCache


def test_it_gives_back_what_was_put() -> None:
    recent: BoundedCache[str, int] = BoundedCache(10)
    recent.put("a", 1, 1)
    assert recent.get("a") == 1
    assert recent.get("b") is None


def test_its_weight_stays_bounded() -> None:
    recent: BoundedCache[int, int] = BoundedCache(100)
    for i in range(1000):
        recent.put(i, i, 7)
        assert len(recent) * 7 <= 100
    assert recent.get(999) == 999
    assert recent.get(0) is None


def test_what_is_asked_for_again_outlives_what_is_not() -> None:
    recent: BoundedCache[str, int] = BoundedCache(20)
    recent.put("used", 1, 1)
    recent.put("unused", 2, 1)
    for i in range(50):
        recent.put(str(i), i, 1)
        assert recent.get("used") == 1
    assert recent.get("unused") is None


def test_what_is_too_heavy_is_not_kept() -> None:
    recent: BoundedCache[str, int] = BoundedCache(10)
    recent.put("light", 1, 5)
    recent.put("heavy", 2, 6)
    assert recent.get("heavy") is None
    assert recent.get("light") == 1
