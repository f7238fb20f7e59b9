"""Questions written as options."""

from __future__ import annotations

import click
import pytest

from ramet.cli.questions import questions_from_flags


def test_all_three_types() -> None:
    questions = questions_from_flags(
        ["urgent=Is it urgent?"], ["topic=About: what? : a bill| 10:30 |x=y"], ["mood=How upset?: calm|cross"]
    )
    assert list(questions) == ["urgent", "topic", "mood"]
    assert questions["urgent"] == {"type": "noul", "instructions": "Is it urgent?"}
    assert questions["topic"] == {
        "type": "choice",
        "instructions": "About: what?",
        "criteria": {"a bill": None, "10:30": None, "x=y": None},
    }
    assert questions["mood"] == {"type": "score", "instructions": "How upset?", "criteria": ["calm", "cross"]}


@pytest.mark.parametrize(
    ("nouls", "choices", "scores", "message"),
    [
        (["no equals sign"], [], [], "is not NAME=INSTRUCTIONS"),
        (["=x"], [], [], "is not NAME=INSTRUCTIONS"),
        (["x= "], [], [], "is not NAME=INSTRUCTIONS"),
        ([], ["x=no list"], [], "is not 'NAME=INSTRUCTIONS: a|b|c'"),
        ([], ["x=y: a||b"], [], "is not 'NAME=INSTRUCTIONS: a|b|c'"),
        ([], ["x=y: a|b|a"], [], "'x' has an option twice"),
        ([], [], ["x=y:"], "is not 'NAME=INSTRUCTIONS: a|b|c'"),
        (["x=y"], ["x=y: a|b"], [], "two questions are named 'x'"),
    ],
)
def test_faults(nouls: list[str], choices: list[str], scores: list[str], message: str) -> None:
    with pytest.raises(click.UsageError) as raised:
        questions_from_flags(nouls, choices, scores)
    assert message in str(raised.value)
