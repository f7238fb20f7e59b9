"""A fit, as tables for people; the calibration's file has the figures too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ramet.agree.intervals import LEVEL
from ramet.calibrate.decisions import LEAST
from ramet.cli.table import printable
from ramet.decide.calibration import BeforeAfter, Calibration, Figure, HeldOut

if TYPE_CHECKING:
    from ramet.calibrate.fit import Fit
    from ramet.calibrate.thresholds import Wish

MOST = 20  # questions and conflicts that are listed
FIGURES = {"accuracy": "accuracy", "calibration_error": "calibration error", "brier": "Brier", "log_loss": "log loss"}


def parts(fit: Fit, calibration: Calibration, lines: list[int]) -> Iterator[RenderableType]:
    """What is printed, in order. lines: of the file, by the decisions' rows."""
    yield Text("\n".join(_told(fit, calibration, lines)))
    yield quality(calibration)
    yield temperatures(calibration)
    if fit.how.wish is not None:
        yield thresholds(fit, fit.how.wish)
        yield from _without_threshold(fit, fit.how.wish)


def quality(calibration: Calibration) -> Table:
    """Of all decisions and of each type, without the calibration and with it."""
    title = f"on held-out rows ({calibration.fitted_on.folds} folds), with {LEVEL:.0%} intervals"
    table = _table(title, "", "decisions", "", *FIGURES.values())
    for name, both in calibration.quality.items():
        for side in BeforeAfter.model_fields:
            own = getattr(both, side)
            head = (name, str(own.decisions)) if side == "before" else ("", "")
            table.add_row(*head, side, *(_figure(getattr(own, figure)) for figure in FIGURES))
    return table


def temperatures(calibration: Calibration) -> Table:
    """By type at the least and the most options, and of questions that have their own."""
    table = _table("temperatures", "", "rows", "options", "T", "log T")
    for kind, fitted in calibration.temperatures.items():
        sizes = dict.fromkeys((fitted.least, fitted.most))
        formula = f"{fitted.a:.3f}" + (f" {fitted.b:+.3f} ln n" if fitted.b else "")
        found = ", ".join(f"{fitted.of(n):.3f}" for n in sizes)
        table.add_row(kind, str(fitted.rows), " to ".join(map(str, sizes)), found, formula)
    own = [each for each in calibration.questions.values() if each.temperature is not None]
    for each in own[:MOST]:
        table.add_row(f"  {printable(each.name)}", str(each.rows), "", f"{each.temperature:.3f}", "")
    if len(own) > MOST:
        table.add_row(f"  and {len(own) - MOST} questions more", "", "", "", "")
    return table


def thresholds(fit: Fit, wish: Wish) -> Table:
    """Of each question, with what it reaches on held-out rows."""
    table = _table(
        f"thresholds for a {wish.wanted} of {wish.value:g}; on held-out rows, with {LEVEL:.0%} intervals",
        "question", "type", "at", "precision", "recall",
    )  # fmt: skip
    found = {place: threshold for place, threshold in fit.thresholds.items() if threshold is not None}
    for place, threshold in [*found.items()][:MOST]:
        asked = fit.decisions.questions[place]
        shares = (_share(threshold.precision), _share(threshold.recall))
        table.add_row(printable(asked.name), asked.kind, f"{threshold.at:g}", *shares)
    if len(found) > MOST:
        table.add_row(f"and {len(found) - MOST} questions more", "", "", "", "")
    return table


def _told(fit: Fit, calibration: Calibration, lines: list[int]) -> Iterator[str]:
    on, model = calibration.fitted_on, calibration.model
    yield f"{model.name}, method {model.method}: {on.rows} rows, {on.decisions} labelled decisions"
    if on.duplicates:
        what = f"decision{'s' * (on.duplicates > 1)} about a state and a question that came before"
        yield f"duplicates: {on.duplicates} {what}; they are never split apart"
    conflicts = fit.decisions.conflicts()
    for members in conflicts[:MOST]:
        name = fit.decisions.questions[int(fit.decisions.question[members[0]])].name
        where = ", ".join(str(lines[int(row)]) for row in fit.decisions.row[members])
        yield f"conflict: lines {where} have the same state and different labels for {printable(name)!r}"
    if len(conflicts) > MOST:
        yield f"and {len(conflicts) - MOST} conflicts more"


def _without_threshold(fit: Fit, wish: Wish) -> Iterator[Text]:
    questions = fit.decisions.questions
    names = [printable(questions[place].name) for place, found in fit.thresholds.items() if found is None]
    if names:
        yield Text(f"no threshold reaches a {wish.wanted} of {wish.value:g}: {_listed(names)}")
    few = [printable(asked.name) for place, asked in enumerate(questions) if place not in fit.thresholds]
    if few:
        yield Text(f"no threshold for fewer than {LEAST} labels: {_listed(few)}")


def _listed(names: list[str]) -> str:
    more = f", and {len(names) - MOST} more" if len(names) > MOST else ""
    return ", ".join(names[:MOST]) + more


def _figure(figure: Figure) -> str:
    interval = "" if figure.interval is None else f" [{figure.interval[0]:.3f}, {figure.interval[1]:.3f}]"
    return f"{figure.value:.3f}{interval}"


def _share(share: HeldOut | None) -> str:
    if share is None:
        return "none to tell by"
    low, high = share.interval
    return f"{share.count / share.of:.3f} [{low:.3f}, {high:.3f}] of {share.of}"


def _table(title: str, *heads: str) -> Table:
    table = Table(title=title, box=SIMPLE, title_justify="left", title_style="", header_style="dim", pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", overflow="fold")
    return table
