"""Which masked rows keep what was drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.denoise.unmask_policy import Strategy, UnmaskPolicy, dynamic, entropy_bounded, static
from ramet.errors import InvalidRequest

STRATEGIES: tuple[Strategy, ...] = (
    "low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded",
)  # fmt: skip
CONFIDENCE = np.array([0.5, 0.95, 0.9, 0.99, 0.2], np.float32)


def test_dynamic_takes_what_is_above_the_threshold() -> None:
    assert np.flatnonzero(dynamic(CONFIDENCE, 0.85, 1)).tolist() == [1, 2, 3]
    assert np.flatnonzero(dynamic(CONFIDENCE, float(np.float32(0.9)), 1)).tolist() == [1, 3], "above, not at"
    assert not dynamic(CONFIDENCE, 0.999, 1).any(), "the one that is forced has not passed"


def test_dynamic_makes_up_a_quota() -> None:
    assert np.flatnonzero(dynamic(CONFIDENCE, 0.97, 3)).tolist() == [1, 2, 3]
    assert np.flatnonzero(dynamic(CONFIDENCE, 0.1, 2)).tolist() == [0, 1, 2, 3, 4], "more may pass"
    assert dynamic(CONFIDENCE[:2], 0.99, 4).all(), "a chunk may hold fewer rows"


def test_static_takes_the_surest_and_of_equals_the_leftmost() -> None:
    assert np.flatnonzero(static(CONFIDENCE, 2)).tolist() == [1, 3]
    assert np.flatnonzero(static(np.full(4, 0.5, np.float32), 2)).tolist() == [0, 1]


def test_entropies_add_up_below_the_bound() -> None:
    entropy = np.array([0.5, 0.25, 0.125, 2.0, 0.25], np.float32)
    assert np.flatnonzero(entropy_bounded(entropy, 0.7)).tolist() == [1, 2, 4]
    assert np.flatnonzero(entropy_bounded(entropy, 0.5)).tolist() == [1, 2]
    assert not entropy_bounded(entropy, 0.125).any(), "below, not at"


def test_one_is_forced() -> None:
    entropy = np.array([3.0, 2.0, 1.0, 4.0, 5.0], np.float32)
    for strategy, forced in (("low_confidence_dynamic", 3), ("entropy_bounded", 2)):
        unmasking = UnmaskPolicy(block=8, strategy=strategy, threshold=1.0)
        passed = unmasking.passed(CONFIDENCE, entropy, 0)
        assert not passed.any()
        assert np.flatnonzero(unmasking.accepted(passed, CONFIDENCE, entropy)).tolist() == [forced]


def test_sequential() -> None:
    unmasking = UnmaskPolicy(block=8, strategy="sequential", steps=3)
    rows = [np.flatnonzero(unmasking.passed(CONFIDENCE, CONFIDENCE, step)).tolist() for step in range(3)]
    assert rows == [[0, 1, 2], [0, 1, 2], [0, 1]]


@pytest.mark.parametrize(("block", "steps"), [(32, None), (32, 5), (8, 3), (4, 4), (7, 1)])
def test_quotas_fill_a_block(block: int, steps: int | None) -> None:
    unmasking = UnmaskPolicy(block=block, steps=steps)
    quotas = [unmasking.quota(step) for step in range(steps or block)]
    assert sum(quotas) == block
    assert quotas == sorted(quotas, reverse=True)
    assert unmasking.quota(1000) == quotas[-1]


@given(
    st.sampled_from(STRATEGIES),
    st.lists(st.tuples(st.floats(0, 1, width=32), st.floats(0, 12, width=32)), min_size=1, max_size=32),
    st.integers(0, 40), st.integers(1, 32), st.floats(0, 1),
)  # fmt: skip
def test_every_step_gains(
    strategy: Strategy, rows: list[tuple[float, float]], step: int, steps: int, threshold: float
) -> None:
    unmasking = UnmaskPolicy(block=32, strategy=strategy, steps=steps, threshold=threshold)
    confidence, entropy = np.array(rows, np.float32).T
    passed = unmasking.passed(confidence, entropy, step)
    accepted = unmasking.accepted(passed, confidence, entropy)
    assert accepted.dtype == np.bool_
    assert accepted[passed].all()
    assert accepted.any()
    if strategy in ("low_confidence_static", "sequential"):
        assert accepted.sum() == min(unmasking.quota(step), len(rows))
    if strategy == "low_confidence_dynamic":
        assert accepted.sum() >= min(unmasking.quota(step), len(rows))
        assert accepted[confidence > threshold].all()


def test_at_a_row_a_step_the_strategies_agree() -> None:
    flat = np.full(5, 0.5, np.float32)
    rows = {
        strategy: UnmaskPolicy(block=8, strategy=strategy, threshold=0.9).accepted(
            UnmaskPolicy(block=8, strategy=strategy, threshold=0.9).passed(flat, 4 * flat, 0), flat, 4 * flat
        ).tolist()
        for strategy in STRATEGIES
    }  # fmt: skip
    assert all(found == [True, False, False, False, False] for found in rows.values())


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"strategy": "best"}, "unmasking_strategy"), ({"threshold": 1.1}, "confidence_threshold"),
        ({"threshold": float("nan")}, "confidence_threshold"), ({"entropy_bound": 0}, "entropy_bound"),
        ({"steps": 0}, "denoising_steps"), ({"steps": 33}, "denoising_steps"),
    ],
)  # fmt: skip
def test_what_is_refused(wrong: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        UnmaskPolicy(block=32, **wrong)
