"""Steps measured at a start: which, how often, and when they are measured again."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ramet.denoise.latency import Latency
from ramet.denoise.profile import Setup
from ramet.engine import latency
from ramet.errors import InvalidRequest

BLOCK, BATCH, ROWS = 32, 256, 8192
SETUP = Setup("a1b2", "bfloat16", "Some Card", "0.1")


def seconds(rows: float) -> float:
    return 5e-3 + 24e-6 * max(rows - 320, 0)


class Card:
    """Counts steps instead of running them."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.asked = scale, Counter[tuple[int, int]]()

    def step(self, n_replies: int, n_rows: int) -> float:
        assert 1 <= n_replies <= BATCH
        assert 2 <= n_rows <= BLOCK
        self.asked[n_replies, n_rows] += 1
        return self.scale * seconds(n_replies * n_rows) * (10 if self.asked[n_replies, n_rows] == 1 else 1)


def test_points_lie_around_the_knee_and_reach_to_the_end() -> None:
    timings = latency.measure(Card().step, BLOCK, BATCH, ROWS)
    rows = sorted({timing.rows for timing in timings})
    assert (rows[0], rows[-1]) == (2, ROWS)
    near = [n for n in rows if 128 <= n <= 512]
    assert max(np.diff(near)) == 32
    assert len(rows) < 60


def test_what_warms_up_does_not_count_and_the_fit_is_the_curve() -> None:
    fit = Latency.fit(latency.measure(Card().step, BLOCK, BATCH, ROWS))
    assert fit.error < 0.02
    at = np.array([2, 100, 300, 500, 2000, 8000])
    np.testing.assert_allclose(fit.seconds(at), [seconds(n) for n in at], rtol=0.02)


def test_few_replies_and_many_of_the_same_rows() -> None:
    card = Card()
    latency.measure(card.step, BLOCK, BATCH, ROWS)
    shapes = {rows: {n for n, each in card.asked if n * each == rows} for rows in (256, 1024)}
    assert shapes == {256: {8, 32}, 1024: {32, 128}}


@pytest.mark.parametrize(("batch", "rows"), [(1, 32), (4, 100), (256, 64), (3, 8192)])
def test_small_limits_are_kept(batch: int, rows: int) -> None:
    def step(n_replies: int, n_rows: int) -> float:
        assert n_replies <= batch
        assert n_replies * n_rows <= rows
        return seconds(n_replies * n_rows)

    assert latency.measure(step, BLOCK, batch, rows)


def test_long_steps_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only steps move on."""
    now, card = itertools.count(), Card(scale=20)
    spent = [0.0]

    def step(n_replies: int, n_rows: int) -> float:
        took = card.step(n_replies, n_rows)
        spent[0] += took
        return took

    monkeypatch.setattr(latency.time, "perf_counter", lambda: spent[0] + 1e-9 * next(now))
    timings = latency.measure(step, BLOCK, BATCH, ROWS, budget_s=20.0)
    assert len({timing.rows for timing in timings}) >= 6
    assert max(timing.rows for timing in timings) < ROWS
    assert spent[0] < 40


def test_a_start_measures_once(tmp_path: Path) -> None:
    first, second = Card(), Card()
    fits = [latency.latency(card.step, BLOCK, BATCH, ROWS, SETUP, tmp_path) for card in (first, second)]
    assert fits[0] == fits[1]
    assert first.asked
    assert not second.asked
    assert "ms and" in latency.describe(fits[0])


def test_what_smaller_rounds_took_is_not_taken_for_larger_ones(tmp_path: Path) -> None:
    for block, rows in ((BLOCK, 64), (BLOCK, ROWS), (16, ROWS)):
        card = Card()
        latency.latency(card.step, block, BATCH, rows, SETUP, tmp_path)
        assert card.asked


def test_rounds_that_are_too_small_to_tell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        latency.latency(Card().step, 4, BATCH, 8, SETUP, tmp_path)
    assert caught.value.field == "max_round_tokens"


def test_a_machine_with_other_work_is_measured_again(tmp_path: Path) -> None:
    """At first most steps take longer."""
    rng, n = np.random.default_rng(1), itertools.count()

    def step(n_replies: int, n_rows: int) -> float:
        slow = next(n) < 500 and rng.random() < 0.9
        return seconds(n_replies * n_rows) * (4.0 if slow else 1.0)

    fit = latency.latency(step, BLOCK, BATCH, ROWS, SETUP, tmp_path)
    assert fit.error < 0.05
    assert next(n) > 600


def test_a_curve_that_rows_do_not_explain_is_warned_of_and_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def wild(n_replies: int, n_rows: int) -> float:
        return seconds(n_replies * n_rows) * (3.0 if (n_replies * n_rows).bit_length() % 2 else 0.3)

    assert latency.latency(wild, BLOCK, BATCH, ROWS, SETUP, tmp_path).error > 0.15
    assert "chunk_size" in caplog.text
    assert not list(tmp_path.iterdir())
