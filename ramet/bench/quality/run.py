"""How well a model answers three sets of labelled items, read in several ways."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ramet.agree.intervals import LEVEL, N_RESAMPLES
from ramet.bench.core import machine
from ramet.bench.core.document import Watch
from ramet.bench.quality.items import Item, ItemSet
from ramet.bench.quality.readings import QuestionReading
from ramet.bench.quality.report import MeasuredSet, QualityReport
from ramet.calibrate.decisions import LabelledDecisions
from ramet.calibrate.figures import quality
from ramet.calibrate.rows import LabelledRow, options_of
from ramet.decision import Decision
from ramet.engine.engine import Engine
from ramet.request import DecisionRequest

N_AT_ONCE = 8  # requests in flight: a machine's cores are used, and the answers are those of no load to rounding
Probabilities = npt.NDArray[np.float64]
_NAME = "q"


def run(engine: Engine, sets: Sequence[ItemSet], readings: Sequence[QuestionReading], watch: Watch) -> QualityReport:
    """All sets in all ways, one after the other."""
    about: dict[str, Any] = {**engine.describe(), "sets": {each.name: each.licence for each in sets}}
    report = QualityReport(engine.name, machine.describe(engine.settings.threads or 1), about)
    for reading in readings:
        for each in sets:
            watch.step(f"{each.name}, read as {reading.name}")
            report.rows.append(_measured(engine, each, reading))
            watch.save(report)
            watch.done(len(report.rows) / (len(readings) * len(sets)))
    return report


def _measured(engine: Engine, items: ItemSet, reading: QuestionReading) -> MeasuredSet:
    requests = [_request(item.state, item.question, reading) for item in items.items]
    started = time.perf_counter()
    decisions = _answered(engine, requests)
    seconds = time.perf_counter() - started
    rights = [_right(request, item.gold) for request, item in zip(requests, items.items, strict=True)]
    labelled = LabelledDecisions.of(
        (LabelledRow(number, request, {_NAME: right}), decision.answers)
        for number, (request, right, decision) in enumerate(zip(requests, rights, decisions, strict=True))
    )
    found, p = quality(labelled, labelled.log_p), np.exp(labelled.log_p)
    n_computed = sum(each.usage.input_tokens - each.usage.x_cached_tokens for each in decisions)
    return MeasuredSet(
        items.name,
        reading.name,
        len(requests),
        Counter(item.gold for item in items.items).most_common(1)[0][1] / len(requests),
        found.accuracy.model_dump(),
        found.calibration_error.model_dump(),
        found.brier.model_dump(),
        found.log_loss.model_dump(),
        _area(p[:, 0], labelled.right == 0) if items.items[0].question["type"] == "noul" else None,
        _moved(engine, items.items, reading, p),
        n_computed / len(requests),
        seconds / len(requests) * 1e3,
        [row[:n].round(6).tolist() for row, n in zip(p, labelled.n, strict=True)],
    )


def _request(state: str, question: Mapping[str, Any], reading: QuestionReading) -> DecisionRequest:
    return DecisionRequest.parse({"state": state, "questions": {_NAME: question}, **reading.fields})


def _right(request: DecisionRequest, gold: str) -> int:
    """The number of the right option."""
    question = request.questions[_NAME]
    return ("true", "false").index(gold) if question.type == "noul" else options_of(question).index(gold)


def _answered(engine: Engine, requests: Sequence[DecisionRequest]) -> list[Decision]:
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        return list(pool.map(engine.decide, requests))


def _moved(engine: Engine, items: Sequence[Item], reading: QuestionReading, p: Probabilities) -> float | None:
    """Of choices: how far probabilities [items, options] move when the options are turned by half their number."""
    if items[0].question["type"] != "choice":
        return None
    turned = [_request(item.state, _turned(item.question), reading) for item in items]
    found = [list(decision[_NAME].probabilities.values()) for decision in _answered(engine, turned)]  # type: ignore[union-attr]
    back = [np.roll(row, len(row) // 2) for row in found]
    return float(np.mean([np.abs(p[i, : len(row)] - row).sum() / 2 for i, row in enumerate(back)]))


def _turned(question: Mapping[str, Any]) -> dict[str, Any]:
    criteria = list(question["criteria"].items())
    half = len(criteria) // 2
    return {**question, "criteria": dict([*criteria[half:], *criteria[:half]])}


def _area(p: Probabilities, is_true: npt.NDArray[np.bool_]) -> dict[str, Any]:
    """The probability that a true item has a higher p [items] than a false one, and its bootstrap interval."""
    draw, n = np.random.default_rng(0), len(p)
    drawn = (draw.integers(n, size=n) for _ in range(N_RESAMPLES))
    areas = [_share(p[rows], is_true[rows]) for rows in drawn]
    low, high = np.nanquantile(areas, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return {"value": _share(p, is_true), "interval": (float(low), float(high))}


def _share(p: Probabilities, is_true: npt.NDArray[np.bool_]) -> float:
    """By ranks, of which equal ones have their mean."""
    _, places, counts = np.unique(p, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]
    n_true = int(is_true.sum())
    n_false = len(p) - n_true
    if not n_true or not n_false:
        return float("nan")
    return float((ranks[is_true].sum() - n_true * (n_true + 1) / 2) / (n_true * n_false))
