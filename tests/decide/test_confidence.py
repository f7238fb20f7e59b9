"""Confidence and expectation against the formulas that the conformance suite ships, and at their ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jevcompat.validate import choice_confidence, score_confidence

from ramet.decide.confidence import expectation, of_choice, of_score

DISTRIBUTIONS = st.lists(st.floats(0.001, 1.0), min_size=1, max_size=255).map(lambda w: np.array(w) / sum(w))


@given(DISTRIBUTIONS)
def test_typesafe_is_the_reference_formula(p: np.ndarray) -> None:
    assert of_choice(p, 0.5, "typesafe") == pytest.approx(choice_confidence(p.tolist()), abs=1e-12)


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=10).map(lambda w: np.array(w) / sum(w)))
def test_typesafe_of_a_score_is_the_reference_formula(p: np.ndarray) -> None:
    assert of_score(p, 0.5, "typesafe") == pytest.approx(score_confidence(p.tolist()), abs=1e-12)


@given(DISTRIBUTIONS, st.floats(0, 1))
def test_the_other_two_are_the_top_probability_with_and_without_the_mass(p: np.ndarray, mass: float) -> None:
    for formula in (of_choice, of_score):
        assert formula(p, mass, "top") == p.max()
        assert formula(p, mass, "vllm") == p.max() * mass


def test_certainty_is_one_and_even_odds_are_zero() -> None:
    certain, even = np.array([0.0, 1.0, 0.0]), np.full(3, 1 / 3)
    assert of_choice(certain, 1, "typesafe") == of_score(certain, 1, "typesafe") == 1
    assert of_choice(even, 1, "typesafe") == pytest.approx(0, abs=1e-15)
    assert of_choice(np.ones(1), 1, "typesafe") == of_score(np.ones(1), 1, "typesafe") == 1


def test_a_score_torn_between_its_ends_is_not_below_zero() -> None:
    assert of_score(np.array([0.5, 0.0, 0.0, 0.0, 0.5]), 1, "typesafe") == 0


def test_expectation_is_the_mean_level() -> None:
    assert expectation(np.array([0.25, 0.25, 0.5])) == 1.25
