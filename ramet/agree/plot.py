"""Two runs compared, as a picture: probabilities, changes, agreement, and accuracy where there is gold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from ramet.agree.intervals import LEVEL, FloatArray, Interval
from ramet.agree.measures import QUANTILE, Accuracy, Measures
from ramet.agree.pairs import DecisionPair
from ramet.agree.report import Report
from ramet.files import replacing
from ramet.plot import FAINT, INK, MAX_VECTORS, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"noul": "#0072B2", "choice": "#E69F00", "score": "#009E73"}  # colour-blind people see the difference too
SIDES = {"a": "#8C96A3", "b": "#0072B2"}
FLIPPED = "#D55E00"
N_QUESTIONS = 10
N_LETTERS = 28  # of a name that is drawn


def draw(report: Report, path: Path) -> None:
    """Write the picture of the decisions, of which there are some, in the format that the file's ending names."""
    assert report.all is not None
    panels: list[Callable[[Axes, Report], None]] = [probabilities, changes, agreement]
    if report.all.accuracy is not None:
        panels.append(accuracy)
    n_columns = 2 if len(panels) == 4 else 3
    n_lines = len(panels) // n_columns
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.2 * n_columns, 4.8 * n_lines + 0.5), dpi=150)
        figure.set_layout_engine(ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))
        figure.suptitle(_headline(report), fontsize=13, x=0.01, ha="left")
        for axes, panel in zip(figure.subplots(n_lines, n_columns).flat, panels, strict=True):
            panel(axes, report)
        with replacing(path) as made:
            figure.savefig(made, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def probabilities(axes: Axes, report: Report) -> None:
    """Each option's probability in a and in b; what lies in the shaded corners crosses the threshold."""
    t = report.threshold
    for x, y in ((0.0, t), (t, 0.0)):
        width, height = (t, 1 - t) if x == 0 else (1 - t, t)
        axes.add_patch(Rectangle((x, y), width, height, color=FLIPPED, alpha=0.07, lw=0))
    axes.plot([0, 1], [0, 1], color=FAINT, lw=1, zorder=1)
    for kind in report.by_type:
        points = _points(d for d in report.pairs.decisions if d.a.kind == kind)
        # Thousands of points run into one another: the more there are, the fainter each.
        alpha = float(np.clip(20 / np.sqrt(len(points)), 0.08, 0.8))
        axes.scatter(
            points[:, 0], points[:, 1], s=14, lw=0, color=COLOURS[kind], alpha=alpha, label=kind,
            rasterized=len(points) > MAX_VECTORS,
        )  # fmt: skip
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), xlabel="probability in a", ylabel="probability in b")
    axes.set_title("Probabilities of the options")
    axes.set_aspect("equal")
    axes.text(0.02, 0.98, f"shaded: flips at {t:g}", color=FLIPPED, va="top", fontsize=9)
    for handle in axes.legend(loc="lower right").legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)


def changes(axes: Axes, report: Report) -> None:
    """What share of the decisions changes by more than x, both axes logarithmic: the tail is what matters."""
    all_changes = _largest(report.pairs.decisions)
    assert report.all is not None
    n_still = int((all_changes == 0).sum())
    axes.set_title("How far probabilities moved")
    axes.set(xlabel="largest change of an option's probability", ylabel="share of decisions that change by more")
    if n_still == len(all_changes):
        axes.text(0.5, 0.5, "no probability changed", transform=axes.transAxes, ha="center", color=INK)
        axes.set(xlim=(0, 1), ylim=(0, 1))
        return
    for kind in report.by_type:
        values = np.sort(_largest([d for d in report.pairs.decisions if d.a.kind == kind]))
        share_above = 1 - np.arange(len(values)) / len(values)
        moved = values > 0
        axes.step(values[moved], share_above[moved], where="pre", color=COLOURS[kind], lw=1.8, label=kind)
    least = float(all_changes[all_changes > 0].min())
    axes.set(xscale="log", yscale="log", xlim=(max(least / 2, 1e-9), 1.0), ylim=(0.5 / len(all_changes), 1.3))
    if axes.get_ylim()[0] < 1 - QUANTILE:
        axes.axhline(1 - QUANTILE, color=FAINT, lw=1, ls=":")
        axes.text(
            0.01, 1 - QUANTILE, f"1 in {1 / (1 - QUANTILE):.0f}", transform=axes.get_yaxis_transform(), va="bottom",
            color=FAINT, fontsize=9,
        )  # fmt: skip
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.yaxis.set_major_formatter(lambda y, _: f"{100 * y:g}%")
    axes.minorticks_off()
    still = f"\n{n_still / len(all_changes):.1%} did not change at all" if n_still else ""
    axes.text(0.02, 0.03, f"largest {report.all.largest_change:.2g}{still}", transform=axes.transAxes, fontsize=9)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 0.1))


def agreement(axes: Axes, report: Report) -> None:
    """The share of equal answers, of each type and of the questions that agree least."""
    groups = list(_groups(report, N_QUESTIONS))
    for place, (_, m, colour) in enumerate(groups):
        share = m.agreement
        axes.errorbar(share.share, place, xerr=_arms(share.share, share.interval), fmt="o", color=colour, capsize=3)
    axes.set_yticks(range(len(groups)), [f"{name}  ({m.agreement.of})" for name, m, _ in groups])
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
    axes.set_xlim(right=1.0 + 0.02 * (1.0 - axes.get_xlim()[0]))
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"equal answers, {LEVEL:.0%} interval")
    n_more = len(report.by_question) - N_QUESTIONS
    axes.set_title("Agreement" + (f" (and {n_more} questions that agree more)" if n_more > 0 else ""))


def accuracy(axes: Axes, report: Report) -> None:
    """Both sides' shares of right answers, of all labelled decisions and of each type."""
    groups = [(name, m.accuracy) for name, m in [("all", report.all), *report.by_type.items()] if m and m.accuracy]
    for offset, (side, colour) in zip((-0.2, 0.2), SIDES.items(), strict=True):
        for place, (_, found) in enumerate(groups):
            share = found.a if side == "a" else found.b
            axes.bar(place + offset, share.share, width=0.36, color=colour, label=side if place == 0 else None)
            axes.errorbar(place + offset, share.share, yerr=_arms(share.share, share.interval), color=INK, capsize=3)
    for place, (_, found) in enumerate(groups):
        top = max(found.a.interval[1], found.b.interval[1])
        axes.text(place, top + 0.02, _verdict(found), ha="center", va="bottom", fontsize=9)
    axes.set_xticks(range(len(groups)), [f"{name}\n{found.a.of} labels" for name, found in groups])
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set(ylim=(0, 1.18), yticks=np.linspace(0, 1, 6), ylabel=f"right answers, {LEVEL:.0%} interval")
    axes.grid(visible=False, axis="x")
    axes.set_title("Accuracy")
    axes.legend(loc="upper right", ncols=2)


def _headline(report: Report) -> str:
    a, b = (f"{run.path.name} ({', '.join(run.models) or 'no model named'})" for run in (report.a, report.b))
    assert report.all is not None
    share = report.all.agreement
    return f"{share.share:.2%} of {share.of} decisions agree\na: {_short(a, 60)}    b: {_short(b, 60)}"


def _points(decisions: Iterator[DecisionPair]) -> FloatArray:
    """[n, 2]: an option's probability in a and in b; of a noul that of yes."""
    found = [(d.a.probabilities[i], d.b.probabilities[i]) for d in decisions for i in d.a.thresholded]
    return np.array(found).reshape(-1, 2)


def _largest(decisions: Sequence[DecisionPair]) -> FloatArray:
    return np.array([max(d.changes) for d in decisions])


def _groups(report: Report, n_questions: int) -> Iterator[tuple[str, Measures, str]]:
    assert report.all is not None
    yield "all", report.all, INK
    for kind, m in report.by_type.items():
        yield kind, m, COLOURS[kind]
    if len(report.by_question) > 1:
        for name, m in sorted(report.by_question.items(), key=lambda item: item[1].agreement.share)[:n_questions]:
            yield _short(name, N_LETTERS), m, FAINT


def _arms(value: float, interval: Interval) -> list[list[float]]:
    """What errorbar takes: lengths down and up, [2, 1]."""
    return [[max(0.0, value - interval[0])], [max(0.0, interval[1] - value)]]


def _verdict(found: Accuracy) -> str:
    return f"{found.difference.value:+.1%}\np = {found.p_value:.2g}"


def _short(name: str, most: int) -> str:
    """A name that fits, without what would break its line; a cut is shown."""
    name = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
    return name if len(name) <= most else name[: most - 1] + "…"
