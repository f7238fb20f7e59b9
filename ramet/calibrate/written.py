"""From a fit to a calibration: the data that engines read."""

from __future__ import annotations

from ramet.calibrate.fit import Fit
from ramet.decide.calibration import (
    CalibratedModel,
    CalibratedQuestion,
    Calibration,
    FittedOn,
    ReadAs,
)


def calibration_of(fit: Fit, model: CalibratedModel, reading: ReadAs) -> Calibration:
    """reading: how the labelled questions were read."""
    decisions = fit.decisions
    return Calibration(
        model=model,
        reading=reading,
        temperatures=dict(fit.temperatures.of_types),
        questions=_questions(fit),
        fitted_on=FittedOn(
            rows=len(set(decisions.row.tolist())),
            decisions=len(decisions),
            duplicates=decisions.n_duplicates,
            conflicts=len(decisions.conflicts()),
            folds=fit.how.n_folds,
            seed=fit.how.seed,
        ),
        quality=fit.quality(),
    )


def _questions(fit: Fit) -> dict[str, CalibratedQuestion]:
    """Those with a temperature or a threshold of their own."""
    found = dict[str, CalibratedQuestion]()
    for place, asked in enumerate(fit.decisions.questions):
        temperature, threshold = fit.temperatures.of_questions.get(place), fit.thresholds.get(place)
        if temperature is not None or threshold is not None:
            n = int((fit.decisions.question == place).sum())
            found[asked.digest] = CalibratedQuestion(
                name=asked.name, type=asked.kind, rows=n, temperature=temperature, threshold=threshold
            )
    return found
