"""The time of a step by its rows: fits to curves that are known, and their correction on the way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.denoise.latency import MAX_ERROR, Drift, Latency, RowTiming

ROWS = np.array([1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192])


def curve(rows: np.ndarray, knots: tuple[int, int] = (128, 512)) -> np.ndarray:
    first, second = (np.maximum(rows - knot, 0) for knot in knots)
    return 5e-3 + 1e-6 * rows + 9e-6 * first + 17e-6 * second


def timings(rows: np.ndarray, seconds: np.ndarray, keys: np.ndarray | None = None) -> list[RowTiming]:
    keys = np.zeros_like(rows) if keys is None else keys
    return [RowTiming(int(r), float(s), int(k)) for r, s, k in zip(rows, seconds, keys, strict=True)]


@pytest.mark.parametrize("knots", [(128, 512), (16, 32), (64, 4096)])
def test_a_curve_of_three_pieces_is_found(knots: tuple[int, int]) -> None:
    fit = Latency.fit(timings(ROWS, curve(ROWS, knots)))
    assert fit.knots == knots
    assert fit.base == pytest.approx(5e-3, rel=1e-6)
    assert fit.slopes == pytest.approx((1e-6, 10e-6, 27e-6), rel=1e-5)
    between = np.array([3, 100, 300, 600, 3000])
    np.testing.assert_allclose(fit.seconds(between), curve(between, knots), rtol=1e-6)


def test_noise_and_keys() -> None:
    rng = np.random.default_rng(1)
    rows, each = np.repeat(ROWS, 3), np.tile([100, 600, 2000], len(ROWS))
    keys = rows * each
    seconds = (curve(rows) + 2e-10 * keys) * (1 + 0.02 * rng.standard_normal(len(rows)))
    fit = Latency.fit(timings(rows, seconds, keys))
    assert fit.per_key == pytest.approx(2e-10, rel=0.4)
    assert 0.005 < fit.error < 0.04
    np.testing.assert_allclose(fit.seconds(rows, keys), curve(rows) + 2e-10 * keys, rtol=0.05)


def test_keys_that_go_with_the_rows_are_not_told_apart() -> None:
    assert Latency.fit(timings(ROWS, curve(ROWS), 500 * ROWS)).per_key == 0


@given(st.lists(st.floats(0.2, 5.0), min_size=12, max_size=12))
def test_pieces_rise_whatever_was_measured(factors: list[float]) -> None:
    rows = 2 ** np.arange(12)
    fit = Latency.fit(timings(rows, 1e-3 * np.array(factors)))
    assert 0 <= fit.slopes[0] <= fit.slopes[1] <= fit.slopes[2]
    assert fit.base >= 0
    assert fit.knots[0] < fit.knots[1]
    assert (np.diff(fit.seconds(rows)) >= 0).all()


def test_a_fit_is_the_best_of_its_kind() -> None:
    """No other knots, and no small change of a coefficient, come nearer."""
    rng = np.random.default_rng(2)
    seconds = curve(ROWS) * (1 + 0.1 * rng.standard_normal(len(ROWS)))
    fit = Latency.fit(timings(ROWS, seconds))

    def misfit(latency: Latency) -> float:
        return float(((latency.seconds(ROWS) / seconds - 1) ** 2).sum())

    best, (first, second, third) = misfit(fit), fit.slopes
    for factor in (0.999, 1.001):
        assert misfit(Latency(fit.knots, fit.base * factor, fit.slopes, 0, 0)) >= best
        for slopes in ((first * factor, second, third), (first, second, third * factor)):
            assert slopes[0] > slopes[1] or misfit(Latency(fit.knots, fit.base, slopes, 0, 0)) >= best
        assert misfit(Latency((fit.knots[0] * factor, fit.knots[1]), fit.base, fit.slopes, 0, 0)) >= best - 1e-4


def test_a_curve_that_rows_do_not_explain_says_so() -> None:
    rng = np.random.default_rng(0)
    wild = Latency.fit(timings(ROWS, curve(ROWS) * rng.choice([0.5, 1.8], len(ROWS))))
    assert wild.error > MAX_ERROR == 0.15
    assert Latency.fit(timings(ROWS, curve(ROWS))).error <= MAX_ERROR


def test_too_few_numbers_of_rows() -> None:
    with pytest.raises(ValueError, match="5 numbers of rows"):
        Latency.fit(timings(ROWS[:5], curve(ROWS[:5])))


@pytest.mark.parametrize("wrong", [(0, 1.0, 0), (1, 0.0, 0), (1, float("nan"), 0), (1, 1.0, -1)])
def test_what_is_no_step(wrong: tuple[int, float, int]) -> None:
    with pytest.raises(ValueError):
        RowTiming(*wrong)


def test_drift_corrects_where_steps_ran() -> None:
    fit = Latency.fit(timings(ROWS, curve(ROWS)))
    drift = Drift(fit)
    np.testing.assert_allclose(drift.seconds(ROWS), fit.seconds(ROWS))
    for _ in range(1000):
        drift.observe(2000, 1.5 * float(fit.seconds(2000)))
        drift.observe(64, float(fit.seconds(64)))
    assert float(drift.seconds(2000)) == pytest.approx(1.5 * float(fit.seconds(2000)), rel=1e-3)
    assert float(drift.seconds(64)) == pytest.approx(float(fit.seconds(64)), rel=1e-3)
    between = drift.seconds(np.arange(64, 2000, 10)) / fit.seconds(np.arange(64, 2000, 10))
    assert (np.diff(between) >= -1e-12).all()
    assert np.abs(np.diff(between)).max() < 0.02


def test_drift_forgets() -> None:
    fit = Latency.fit(timings(ROWS, curve(ROWS)))
    drift = Drift(fit, half_life=10)
    for factor, n in ((2.0, 500), (1.0, 100)):
        for _ in range(n):
            drift.observe(300, factor * float(fit.seconds(300)))
    assert float(drift.seconds(300)) == pytest.approx(float(fit.seconds(300)), rel=0.01)


def test_drift_of_one_piece_is_no_reason_for_another() -> None:
    """Steps are 1.3 times as long as was told, all of them, but of one number of rows alone does anything tell."""
    fit = Latency.fit(timings(ROWS, curve(ROWS)))
    for rows in (8, 300, 3000):
        drift = Drift(fit)
        for _ in range(1000):
            drift.observe(rows, 1.3 * float(fit.seconds(rows)))
        np.testing.assert_allclose(drift.seconds(ROWS), 1.3 * fit.seconds(ROWS), rtol=1e-3)


def test_what_passes_between_steps_is_there_whatever_their_rows() -> None:
    fit = Latency.fit(timings(ROWS, curve(ROWS)))
    drift = Drift(fit, half_life=10)
    for between in (1e-3, 1e-3, *[2e-3] * 300):
        drift.observe(300, float(fit.seconds(300)), between=between)
    np.testing.assert_allclose(drift.seconds(ROWS), fit.seconds(ROWS) + 2e-3, rtol=1e-6)
