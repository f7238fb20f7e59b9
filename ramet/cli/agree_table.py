"""Two runs compared, as tables for people; the JSON has everything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ramet.agree.answer import Answer
from ramet.agree.intervals import LEVEL
from ramet.agree.lines import Identity
from ramet.agree.measures import Estimate, Measures, Proportion
from ramet.agree.pairs import DecisionPair, Failed
from ramet.agree.reply_measures import ReplyMeasures
from ramet.agree.report import Report
from ramet.agree.run import AnswersFile
from ramet.cli import agree_differences
from ramet.cli.table import printable
from ramet.quoting import cut

N_SHOWN = 60  # letters of a reply from where it parts
NO_BREAK = "\N{NO-BREAK SPACE}"


def parts(report: Report, limit: int) -> Iterator[RenderableType]:
    """What is printed, in order; lists have at most `limit` entries and say how many they leave out."""
    yield overview(report)
    yield from agree_differences.parts(report)
    yield from _uncompared(report, limit)
    if report.all is not None:
        yield figures(report, report.all, limit)
        if report.all.accuracy is not None:
            yield accuracies(report, report.all, limit)
        yield from _more("questions, those with the least agreement", len(report.by_question), limit)
    if report.changed:
        yield changed(report, limit)
        yield from _more("changed decisions", len(report.changed), limit)
    if report.replies is not None:
        yield replies(report.replies)
    if report.changed_replies:
        yield changed_replies(report, limit)
        yield from _more("changed replies", len(report.changed_replies), limit)


def overview(report: Report) -> Table:
    """The runs, and how much of them is compared."""
    table = Table.grid(padding=(0, 2))
    pairs = report.pairs
    table.add_row(Text("a", style="dim"), _run(report.a))
    table.add_row(Text("b", style="dim"), _run(report.b))
    table.add_row(Text("compared", style="dim"), Text(", ".join(_compared(report))))
    left_out = {
        "failed": len(pairs.failed), "only in a": len(pairs.only_a), "only in b": len(pairs.only_b),
    }  # fmt: skip
    shown = [f"{count} {what}" for what, count in left_out.items() if count]
    table.add_row(Text("left out", style="dim"), Text(f"rows: {', '.join(shown)}" if shown else "nothing"))
    if report.gold is not None:
        used = f"{printable(str(report.gold.path))}: {report.gold.n_used} of {_n(report.gold.n_labels, 'label')} used"
        table.add_row(Text("gold", style="dim"), Text(used))
    return table


def _compared(report: Report) -> Iterator[str]:
    if report.all is not None:
        yield _n(report.all.n_rows, "row")
        yield _n(len(report.by_question), "question")
        yield _n(report.all.agreement.of, "decision")
    if report.replies is not None:
        n_replies = report.replies.equal.of
        yield f"{n_replies} replies" if n_replies > 1 else "1 reply"


def figures(report: Report, everything: Measures, limit: int) -> Table:
    """Agreement and changes of all decisions, of each type and of each question."""
    table = _table(f"a beside b: equal answers, and how far probabilities moved; with {LEVEL:.0%} intervals")
    for head in ("", "decisions", "changed", "agreement", "mean total variation", "99th percentile",
                 "largest", f"flips at {report.threshold:g}"):  # fmt: skip
        table.add_column(head, justify="right" if head else "left", overflow="fold")
    for name, m in _groups(report, everything, limit):
        n_changed = m.agreement.of - m.agreement.count
        table.add_row(
            name, str(m.agreement.of), str(n_changed), _share(m.agreement), _estimate(m.mean_variation),
            _estimate(m.p99_change), _number(m.largest_change), _share(m.flips),
        )  # fmt: skip
    return table


def accuracies(report: Report, everything: Measures, limit: int) -> Table:
    """Both sides' shares of right answers, and McNemar's test."""
    table = _table(f"right answers, with {LEVEL:.0%} intervals")
    for head in ("", "labels", "a", "b", "b - a", "only a right", "only b right", "McNemar's p"):
        table.add_column(head, justify="right" if head else "left", overflow="fold")
    for name, m in _groups(report, everything, limit):
        found = m.accuracy
        if found is not None:
            table.add_row(
                name, str(found.a.of), _share(found.a), _share(found.b), _difference(found.difference),
                str(found.only_a_right), str(found.only_b_right), f"{found.p_value:.3g}",
            )  # fmt: skip
    return table


def changed(report: Report, limit: int) -> Table:
    """The decisions with another likeliest option, the largest change first."""
    table = _table("changed decisions, the largest change first")
    for head in ("row", "question", "a", "p", "b", "p", "largest change", *(["gold"] if report.gold else [])):
        right = head in ("p", "largest change")
        table.add_column(head, justify="right" if right else "left", overflow="fold", no_wrap=right)
    for d in report.changed[:limit]:
        table.add_row(*_changed_cells(d, labelled=report.gold is not None))
    return table


def replies(found: ReplyMeasures) -> Table:
    """How many replies are equal, for how long, and how far log-probabilities moved."""
    table = _table(f"replies of a beside those of b, with {LEVEL:.0%} intervals")
    cells: dict[str, Text | str] = {
        "replies": str(found.equal.of), "equal": _share(found.equal), "same end": _share(found.finished),
        "common beginning": _portion(found.common),
    }  # fmt: skip
    if found.moves is not None:
        moves = found.moves
        cells |= {
            "positions": str(moves.likeliest.of), "same likeliest": _share(moves.likeliest),
            "mean nats": _estimate(moves.mean_nats), "99th percentile": _estimate(moves.p99_nats),
            "largest": _number(moves.largest_nats), "largest, p": _number(moves.largest_probability),
        }  # fmt: skip
    for head in cells:
        table.add_column(head, justify="right", overflow="fold")
    table.add_row(*cells.values())
    return table


def changed_replies(report: Report, limit: int) -> Table:
    """The replies with another text, where they part."""
    table = _table("changed replies, those first that part soonest")
    for head in ("row", "equal", "a goes on", "b goes on"):
        table.add_column(head, justify="right" if head == "equal" else "left", overflow="fold")
    for pair in report.changed_replies[:limit]:
        at = next((i for i, (x, y) in enumerate(zip(pair.a.text, pair.b.text, strict=False)) if x != y), None)
        at = min(len(pair.a.text), len(pair.b.text)) if at is None else at
        ends = (Text(printable(cut(side.text[at:], N_SHOWN)) or "(ends)") for side in (pair.a, pair.b))
        table.add_row(_text(pair.row), f"{at} characters", *ends)
    return table


def _changed_cells(d: DecisionPair, *, labelled: bool) -> list[Text | str]:
    def side(answer: Answer, place: int) -> list[Text | str]:
        style = "" if d.gold is None else "green" if answer.options[place] == d.gold else "red"
        return [Text(_worded(answer, answer.options[place]), style=style), f"{answer.probabilities[place]:.3f}"]

    cells: list[Text | str] = [_text(d.row), Text(printable(d.question)), *side(d.a, d.a.best), *side(d.b, d.best_b)]
    cells.append(_number(max(d.changes)))
    return [*cells, Text("" if d.gold is None else _worded(d.a, d.gold))] if labelled else cells


def _uncompared(report: Report, limit: int) -> Iterator[RenderableType]:
    """The rows that no figure has, and those of which a figure may say less than it seems to."""
    pairs = report.pairs
    if pairs.failed:
        yield _failed(pairs.failed, limit)
        yield from _more("failed rows", len(pairs.failed), limit)
    for where, rows in (("a", pairs.only_a), ("b", pairs.only_b)):
        if rows:
            yield _line(f"only in {where}", rows, limit)
    if pairs.asked_otherwise:
        yield _line("answered from lines that differ", pairs.asked_otherwise, limit)


def _failed(failed: Sequence[Failed], limit: int) -> Table:
    table = _table("failed rows, in no figure below")
    for head in ("row", "error in a", "error in b"):
        table.add_column(head, overflow="fold")
    for row in failed[:limit]:
        table.add_row(_text(row.row), *(Text("" if e is None else printable(e), style="red") for e in (row.a, row.b)))
    return table


def _line(what: str, rows: Sequence[Identity], limit: int) -> Text:
    names = [printable(str(row)) for row in rows[:limit]]
    more = [f"and {len(rows) - limit} more"] if len(rows) > limit else []
    return Text.assemble((f"{what} ({len(rows)}): ", "yellow"), ", ".join([*names, *more]))


def _groups(report: Report, everything: Measures, limit: int) -> Iterator[tuple[Text, Measures]]:
    """All, the types, and the questions with the least agreement."""
    yield Text("all", style="bold"), everything
    for kind, m in report.by_type.items():
        yield Text(kind), m
    questions = sorted(report.by_question.items(), key=lambda item: item[1].agreement.share)
    for name, m in questions[:limit]:
        yield Text(f"  {printable(name)}", style="dim"), m


def _run(run: AnswersFile) -> Text:
    n_rows = f"  {_n(len(run.rows), 'row')}" + (f", {run.n_failed} failed" if run.n_failed else "")
    models = printable(", ".join(run.models)) or "no model named"
    prints = "".join(f" {printable(each[:8])}" for each in run.fingerprints)
    return Text.assemble(printable(str(run.path)), (f"  {models}", "bold"), (f"{prints}{n_rows}", "dim"))


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=SIMPLE, header_style="dim", pad_edge=False)


def _more(what: str, count: int, limit: int) -> Iterator[Text]:
    """A line below a list that was cut."""
    if count > limit:
        yield Text(f"{limit} of {count} {what}; --limit shows more, --json has all\n", style="yellow")


def _worded(answer: Answer, option: str) -> str:
    """An option by its name for people: a level with its description."""
    words = f"{option}  {answer.legend[answer.options.index(option)]}" if answer.legend else option
    return printable(words)


def _text(identity: Identity) -> Text:
    return Text(printable(str(identity)))


def _n(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _share(share: Proportion) -> Text:
    return _with_interval(f"{share.share:.2%}", [f"{100 * x:.2f}" for x in share.interval])


def _estimate(estimate: Estimate) -> Text:
    return _with_interval(_number(estimate.value), [_number(x) for x in estimate.interval or ()])


def _portion(estimate: Estimate) -> Text:
    return _with_interval(f"{estimate.value:.2%}", [f"{100 * x:.2f}" for x in estimate.interval or ()])


def _difference(estimate: Estimate) -> Text:
    return _with_interval(f"{estimate.value:+.2%}", [f"{100 * x:+.2f}" for x in estimate.interval or ()])


def _with_interval(value: str, bounds: Sequence[str]) -> Text:
    """In a narrow column the interval goes below, in one piece."""
    return Text.assemble((value, "bold"), (f" [{f',{NO_BREAK}'.join(bounds)}]" if bounds else "", "dim"))


def _number(value: float) -> str:
    """Three digits that count, for changes of any size."""
    return f"{value:.3f}" if value >= 0.1 else "0" if value == 0 else f"{value:#.2g}"
