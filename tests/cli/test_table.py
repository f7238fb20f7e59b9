"""The table of answers."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from ramet.cli.table import BAR_WIDTH, bar, outcomes, print_decision, printable, summary

DECISION = {
    "model": "m",
    "answers": {
        "urgent": {"type": "noul", "noul": 0.25, "x_label_mass": 1.0},
        "topic": {
            "type": "choice",
            "choice": "[bold]b\x1b[31m",
            "confidence": 0.5,
            "probabilities": {"a": 0.25, "[bold]b\x1b[31m": 0.75},
        },
        "mood": {
            "type": "score",
            "score": 1.5,
            "confidence": 0.125,
            "legend": {"0": "calm", "1": {"level": "cross"}},
            "probabilities": {"0": 0.5, "1": 0.5},
        },
    },
    "usage": {"input_tokens": 12, "output_tokens": 3, "x_cached_tokens": 0},
    "x_timing": None,
}


def shown(width: int = 100, **console: object) -> str:
    file = io.StringIO()
    print_decision(Console(file=file, width=width, **console), DECISION, 12.4)  # type: ignore[arg-type]
    return file.getvalue()


def test_plain_where_it_is_no_terminal() -> None:
    lines = [line.rstrip() for line in shown().splitlines()]
    assert "\x1b" not in "\n".join(lines)
    assert lines[0].split() == ["question", "answer", "p", "confidence"]
    assert lines[1].split() == ["urgent", "yes", "0.250", "█" * (BAR_WIDTH // 4)]
    assert lines[2].split()[:2] == ["no", "0.750"]
    assert lines[4].split()[:3] == ["topic", "a", "0.250"]
    assert lines[4].endswith("0.50")
    assert lines[5].split()[:2] == ["[bold]b\\x1b[31m", "0.750"]
    assert lines[7].split()[:4] == ["mood", "1.50", "0", "calm"]
    assert '1  {"level": "cross"}' in lines[8]
    assert lines[-1] == "m  12 tokens  12 ms"


def test_colour_in_a_terminal() -> None:
    assert "\x1b[" in shown(force_terminal=True, color_system="standard")


def test_long_names_are_folded_not_cut() -> None:
    narrow = "".join(line[:40] for line in shown(width=60).splitlines())
    assert "…" not in narrow


@pytest.mark.parametrize(
    ("probability", "expected"),
    [
        (0.0, ""),
        (1.0, "█" * BAR_WIDTH),
        (0.5, "█" * (BAR_WIDTH // 2)),
        (1 / (8 * BAR_WIDTH), "▏"),
        (1.5, "█" * BAR_WIDTH),
    ],
)
def test_bar(probability: float, expected: str) -> None:
    assert bar(probability) == expected


def test_bar_in_ascii() -> None:
    assert bar(0.5, ascii_only=True) == "#" * (BAR_WIDTH // 2)


def test_printable() -> None:
    assert printable("größe 日本\x1b[2J\n") == "größe 日本\\x1b[2J\\n"


def test_outcomes_sum_to_one() -> None:
    for answer in DECISION["answers"].values():  # type: ignore[attr-defined]
        assert sum(p for _, p in outcomes(answer)) == 1.0


def test_summary_tells_cached_tokens_and_the_pass() -> None:
    decision = {
        "model": "m",
        "usage": {"input_tokens": 12, "x_cached_tokens": 5},
        "x_timing": {"pass_ms": 3.2},
    }
    assert summary(decision, 7.0) == "m  12 tokens (5 cached)  7 ms (pass 3 ms)"
