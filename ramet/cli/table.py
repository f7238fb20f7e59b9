"""Answers as a table: a row an outcome, with its probability and a bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

BAR_WIDTH = 20
EIGHTHS = " ▏▎▍▌▋▊▉"


def print_decision(console: Console, decision: Mapping[str, Any], milliseconds: float) -> None:
    """A decision in its wire form; `milliseconds` from asking to answer."""
    console.print(answers_table(decision["answers"], ascii_only=console.options.ascii_only))
    console.print(Text(summary(decision, milliseconds), style="dim"))


def answers_table(answers: Mapping[str, Mapping[str, Any]], *, ascii_only: bool = False) -> Table:
    """Question, outcome, probability and bar; the likeliest outcome of a question in bold."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("question", overflow="fold")
    table.add_column("answer", overflow="fold")
    table.add_column("p", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=BAR_WIDTH)
    table.add_column("confidence", justify="right", no_wrap=True)
    for number, (name, answer) in enumerate(answers.items()):
        if number:
            table.add_row()
        _add_answer(table, name, answer, ascii_only)
    return table


def summary(decision: Mapping[str, Any], milliseconds: float) -> str:
    """Model, tokens and time, on one line."""
    usage = decision["usage"]
    parts = [decision["model"], f"{usage['input_tokens']} tokens"]
    if usage.get("x_cached_tokens"):
        parts[-1] += f" ({usage['x_cached_tokens']} cached)"
    parts.append(f"{milliseconds:.0f} ms")
    timing = decision.get("x_timing")
    if timing:
        parts[-1] += f" (pass {timing['pass_ms']:.0f} ms)"
    return "  ".join(parts)


def bar(probability: float, *, ascii_only: bool = False) -> str:
    """A bar of at most BAR_WIDTH characters, to an eighth of one."""
    eighths = round(min(max(probability, 0.0), 1.0) * BAR_WIDTH * 8)
    if ascii_only:
        return "#" * round(eighths / 8)
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8]).rstrip()


def printable(text: str) -> str:
    """The text with its control characters spelled out: names are a caller's, a terminal obeys what it is sent."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def outcomes(answer: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Each outcome of an answer by its name for people, with its probability."""
    if answer["type"] == "noul":
        yield "yes", answer["noul"]
        yield "no", 1.0 - answer["noul"]
        return
    legend = answer.get("legend", {})
    for key, probability in answer["probabilities"].items():
        label = legend.get(key)
        yield (key if label is None else f"{key}  {_words(label)}"), probability


def _words(value: Any) -> str:
    from ramet.values import as_json

    return as_json(value)


def _add_answer(table: Table, name: str, answer: Mapping[str, Any], ascii_only: bool) -> None:
    rows = list(outcomes(answer))
    best = max(probability for _, probability in rows)
    for number, (label, probability) in enumerate(rows):
        likeliest = probability == best
        table.add_row(
            _head(name, answer) if number == 0 else "",
            Text(printable(label), style="bold" if likeliest else ""),
            f"{probability:.3f}",
            Text(bar(probability, ascii_only=ascii_only), style="green" if likeliest else "blue"),
            f"{answer['confidence']:.2f}" if number == 0 and answer.get("confidence") is not None else "",
        )


def _head(name: str, answer: Mapping[str, Any]) -> Text:
    head = Text(printable(name), style="bold")
    if answer["type"] == "score":
        head.append(f"  {answer['score']:.2f}", style="not bold")
    return head
