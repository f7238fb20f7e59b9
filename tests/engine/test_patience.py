"""Patience: those who are refused wait longer the more there are, never all alike, and never too long."""

from __future__ import annotations

from ramet.engine.patience import Patience


def test_waits_grow_with_the_refusals_in_a_row() -> None:
    patience = Patience()
    for n in range(1, 40):
        assert n <= patience.refused() <= 1.5 * n
    patience.admitted()
    assert 1 <= patience.refused() <= 1.5


def test_no_wait_is_longer_than_clients_heed() -> None:
    patience = Patience()
    assert max(patience.refused() for _ in range(1000)) <= 60


def test_waits_differ() -> None:
    patience = Patience()
    waits = [patience.refused() for _ in range(1040)][40:]
    assert len(set(waits)) > 900
    assert min(waits) < 45 < 55 < max(waits)
