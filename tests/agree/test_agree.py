"""Two runs compared: intervals and the test beside hand-made values and scipy, and what a swap of the files changes."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from ramet.agree import intervals
from ramet.agree.answer import Answer
from ramet.agree.gold import read_gold
from ramet.agree.measures import Accuracy, Estimate, Measures, Proportion
from ramet.agree.pairs import pair
from ramet.agree.report import Report
from ramet.agree.run import read_run


def noul(p: float) -> dict[str, Any]:
    return {"type": "noul", "noul": p}


def choice(**p: float) -> dict[str, Any]:
    return {"type": "choice", "probabilities": p}


def score(*p: float) -> dict[str, Any]:
    numbers = [str(i) for i in range(len(p))]
    legend = {number: f"level {number}" for number in numbers}
    return {"type": "score", "probabilities": dict(zip(numbers, p, strict=True)), "legend": legend}


def compare(
    directory: Path, a: list[dict[str, Any]], b: list[dict[str, Any]], gold: list[dict[str, Any]] | None = None,
    threshold: float = 0.5,
) -> Report:  # fmt: skip
    """Rows of answers, the row's place for an id; and labels in the same order."""
    runs = []
    for name, rows in (("a", a), ("b", b)):
        path = directory / f"{name}.jsonl"
        path.write_text("".join(json.dumps({"id": i, "answers": row}) + "\n" for i, row in enumerate(rows)))
        runs.append(read_run(path, lambda _: None))
    labels = None
    if gold is not None:
        (directory / "gold.jsonl").write_text(
            "".join(json.dumps({"id": i, "gold": row}) + "\n" for i, row in enumerate(gold))
        )
        labels = read_gold(directory / "gold.jsonl", lambda _: None)
    return Report.of(*runs, labels, pair(*runs, labels), threshold, lambda _: None)


# Wilson's interval by hand: z = 1.959964; at 8 of 10 the centre is (0.8 + 0.192073) / 1.384146 = 0.716740, and half of
# its width 1.416 * sqrt(0.016 + 0.0096036) = 0.226577.
@pytest.mark.parametrize(
    ("count", "of", "low", "high"),
    [(8, 10, 0.490162, 0.943318), (0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (1, 1, 0.206549, 1.0)],
)
def test_wilson_by_hand(count: int, of: int, low: float, high: float) -> None:
    assert intervals.wilson(count, of) == pytest.approx((low, high), abs=1e-6)


@given(st.data())
def test_wilson_beside_scipy(data: st.DataObject) -> None:
    of = data.draw(st.integers(1, 10_000))
    count = data.draw(st.integers(0, of))
    expected = stats.binomtest(count, of).proportion_ci(0.95, method="wilson")
    assert intervals.wilson(count, of) == pytest.approx((expected.low, expected.high), abs=1e-12)


# By hand: 2 * (1 + 6) / 2^6; 2 * (1 + 10 + 45) / 2^10; and where the counts are equal, 1.
@pytest.mark.parametrize(
    ("only_a", "only_b", "p"),
    [(1, 5, 14 / 64), (8, 2, 112 / 1024), (0, 5, 2 / 32), (3, 3, 1.0), (0, 0, 1.0), (0, 1, 1.0)],
)
def test_mcnemar_by_hand(only_a: int, only_b: int, p: float) -> None:
    assert intervals.mcnemar(only_a, only_b) == pytest.approx(p, rel=1e-12)
    assert intervals.mcnemar(only_b, only_a) == pytest.approx(p, rel=1e-12)


@given(st.integers(0, 3000), st.integers(0, 3000))
@example(10, 1065)
def test_mcnemar_beside_scipy(only_a: int, only_b: int) -> None:
    n = only_a + only_b
    expected = stats.binomtest(only_a, n).pvalue if n else 1.0
    if expected == 0:  # scipy gives up before the floats end: count in whole numbers
        expected = 2 * sum(math.comb(n, i) for i in range(min(only_a, only_b) + 1)) / 2**n
    assert intervals.mcnemar(only_a, only_b) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_mcnemar_of_many() -> None:
    """Where 2^n is no float."""
    assert intervals.mcnemar(100_000, 100_500) == pytest.approx(stats.binomtest(100_000, 200_500).pvalue, rel=1e-6)


def test_a_percentile_and_its_bounds() -> None:
    values = np.arange(1, 1001) / 1000
    value, (low, high) = intervals.quantile(values[::-1].copy(), 0.99, ceiling=1.0)
    # 990 +- 1.96 * sqrt(9.9) = 983.8 .. 996.2: the 983rd value and the 997th
    assert (value, low, high) == (0.99, 0.983, 0.997)
    assert intervals.quantile(np.array([0.25]), 0.99, ceiling=1.0)[1] == (0.0, 1.0)


def test_the_percentiles_interval_covers_the_truth() -> None:
    random = np.random.default_rng(3)
    found = [intervals.quantile(random.random(800), 0.99, ceiling=1.0)[1] for _ in range(400)]
    assert np.mean([low <= 0.99 <= high for low, high in found]) > 0.93


def test_the_bootstrap_finds_the_standard_error() -> None:
    values = np.random.default_rng(4).normal(5.0, 2.0, size=400)
    (interval,) = intervals.ratios(np.stack([values, np.ones(400)], axis=1))
    assert interval is not None
    half = 1.96 * values.std() / math.sqrt(400)
    assert interval == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)
    assert intervals.ratios(np.stack([values, np.ones(400)], axis=1)) == [interval]


def test_the_bootstrap_draws_whole_rows() -> None:
    """Ten equal answers a row say no more than one."""
    values = np.random.default_rng(5).normal(size=50)
    (one,) = intervals.ratios(np.stack([values, np.ones(50)], axis=1))
    (ten,) = intervals.ratios(np.stack([10 * values, np.full(50, 10.0)], axis=1))
    assert one is not None
    assert ten == pytest.approx(one)


def test_a_single_row_has_no_interval() -> None:
    assert intervals.ratios(np.array([[0.5, 1.0, 0.0, 0.0]])) == [None, None]


def test_the_draws_do_not_depend_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.random.default_rng(6).random((30, 2))
    whole = intervals.ratios(sums)
    monkeypatch.setattr(intervals, "_BATCH", 70)
    assert intervals.ratios(sums) == [pytest.approx(whole[0])]


def test_measures_by_hand(tmp_path: Path) -> None:
    a = [
        {"n": noul(0.6), "c": choice(x=0.5, y=0.3, z=0.2), "s": score(0.1, 0.2, 0.7)},
        {"n": noul(0.9), "c": choice(x=0.1, y=0.8, z=0.1), "s": score(0.4, 0.35, 0.25)},
    ]
    b = [
        {"n": noul(0.4), "c": choice(x=0.4, y=0.35, z=0.25), "s": score(0.1, 0.2, 0.7)},
        {"n": noul(0.8), "c": choice(x=0.5, y=0.4, z=0.1), "s": score(0.35, 0.4, 0.25)},
    ]
    gold = [{"n": True, "c": "x", "s": 2}, {"n": True, "c": "y", "s": "level 1"}]
    report = compare(tmp_path, a, b, gold)
    m = report.all
    assert (m.n_rows, m.agreement) == (2, Proportion(3, 6))
    assert m.mean_variation.value == pytest.approx((0.2 + 0.1 + 0 + 0.1 + 0.4 + 0.05) / 6)
    assert m.largest_change == pytest.approx(0.4)
    assert m.p99_change.value == pytest.approx(0.4)
    assert m.flips == Proportion(3, 6)  # n of the first row; c of both, x falling below 0.5 and rising to it
    assert {kind: n.agreement for kind, n in report.by_type.items()} == {
        "noul": Proportion(1, 2), "choice": Proportion(1, 2), "score": Proportion(1, 2)
    }  # fmt: skip
    assert list(report.by_question) == ["n", "c", "s"]
    assert m.accuracy is not None
    # right in a: n, c, s and n, c; in b: c, s and n, s
    assert (m.accuracy.a, m.accuracy.b) == (Proportion(5, 6), Proportion(4, 6))
    assert (m.accuracy.only_a_right, m.accuracy.only_b_right) == (2, 1)
    assert m.accuracy.difference.value == pytest.approx(-1 / 6)
    assert m.accuracy.p_value == 1.0
    assert [(d.question, d.option_a, d.option_b) for d in report.changed] == [
        ("c", "y", "x"), ("n", "yes", "no"), ("s", "0", "1")
    ]  # fmt: skip


def test_a_run_agrees_with_itself(tmp_path: Path) -> None:
    rows = [{"n": noul(0.3), "c": choice(x=0.5, y=0.5)}, {"n": noul(0.5), "c": choice(x=0.1, y=0.9)}]
    report = compare(tmp_path, rows, rows, [{"n": True}, {"c": "y"}])
    m = report.all
    assert (m.agreement, m.flips, m.largest_change) == (Proportion(4, 4), Proportion(0, 4), 0.0)
    assert (m.mean_variation, m.p99_change.value) == (Estimate(0.0, (0.0, 0.0)), 0.0)
    assert report.changed == []
    assert m.accuracy is not None
    assert (m.accuracy.difference.value, m.accuracy.p_value) == (0.0, 1.0)


def test_options_in_another_order_are_matched_by_name(tmp_path: Path) -> None:
    report = compare(tmp_path, [{"c": choice(x=0.7, y=0.3)}], [{"c": choice(y=0.3, x=0.7)}])
    assert (report.all.agreement, report.all.largest_change) == (Proportion(1, 1), 0.0)
    tied = compare(tmp_path, [{"c": choice(x=0.5, y=0.5)}], [{"c": choice(y=0.5, x=0.5)}])
    assert [(d.option_a, d.option_b) for d in tied.changed] == [("x", "y")]


@pytest.mark.parametrize(("threshold", "flips"), [(0.5, 0), (0.6, 1), (0.60001, 0), (0.3, 0)])
def test_a_flip_reaches_the_threshold_on_one_side(tmp_path: Path, threshold: float, flips: int) -> None:
    report = compare(tmp_path, [{"n": noul(0.6)}], [{"n": noul(0.55)}], threshold=threshold)
    assert report.all.flips == Proportion(flips, 1)


def test_a_noul_flips_by_yes_alone(tmp_path: Path) -> None:
    """P(no) crosses 0.7 between 0.35 and 0.25."""
    assert compare(tmp_path, [{"n": noul(0.35)}], [{"n": noul(0.25)}], threshold=0.7).all.flips.count == 0


def test_every_line_has_what_its_decisions_have(tmp_path: Path) -> None:
    """The measures of a type are those of its decisions compared alone, intervals included."""
    random = np.random.default_rng(7)
    a, b = ([{"n": noul(p), "c": choice(x=q, y=1 - q)} for p, q in random.random((40, 2))] for _ in range(2))
    whole = compare(tmp_path, a, b)
    alone = compare(tmp_path, [{"c": row["c"]} for row in a], [{"c": row["c"]} for row in b])
    assert whole.by_type["choice"] == whole.by_question["c"] == alone.all
    assert whole.all.agreement.count == sum(m.agreement.count for m in whole.by_type.values())


probability = st.floats(0, 1)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    p, q, r = draw(probability), draw(probability), draw(probability)
    rest = [1 - r, r * q, r * (1 - q)]
    return {"n": noul(p), "c": choice(x=q, y=1 - q), "s": score(*rest)}


gold_rows = st.fixed_dictionaries(
    {"n": st.booleans()}, optional={"c": st.sampled_from(["x", "y"]), "s": st.integers(0, 2)}
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(rows(), rows(), gold_rows), min_size=1, max_size=12), st.floats(0.05, 0.95))
def test_swapping_the_files_swaps_what_has_sides(
    drawn: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]], threshold: float
) -> None:
    a, b, gold = ([x[i] for x in drawn] for i in range(3))
    with tempfile.TemporaryDirectory() as directory:
        one = compare(Path(directory), a, b, gold, threshold)
        other = compare(Path(directory), b, a, gold, threshold)
    for x, y in ((one.all, other.all), *zip(one.by_type.values(), other.by_type.values(), strict=True)):
        check_swapped(x, y)
    flips = ([d.flips(threshold) for d in report.pairs.decisions] for report in (one, other))
    assert next(flips) == next(flips)
    assert {(d.row, d.question, d.option_a, d.option_b) for d in one.changed} == {
        (d.row, d.question, d.option_b, d.option_a) for d in other.changed
    }


def check_swapped(x: Measures, y: Measures) -> None:
    assert (x.n_rows, x.agreement, x.flips) == (y.n_rows, y.agreement, y.flips)
    assert (x.mean_variation, x.p99_change, x.largest_change) == (y.mean_variation, y.p99_change, y.largest_change)
    assert (x.accuracy is None) == (y.accuracy is None)
    if x.accuracy is not None and y.accuracy is not None:
        check_accuracy_swapped(x.accuracy, y.accuracy)


def check_accuracy_swapped(x: Accuracy, y: Accuracy) -> None:
    assert (x.a, x.b) == (y.b, y.a)
    assert (x.only_a_right, x.only_b_right) == (y.only_b_right, y.only_a_right)
    assert x.p_value == y.p_value
    assert x.difference.value == -y.difference.value
    if x.difference.interval is not None:
        low, high = x.difference.interval
        assert y.difference.interval == pytest.approx((-high, -low), abs=1e-12)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("yes", "no `type` among noul, choice, score"),
        ({"type": "choices"}, "no `type` among"),
        ({"type": "noul"}, "'noul' has None for a probability"),
        (noul(1.5), "has 1.5"),
        (noul(float("nan")), "has nan"),
        ({"type": "noul", "noul": True}, "has True"),
        ({"type": "choice"}, "needs `probabilities`"),
        ({"type": "choice", "probabilities": {}}, "needs `probabilities`"),
        (choice(x=0.5, y=0.3), "sum to 0.8, not to 1"),
        (score(0.5, -0.1), "'1' has -0.1"),
    ],
)
def test_what_is_no_answer(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Answer.parse(data)


@pytest.mark.parametrize(
    ("answer", "label", "option"),
    [
        (noul(0.5), True, "yes"),
        (noul(0.5), False, "no"),
        (choice(x=0.5, y=0.5), "y", "y"),
        (score(0.5, 0.5), 1, "1"),
        (score(0.5, 0.5), "level 0", "0"),
        (noul(0.5), "true", "yes"),  # as CSV has it
        (noul(0.5), "False", "no"),
        (score(0.5, 0.5), "1", "1"),
    ],
)
def test_labels(answer: Any, label: Any, option: str) -> None:
    assert Answer.parse(answer).option_of(label) == option


@pytest.mark.parametrize(
    ("answer", "label", "message"),
    [
        (noul(0.5), "yes", "true or false"),
        (noul(0.5), 1, "true or false"),
        (choice(x=0.5, y=0.5), "z", "'z' is no label of this choice: 'x', 'y'"),
        (choice(x=0.5, y=0.5), 0, "'x', 'y'"),
        (score(0.5, 0.5), 2, "a number among 0, 1, or one of 'level 0', 'level 1'"),
        (score(0.5, 0.5), True, "True is no label"),
    ],
)
def test_what_is_no_label(answer: Any, label: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Answer.parse(answer).option_of(label)
