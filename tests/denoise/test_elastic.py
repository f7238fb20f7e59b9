"""The choice of a round's size of chunks."""

from __future__ import annotations

import numpy as np
import pytest

from ramet.denoise.commits import Rates, solve
from ramet.denoise.elastic import Auto, ChunkTiers, Demand, Fixed, Repeating, fixed_size
from ramet.errors import InvalidRequest

BLOCK = 32
RATES = solve(np.tile(0.55 * 0.85 ** np.arange(BLOCK), (3, 1)))
HARD = solve(np.tile(0.05 * 0.5 ** np.arange(BLOCK), (3, 1)))


def step(rows: np.ndarray, keys: int = 0) -> np.ndarray:
    return np.maximum(5e-3, 5e-3 + 24e-6 * (rows - 256)) + 1e-7 * keys


def demand(n: int, uncached: int = BLOCK, rates: Rates | None = RATES) -> list[Demand]:
    return [Demand(np.full(n, uncached, np.int32), rates)]


def test_the_more_sequences_the_smaller() -> None:
    auto = Auto(step, BLOCK)
    sizes = [auto.choose(demand(n)) for n in (1, 4, 16, 32, 64, 128, 256)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 16
    assert sizes[-1] == 2


def test_it_is_the_best_of_all() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        demands = [Demand(rng.integers(1, 40, rng.integers(1, 60)).astype(np.int32), rates) for rates in (RATES, HARD)]
        n_other = int(rng.integers(0, 500))
        size = Auto(step, BLOCK).choose(demands, n_other)

        def outlook(c: int, demands: list[Demand] = demands) -> tuple[float, float]:
            runs = [(min(int(u), c), d.rates) for d in demands for u in d.uncached]
            return sum(rates.tokens[rows] for rows, rates in runs if rates), float(sum(rows for rows, _ in runs))

        def time(rows: float) -> float:
            return float(step(np.array(rows)))

        each = {c: outlook(c) for c in range(2, BLOCK + 1)}
        rate = max(tokens / time(rows) for tokens, rows in each.values())
        worth = {c: tokens - rate * time(rows + n_other) for c, (tokens, rows) in each.items()}
        assert worth[size] == pytest.approx(max(worth.values()))


def test_of_equals_the_smaller() -> None:
    assert Auto(step, BLOCK).choose(demand(1, uncached=5)) == 5
    flat = Rates(np.minimum(np.arange(BLOCK + 1), 7.0), RATES.rows)
    assert Auto(lambda rows, _: np.ones_like(rows), BLOCK).choose(demand(3, rates=flat)) == 7


def test_other_rows_make_chunks_dearer_where_each_row_costs() -> None:
    auto = Auto(step, BLOCK)
    alone = auto.choose(demand(8))
    assert auto.choose(demand(8), n_other=1000) < alone
    assert auto.choose(demand(8)) == alone
    flat = Auto(lambda rows, _: np.full(rows.shape, 5e-3), BLOCK)
    assert flat.choose(demand(8)) == flat.choose(demand(8), n_other=1000) == BLOCK


def test_the_time_of_other_rows_is_no_reason_for_larger_chunks() -> None:
    """However long the prompts of a round take."""
    auto = Auto(step, BLOCK)
    auto.choose(demand(128))
    sizes = {auto.choose(demand(128), n_other) for n_other in (300, 3000, 30000)}
    assert sizes == {2}
    rows = 30000 + 128 * np.arange(2, BLOCK + 1)
    assert (RATES.tokens[2:] / step(rows)).argmax() > 4, "by tokens and seconds of that round alone"


def test_until_anything_is_known_the_largest() -> None:
    assert Auto(step, BLOCK).choose(demand(256, rates=None)) == BLOCK


def test_of_whom_nothing_is_known_is_taken_to_be_like_others() -> None:
    wanted = Auto(step, BLOCK).choose(demand(256))
    assert wanted < BLOCK
    assert Auto(step, BLOCK).choose(demand(3, rates=None) + demand(253)) == wanted


def test_only_sizes_that_are_given() -> None:
    auto = Auto(step, BLOCK, sizes=(4, 16))
    assert {auto.choose(demand(n)) for n in (1, 8, 64, 256)} == {4, 16}
    with pytest.raises(InvalidRequest, match="chunk_sizes"):
        Auto(step, BLOCK, sizes=(1, 4))


def test_damping_keeps_the_size_in_use() -> None:
    auto, damped = Auto(step, BLOCK), Auto(step, BLOCK, damping=0.5)
    before = damped.choose(demand(16))
    assert damped.choose(demand(20)) == before != auto.choose(demand(20))
    assert damped.choose(demand(256)) == 2, "a large gain is taken"


def test_nothing_to_decode() -> None:
    assert Auto(step, BLOCK).choose([]) == BLOCK
    auto = Auto(step, BLOCK)
    rounds = (([], 500), (demand(256), 0), ([], 0), (demand(256), 900))
    assert [auto.choose(demands, n_other) for demands, n_other in rounds] == [BLOCK, 2, BLOCK, 2]


def test_what_is_alone_has_one_size_whatever_was_measured() -> None:
    """And however long steps took, or how much they gained, before."""
    alone = 2 * BLOCK
    for seconds in (step, lambda rows, _: 1e-3 * rows, lambda rows, _: rows**2):
        sizes = Repeating(Auto(seconds, BLOCK), alone)
        for rates in (RATES, HARD, None):
            for n_before in (256, 8):
                sizes.choose(demand(n_before, rates=rates))
                assert {sizes.choose(demand(1, uncached, rates)) for uncached in (1, 5, BLOCK)} == {alone}


def test_what_is_not_alone_has_the_size_that_others_choose() -> None:
    auto, sizes = Auto(step, BLOCK), Repeating(Auto(step, BLOCK), 2 * BLOCK)
    for demands, n_other in ((demand(2), 0), (demand(1), 500), (demand(256), 0), (demand(1) + demand(1), 0), ([], 7)):
        assert sizes.choose(demands, n_other) == auto.choose(demands, n_other) <= BLOCK


@pytest.mark.parametrize(
    ("told", "tiers", "wanted"),
    [("12", None, 12), ("auto", None, BLOCK), ("block", None, BLOCK), ("auto", "4:32,32:16", 32), ("block", "1:8", 8)],
)
def test_a_size_at_any_load(told: str, tiers: str | None, wanted: int) -> None:
    assert fixed_size(told, BLOCK, tiers) == wanted


@pytest.mark.parametrize("told", ["1", "33", "0", "-4", "many", "", "4.0", "٣x"])
def test_what_is_no_size(told: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        fixed_size(told, BLOCK)
    assert caught.value.field == "chunk_size"


def test_tiers() -> None:
    tiers = ChunkTiers.parse("4:32,32:16,256:8", BLOCK)
    assert [tiers.choose(demand(n)) for n in (1, 4, 5, 32, 33, 256, 1000)] == [32, 32, 16, 16, 8, 8, 8]
    assert ChunkTiers.parse("4:32,32:16", BLOCK, 64).tiers == ((4, 64), (32, 16)), "a block is the largest size"
    assert Fixed(12).choose(demand(256)) == 12


@pytest.mark.parametrize("told", ["", "4", "4:32,3:16", "4:32,4:16", "0:8", "4:64", "4:1", "a:b", "4:8:2"])
def test_what_are_no_tiers(told: str) -> None:
    with pytest.raises(InvalidRequest, match="chunk_tiers"):
        ChunkTiers.parse(told, BLOCK)


def test_what_chunks_share_is_worth_larger_ones() -> None:
    """Keys in pages are read once a step, whatever its chunks gain."""
    far = [Demand(np.full(128, BLOCK, np.int32), RATES, keys=128 * 4000)]
    assert Auto(step, BLOCK).choose(far) > Auto(step, BLOCK).choose(demand(128))
