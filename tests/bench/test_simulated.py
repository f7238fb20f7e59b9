"""Simulated decoding: its sequences against the blocks of a reply, and what it says against what is known."""

from __future__ import annotations

import numpy as np
import pytest
from oracles.blocks import Blocks
from oracles.curve_fit import fitted, moments
from oracles.sequences import Sequences

from ramet.bench.elastic.cells import lengths, steps
from ramet.bench.elastic.commit_curves import DATASETS, Curve, Dataset
from ramet.bench.elastic.simulated import Mode, SimulatedReplies
from ramet.bench.elastic.traces import Trace, capacity, served
from ramet.denoise.elastic import Auto, Fixed
from ramet.denoise.latency import Latency, RowTiming
from ramet.tree import BoolArray

BLOCK, MASK, EOS = 8, 99, 7
SHAREGPT = DATASETS[0]


def seconds(rows: np.ndarray, n_sequences: int = 0) -> np.ndarray:
    return np.maximum(5e-3, 5e-3 + 24e-6 * (rows - 200))


class Lucky(Sequences):
    """A row passes by its position, and by how many masked rows come before it."""

    pattern = (5, 3, 3)

    def _accept(self, masked: BoolArray) -> tuple[BoolArray, BoolArray]:
        passed = masked & np.array(
            [[lucky(self.pattern, i, j) for i, j in enumerate(np.cumsum(row) - 1)] for row in masked]
        )
        accepted = passed.copy()
        forced = masked.any(1) & ~passed.any(1)
        accepted[forced, masked[forced].argmax(1)] = True
        return accepted, passed


def lucky(pattern: tuple[int, int, int], place: int, number: int) -> bool:
    of_place, of_number, most = pattern
    return (place * of_place + number * of_number) % 7 < most


@pytest.mark.parametrize("n_tokens", [1, 3, 8, 9, 23, 32])
@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("pattern", [(5, 3, 3), (6, 0, 5), (6, 1, 4), (1, 6, 5), (0, 0, 7), (0, 0, 0)])
def test_a_sequence_does_what_blocks_do(n_tokens: int, size: int, pattern: tuple[int, int, int]) -> None:
    sequences = Lucky(Curve(0, 0), BLOCK, np.random.default_rng(0))
    sequences.pattern = pattern
    sequences.add(np.array([n_tokens]))
    blocks = Blocks(np.zeros(0, np.int32), block=BLOCK, mask=MASK, max_tokens=999, stop_ids=[EOS])
    while blocks.finish is None:
        assert sequences.uncached()[0] == blocks.n_uncached()
        chunk = blocks.chunk(size)
        positions = chunk.positions[chunk.read]
        accepted = np.array([lucky(pattern, at % BLOCK, j) for j, at in enumerate(positions.tolist())], np.bool_)
        passed = accepted.copy()
        accepted[:1] |= not accepted.any()
        blocks.take(chunk, np.where(positions == n_tokens - 1, EOS, 1).astype(np.int32), accepted)
        stepped = sequences.chunks(size)
        assert stepped.rows.tolist() == [len(chunk.tokens)]
        assert stepped.gained.tolist() == [(positions[accepted] < n_tokens).sum()]
        assert stepped.passed is not None
        inside = passed[positions < n_tokens].tolist()
        assert stepped.passed.rows.tolist() == inside
        assert stepped.passed.sizes.tolist() == ([len(inside)] if inside else [])
        assert stepped.ended.tolist() == [blocks.finish is not None]


def test_a_run_lasts_to_the_end_of_its_block() -> None:
    def gained(*, lasting: bool) -> float:
        replies = SimulatedReplies(Curve(0.0, 0.05, lasting=lasting), Fixed(8), 32, np.random.default_rng(3))
        replies.add(np.full(100, 1 << 29))
        return float(np.mean([replies.step().gained.mean() for _ in range(150)]))

    assert gained(lasting=True) > 1.2 * gained(lasting=False)


@pytest.mark.parametrize("mode", [Fixed(4), "block", "next"])
def test_every_token_is_gained_once(mode: Mode) -> None:
    wanted = np.array([1, 5, 8, 40, 13])
    replies = SimulatedReplies(Curve(0.5, 0.05), mode, BLOCK, np.random.default_rng(1))
    replies.add(wanted)
    numbers, gained = np.arange(5), np.zeros(5, np.int64)
    while len(replies):
        outcome = replies.step()
        gained[numbers] += outcome.gained
        numbers = numbers[~outcome.ended]
        replies.drop(outcome.ended)
    assert gained.tolist() == wanted.tolist()


def test_whole_blocks_pay_a_step_that_gains_nothing() -> None:
    replies = SimulatedReplies(Curve(1.0, 0.0, decay=1.0), "block", BLOCK, np.random.default_rng(0))
    replies.add(np.array([2 * BLOCK]))
    steps = [replies.step() for _ in range(3)]
    assert [(int(s.rows[0]), int(s.gained[0]), bool(s.ended[0])) for s in steps] == [
        (8, 8, False), (8, 0, False), (8, 8, True),
    ]  # fmt: skip


@pytest.mark.parametrize(("mode", "size"), [(Fixed(2), 2), (Fixed(6), 6), (Fixed(8), 8), (Fixed(16), 16), ("block", 0)])
@pytest.mark.parametrize("curve", [Curve(0.5, 0.0), Curve(0.14, 0.16), Curve(0.0, 0.1)])
def test_replies_gain_what_sequences_do(mode: Mode, size: int, curve: Curve) -> None:
    """Of a size above the block: whole blocks, kept beside what follows."""
    replies = SimulatedReplies(curve, mode, BLOCK, np.random.default_rng(0))
    sequences = Sequences(curve, BLOCK, np.random.default_rng(1))
    sums = np.zeros((2, 2))
    for each in (replies, sequences):
        each.add(np.full(100, 1 << 29))
    for step in range(300):
        outcomes = replies.step(), sequences.chunks(size) if size else sequences.whole()
        if step >= 40:
            sums += [[outcome.rows.sum(), outcome.gained.sum()] for outcome in outcomes]
    assert sums[0] == pytest.approx(sums[1], rel=0.03)


@pytest.mark.parametrize("dataset", DATASETS, ids=lambda d: d.name)
def test_curves_have_the_moments_of_the_table(dataset: Dataset) -> None:
    mean, deviation = dataset.step
    assert dataset.curve == fitted(*dataset.step)
    assert moments(dataset.curve) == (pytest.approx(mean, rel=0.002), pytest.approx(deviation, rel=0.02))
    plain = fitted(mean)
    assert plain.runs == 0
    assert moments(plain)[0] == pytest.approx(min(mean, moments(Curve(1.0, 0.0))[0]), rel=0.002)


def test_a_curve_commits_what_it_says() -> None:
    curve = DATASETS[3].curve
    sequences = Sequences(curve, 32, np.random.default_rng(0))
    sequences.add(np.full(300, 1 << 40))
    gained = np.concatenate([sequences.whole().gained for _ in range(120)])
    gained = gained[gained > 0]
    mean, deviation = moments(curve)
    assert gained.mean() == pytest.approx(mean, rel=0.04)
    assert gained.std() == pytest.approx(deviation, rel=0.06)


@pytest.mark.parametrize("batch", [4, 32, 128])
def test_auto_is_near_the_best_size(batch: int) -> None:
    """The size is worth choosing: some sizes are far off."""
    curve = fitted(3.2)

    def tokens_s(mode: Mode) -> float:
        n_steps = max(120, 2000 // batch)
        return steps(SHAREGPT, mode, batch=batch, n_steps=n_steps, curve=curve).throughput(seconds, batch).tokens_s

    sizes = [tokens_s(Fixed(size)) for size in (2, 4, 6, 8, 12, 16, 24, 32)]
    assert tokens_s(Auto(seconds, 32)) > 0.95 * max(sizes)
    assert min(sizes) < 0.75 * max(sizes)
    assert tokens_s(Auto(seconds, 32)) > 1.05 * tokens_s("block")


def test_auto_with_a_latency_that_was_fitted() -> None:
    rows = np.union1d(2 ** np.arange(13), np.arange(32, 512, 32))  # the knee is where sizes are decided
    fit = Latency.fit([RowTiming(int(r), float(s)) for r, s in zip(rows, seconds(rows), strict=True)])
    autos = [Auto(told, 32) for told in (fit.seconds, seconds)]
    found = [steps(SHAREGPT, auto, batch=32, n_steps=200, curve=fitted(3.2)).throughput(seconds, 32) for auto in autos]
    assert found[0].tokens_s > 0.97 * found[1].tokens_s


@pytest.mark.parametrize("mode", [Fixed(6), "block", "next"])
def test_one_run_tells_of_any_batch(mode: Mode) -> None:
    """Where sizes are fixed, groups of one run gain what runs of that batch do."""
    whole = steps(SHAREGPT, mode, batch=64, n_steps=300, curve=fitted(3.2))
    for batch in (8, 64):
        alone = steps(SHAREGPT, mode, batch=batch, n_steps=300 * 64 // batch, curve=fitted(3.2), seed=1)
        told, known = (each.throughput(seconds, batch) for each in (whole, alone))
        assert told.tokens_s == pytest.approx(known.tokens_s, rel=0.05)
        assert told.rows == pytest.approx(known.rows, rel=0.05)


def test_groups_choose_by_themselves() -> None:
    """Each as a batch of its own."""
    auto = Auto(seconds, 32)
    many = steps(SHAREGPT, auto, batch=16, n_steps=300, n_groups=6, curve=fitted(3.2))
    one = steps(SHAREGPT, auto, batch=16, n_steps=1500, curve=fitted(3.2))
    assert many.sizes is not None
    assert many.sizes.shape == (200, 6)
    assert len(np.unique(many.sizes[-1])) > 1
    told, known = (each.throughput(seconds, 16) for each in (many, one))
    assert told.tokens_s == pytest.approx(known.tokens_s, rel=0.06)
    assert told.size == pytest.approx(known.size, rel=0.1)


def test_a_trace_serves_every_request() -> None:
    trace = served(SHAREGPT, Auto(seconds, 32), seconds, rate=20, n_requests=60)
    assert (trace.came < trace.first).all()
    assert (trace.first <= trace.last).all()
    assert (np.diff(trace.ended) > 0).all()
    assert len(trace.sizes) == len(trace.ended) == len(trace.batches)
    assert trace.batches.max() > 4
    assert 0 < trace.per_token(0.5) <= trace.per_token()


def test_the_busier_the_smaller() -> None:
    slow, fast = (served(SHAREGPT, Auto(seconds, 32), seconds, rate=rate, n_requests=80) for rate in (1, 80))
    assert slow.sizes.mean() > 1.5 * fast.sizes[fast.batches > 20].mean()
    assert slow.per_token() < fast.per_token()


def test_first_come_first_served() -> None:
    one = served(SHAREGPT, "next", seconds, rate=50, n_requests=40, max_running=1)
    assert (np.diff(one.first) > 0).all()
    assert one.batches.max() == 1


def test_capacity_is_where_the_limit_is_passed() -> None:
    def trace(rate: float) -> Trace:
        return served(SHAREGPT, "next", seconds, rate=rate, n_requests=int(30 + 2 * rate), max_running=16)

    limit = 0.006
    rate = capacity(trace, limit, low=1, high=200)
    assert 1 < rate < 100
    assert trace(rate).per_token() <= limit
    more = trace(1.1 * rate)
    assert more.per_token() > limit or more.delay() > 1
    assert capacity(trace, 0.001, low=1, high=200) == 0


def test_lengths_have_mean_and_deviation() -> None:
    drawn = lengths(300, 200, 200_000, np.random.default_rng(0))
    assert drawn.min() >= 1
    assert drawn.mean() == pytest.approx(300, rel=0.02)
    assert drawn.std() == pytest.approx(200, rel=0.05)
