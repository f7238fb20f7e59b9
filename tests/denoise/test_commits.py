"""What chunks gain by their size: the estimate against machines that are simulated."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.sequences import Sequences

from ramet.bench.elastic.commit_curves import Curve
from ramet.denoise.commits import Commits, Passed, Rates, counted, solve
from ramet.tree import BoolArray

BLOCK = 32
FIRST = 0.55  # of the machine that was simulated for the design, with a decay of 0.85
GAINED = {2: 1.00, 4: 1.41, 6: 1.81, 8: 2.15, 12: 2.51, 16: 2.70, 24: 2.88, 32: 2.87}  # and its tokens a step


def fresh(chunks: list[BoolArray]) -> Passed:
    """Of replies whose blocks have just begun."""
    sizes = np.array([len(chunk) for chunk in chunks], np.int64)
    return Passed(np.concatenate(chunks), sizes, np.zeros(len(chunks), np.int32))


def independent(first: float = FIRST, decay: float = 0.85, block: int = BLOCK) -> Rates:
    return solve(np.tile(first * decay ** np.arange(block), (3, 1)))


def simulated(size: int, curve: Curve, n: int = 60, n_steps: int = 400) -> tuple[float, float]:
    """Tokens and rows a step of sequences without end."""
    sequences = Sequences(curve, BLOCK, np.random.default_rng(size))
    sequences.add(np.full(n, 1 << 40))
    gained, rows = np.zeros((2, n_steps))
    for step in range(n_steps):
        stepped = sequences.chunks(size)
        gained[step], rows[step] = stepped.gained.mean(), stepped.rows.mean()
    return float(gained[100:].mean()), float(rows[100:].mean())


def seen(curve: Curve, n: int = 3000, half_life: float = 1e5) -> Commits:
    """After whole blocks of a curve."""
    rng, commits = np.random.default_rng(0), Commits(BLOCK, half_life)
    commits.observe(fresh([(rng.random(BLOCK) < curve.passing()) | (rng.random() < curve.runs) for _ in range(n)]))
    return commits


def test_known_rates() -> None:
    rates = independent()
    for size, gained in GAINED.items():
        assert rates.tokens[size] == pytest.approx(gained, rel=0.02), size
    assert rates.rows[32] == pytest.approx(17.8, rel=0.01)
    assert rates.tokens[:2].tolist() == [0, 0]


@pytest.mark.parametrize("curve", [Curve(0.55, 0.0), Curve(0.3, 0.1), Curve(0.9, 0.02, 0.9)])
def test_what_is_solved_is_what_a_machine_gains(curve: Curve) -> None:
    rates, rounding = seen(curve, 20000).rates(), 0.06 if curve.runs else 0.03
    for size in (2, 5, 12, 32):
        gained, rows = simulated(size, curve)
        assert rates.tokens[size] == pytest.approx(gained, rel=rounding), size
        assert rates.rows[size] == pytest.approx(rows, rel=rounding), size


@pytest.mark.parametrize("size", [2, 4, 8, 32])
def test_chunks_of_any_size_tell_of_all_others(size: int) -> None:
    """A run is as many more steps as chunks are smaller, and not more runs."""
    curve = Curve(0.14, 0.16)
    sequences, commits = Sequences(curve, BLOCK, np.random.default_rng(0)), Commits(BLOCK, 1e5)
    sequences.add(np.full(100, 1 << 40))
    for _ in range(300):
        shown = sequences.chunks(size).passed
        assert shown is not None
        commits.observe(shown)
    rates = commits.rates()
    for other in (2, 4, 8, 16):
        assert rates.tokens[other] == pytest.approx(simulated(other, curve)[0], rel=0.08), other


@pytest.mark.parametrize("block", [2, 3, 4, 8])
def test_small_blocks(block: int) -> None:
    rates = independent(block=block)
    assert len(rates.tokens) == block + 1
    assert (np.diff(rates.tokens) >= 0).all()


def test_nothing_passes() -> None:
    rates = independent(first=0.0)
    np.testing.assert_allclose(rates.tokens[2:], 1, rtol=1e-9)


def test_everything_passes() -> None:
    """In chunks of c every second step gains c; a whole block takes a step, and its pending rows fill the next."""
    rates = independent(first=1.0, decay=1.0)
    np.testing.assert_allclose(rates.tokens[[2, 4, 8, 16]], [1, 2, 4, 8], rtol=0.1)


def test_a_token_is_two_rows() -> None:
    for first in (0.1, 0.5, 0.9):
        rates = independent(first=first)
        assert (rates.tokens[2:] <= rates.rows[2:] / 2 + 1e-9).all()
        assert (rates.rows[2:] <= np.arange(2, BLOCK + 1) + 1e-9).all()


def test_counts_are_distributions() -> None:
    rng = np.random.default_rng(3)
    found = counted(rng.random((3, BLOCK)))
    np.testing.assert_allclose(found.sum(1), 1)
    assert (found[1:, 0] == 0).all()
    assert not np.triu(found, 1).any()


def test_runs_are_told_from_rows_that_pass_by_luck() -> None:
    """A fresh block gains as much by either, but what luck leaves of it takes more steps."""
    runs = Curve(0.2, 0.2, lasting=False)
    passing = runs.runs + (1 - runs.runs) * runs.passing()
    lucky = solve(np.tile(passing, (3, 1)))
    rates = seen(runs, 20000).rates()
    assert lucky.tokens[32] < 0.7 * rates.tokens[32]


def test_it_is_warm_after_some_chunks() -> None:
    commits = Commits(4)
    for n in range(8):
        assert not commits.is_warm, n
        commits.observe(fresh([np.ones(4, np.bool_)] * 4))
    assert commits.is_warm


def test_without_anything_seen_it_guesses() -> None:
    rates = Commits(BLOCK).rates()
    assert 1 < rates.tokens[32] < 3


def test_it_follows_what_comes_in() -> None:
    commits = seen(Curve(0.2, 0.0), 3000, half_life=200)
    slow = commits.rates().tokens[32]
    rng = np.random.default_rng(1)
    commits.observe(fresh([rng.random(BLOCK) < Curve(0.9, 0.0).passing() for _ in range(3000)]))
    for _ in range(70):
        commits.renew()
    fast = commits.rates().tokens[32]
    assert fast == pytest.approx(independent(0.9).tokens[32], rel=0.05)
    assert slow == pytest.approx(independent(0.2).tokens[32], rel=0.05)


def test_narrow_chunks_leave_what_wide_ones_showed() -> None:
    """The wide ones still gain more, so that a lower load comes back to them."""
    commits = seen(Curve(0.9, 0.0), 2000, half_life=300)
    rng = np.random.default_rng(1)
    commits.observe(fresh([rng.random(3) < Curve(0.9, 0.0).passing()[:3] for _ in range(20000)]))
    for _ in range(70):
        commits.renew()
    rates = commits.rates()
    assert rates.tokens[32] > 1.5 * rates.tokens[4]


def test_weights_stay_in_bounds() -> None:
    commits = Commits(4, half_life=1)
    for passes in (0, 1):
        for _ in range(300):
            commits.observe(fresh([np.full(4, passes, np.bool_)]))
    for _ in range(70):
        commits.renew()
    rates = commits.rates()
    assert rates.tokens[4] == pytest.approx(2, rel=0.35)
    assert np.isfinite(rates.tokens).all()


def test_chunks_of_a_step_count_as_one_by_one() -> None:
    rng = np.random.default_rng(4)
    chunks = [rng.random(n) < 0.5 for n in (3, 1, 8, 0, 5)]
    together, apart = Commits(8, 1e9), Commits(8, 1e9)
    together.observe(fresh(chunks))
    for chunk in chunks:
        apart.observe(fresh([chunk]))
    np.testing.assert_allclose(together.rates().tokens, apart.rates().tokens, rtol=1e-6)


def test_what_was_not_seen_for_long_stays_as_it_was() -> None:
    commits = Commits(BLOCK, half_life=1.0)
    commits.observe(fresh([np.arange(BLOCK) < 20] * 50))
    before = commits.rates().tokens[BLOCK]
    for _ in range(4000):
        commits.observe(fresh([np.array([True])]))
    commits._due = 0
    commits.renew()
    found = commits.rates().tokens
    assert np.isfinite(found).all()
    assert found[BLOCK] > before / 2
