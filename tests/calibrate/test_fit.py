"""Fits to decisions with a known temperature: it is found, and answers that are too sure of themselves get better."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")  # scipy asks every array whether it is one of torch's, where that was ever imported

from fixtures.labelled import drawn
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from ramet.agree.answer import KINDS
from ramet.calibrate.decisions import NONE, LabelledDecisions
from ramet.calibrate.figures import N_BINS, bins, quality
from ramet.calibrate.fit import Fit, HowToFit, _folds
from ramet.calibrate.temperatures import FittedTemperatures
from ramet.calibrate.thresholds import HeldOutCounts, Wish, takings
from ramet.errors import InvalidRequest

OWN = dict.fromkeys(KINDS, 1.0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_a_known_temperature_is_found(temperature: float) -> None:
    """Within four standard errors of ln T, which is 1 / sqrt(information)."""
    decisions = drawn(2000, temperature, sizes=(4,), seed=1)
    found = FittedTemperatures.of(decisions, per_question=False).of_types["choice"]
    scaled = decisions.log_p / temperature
    p = special.softmax(scaled, axis=1)
    information = (p * scaled**2).sum(axis=1) - (p * scaled).sum(axis=1) ** 2
    assert abs(np.log(found.of(4) / temperature)) < 4 / np.sqrt(information.sum())
    assert (found.b, found.least, found.most, found.rows) == (0.0, 4, 4, 2000)


def test_a_temperature_that_grows_with_the_options_is_found() -> None:
    found = FittedTemperatures.of(drawn(4000, 1.2, sizes=(2, 5, 20), slope=0.4), per_question=False).of_types["choice"]
    assert found.b == pytest.approx(0.4, abs=0.08)
    for n in (2, 5, 20):
        assert found.of(n) == pytest.approx(1.2 * n**0.4, rel=0.08)


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), temperature=st.floats(1.8, 6.0))
def test_what_is_too_sure_gets_better(seed: int, temperature: float) -> None:
    """On rows that the fit had not seen; the likeliest options stay."""
    fit = Fit.of(drawn(300, temperature, sizes=(3, 5), seed=seed), OWN, HowToFit(n_folds=3, seed=seed))
    both = fit.quality()["all"]
    assert both.after.calibration_error.value < both.before.calibration_error.value
    assert both.after.log_loss.value < both.before.log_loss.value
    assert both.after.brier.value < both.before.brier.value
    assert both.after.accuracy == both.before.accuracy


def test_all_right_gives_a_finite_temperature() -> None:
    decisions = drawn(50, 1.0)
    sure = LabelledDecisions(
        decisions.log_p, decisions.n, decisions.log_p.argmax(axis=1), decisions.kind, decisions.question,
        decisions.row, decisions.group, decisions.questions,
    )  # fmt: skip
    found = FittedTemperatures.of(sure, per_question=False).of_types["choice"]
    assert 0.01 < found.of(4) < 0.5


def test_questions_have_their_own() -> None:
    """Where they are many; few leave it near the type's."""
    first, second = drawn(600, 1.0, sizes=(4,), seed=1), drawn(600, 4.0, sizes=(4,), seed=2)
    both = _together(first, second)
    found = FittedTemperatures.of(both, per_question=True)
    assert found.of_questions[0] == pytest.approx(1.0, rel=0.25)
    assert found.of_questions[1] == pytest.approx(4.0, rel=0.25)
    few = _together(first, second.only(np.arange(12)))
    near = FittedTemperatures.of(few, per_question=True)
    of_type = near.of_types["choice"].of(4)
    assert of_type < near.of_questions[1] < 3.0
    assert FittedTemperatures.of(both, per_question=False).of_questions == {}
    alike = LabelledDecisions(
        first.log_p, first.n, np.zeros_like(first.n), first.kind, first.question, first.row, first.group,
        first.questions,
    )  # fmt: skip
    assert FittedTemperatures.of(_together(alike, second), per_question=True).of_questions.keys() == {1}


def test_figures_are_those_of_scikit_learn() -> None:
    decisions = drawn(500, 2.0, sizes=(4,))
    p = np.exp(decisions.log_p)
    found = quality(decisions, decisions.log_p)
    labels = range(4)
    assert found.accuracy.value == pytest.approx(accuracy_score(decisions.right, p.argmax(axis=1)))
    assert found.log_loss.value == pytest.approx(log_loss(decisions.right, p, labels=labels))
    wanted = brier_score_loss(decisions.right, p, labels=labels, scale_by_half=False)
    assert found.brier.value == pytest.approx(wanted)
    for figure in (found.accuracy, found.calibration_error, found.brier, found.log_loss):
        assert figure.interval is not None
        assert figure.interval[0] <= figure.value <= figure.interval[1]


def test_the_calibration_error_by_its_definition() -> None:
    decisions = drawn(400, 2.0, sizes=(3, 4), seed=3)
    p = np.exp(decisions.log_p)
    top, right = p.max(axis=1), p.argmax(axis=1) == decisions.right
    numbers, expected = bins(top), 0.0
    for number in range(N_BINS):
        inside = numbers == number
        if inside.any():
            low, high = number / N_BINS, (number + 1) / N_BINS
            assert (low - 1e-9 <= top[inside]).all()
            assert (top[inside] <= high + 1e-9).all()
            expected += inside.mean() * abs(top[inside].mean() - right[inside].mean())
    assert quality(decisions, decisions.log_p).calibration_error.value == pytest.approx(expected)


def test_one_row_has_no_bootstrap() -> None:
    found = quality(drawn(1, 1.0), drawn(1, 1.0).log_p)
    assert (found.calibration_error.interval, found.brier.interval, found.log_loss.interval) == (None, None, None)


def test_no_group_is_on_both_sides() -> None:
    decisions = drawn(200, 2.0)
    doubled = LabelledDecisions(
        decisions.log_p, decisions.n, decisions.right, decisions.kind, decisions.question, decisions.row,
        decisions.group // 2, decisions.questions,
    )  # fmt: skip
    masks = [*_folds(doubled, HowToFit(n_folds=4))]
    assert (np.sum(masks, axis=0) == 1).all()
    for held_out in masks:
        assert not set(doubled.group[held_out]) & set(doubled.group[~held_out])
    assert doubled.n_duplicates == 100
    assert len(doubled.conflicts()) == sum(a != b for a, b in doubled.right.reshape(-1, 2))


@pytest.mark.parametrize("wish", [Wish("precision", 0.8), Wish("recall", 0.9)])
def test_thresholds_reach_what_is_wanted(wish: Wish) -> None:
    """On the rows they were chosen by, and with no more rows left out than must be."""
    decisions = drawn(500, 2.0)
    taken, good = takings(decisions, np.exp(decisions.scaled(np.full(500, 2.0))))
    at = wish.threshold(taken, good)
    assert at is not None

    def reached(threshold: float) -> tuple[float, float]:
        inside = taken >= threshold
        return good[inside].mean(), good[inside].sum() / good.sum()

    place = 0 if wish.wanted == "precision" else 1
    assert reached(at)[place] >= wish.value
    others = [reached(other)[1 - place] for other in taken if reached(other)[place] >= wish.value]
    assert reached(at)[1 - place] == pytest.approx(max(others))


def test_thresholds_that_nothing_reaches() -> None:
    taken = np.array([0.9, 0.5, 0.4])
    assert Wish("precision", 0.9).threshold(taken, np.array([False, True, False])) is None
    assert Wish("precision", 0.9).threshold(taken, np.array([False, False, False])) is None


def test_a_nouls_threshold_is_of_true() -> None:
    decisions = drawn(40, 1.0, sizes=(2,), kind="noul")
    p = np.exp(decisions.log_p)
    taken, good = takings(decisions, p)
    assert (taken == p[:, 0]).all()
    assert (good == (decisions.right == 0)).all()


def test_held_out_thresholds_are_counted() -> None:
    wish = Wish("precision", 0.8)
    fit = Fit.of(drawn(400, 2.0), OWN, HowToFit(wish=wish))
    (threshold,) = fit.thresholds.values()
    assert threshold is not None
    assert threshold.precision is not None
    assert threshold.recall is not None
    low, high = threshold.precision.interval
    assert low < 0.8 < high + 0.05
    assert threshold.recall.of == int((fit.after.argmax(axis=1) == fit.decisions.right).sum())
    counts = HeldOutCounts()
    counts.add(0.5, np.array([0.4]), np.array([False]))
    empty = counts.checked(0.5, wish)
    assert (empty.precision, empty.recall) == (None, None)


def test_a_seed_gives_the_same_fit() -> None:
    decisions = drawn(200, 2.0)
    first, again, other = (Fit.of(decisions, OWN, HowToFit(seed=seed)) for seed in (1, 1, 2))
    assert (first.after == again.after).all()
    assert (first.after != other.after).any()


def test_too_few() -> None:
    with pytest.raises(InvalidRequest, match="there are 9 labelled choices, duplicates counted once"):
        Fit.of(drawn(9, 1.0), OWN, HowToFit())


def test_one_class() -> None:
    decisions = drawn(30, 1.0)
    alike = LabelledDecisions(
        decisions.log_p, decisions.n, np.full(30, 2), decisions.kind, decisions.question, decisions.row,
        decisions.group, decisions.questions,
    )  # fmt: skip
    with pytest.raises(InvalidRequest, match="all 30 labels of a choice are '2': one class alone"):
        Fit.of(alike, OWN, HowToFit())


def _together(first: LabelledDecisions, second: LabelledDecisions) -> LabelledDecisions:
    """The decisions of two single questions with as many options."""
    assert first.log_p.min() > NONE
    columns = {
        name: np.concatenate([getattr(first, name), getattr(second, name)]) for name in ("log_p", "n", "right", "kind")
    }
    n = len(first) + len(second)
    question = np.repeat([0, 1], [len(first), len(second)])
    return LabelledDecisions(
        **columns, question=question, row=np.arange(n), group=np.arange(n), questions=first.questions + second.questions
    )
