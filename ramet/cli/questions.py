"""Questions written as options: NAME=INSTRUCTIONS, and for choices and scores a list of options after a colon; and
those of a file, for all rows of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def question_options(command: F) -> F:
    """Add --noul, --choice and --score."""
    kinds = {
        "noul": ("nouls", "NAME=INSTRUCTIONS", "Is it true?"),
        "choice": ("choices", "'NAME=INSTRUCTIONS: a|b|c'", "Which one?"),
        "score": ("scores", "'NAME=INSTRUCTIONS: low|mid|high'", "How much?"),
    }
    for kind, (name, form, asks) in reversed(kinds.items()):
        option = click.option(f"--{kind}", name, multiple=True, metavar=form, help=f"{asks} May be repeated.")
        command = option(command)
    return command


def questions_file_option(command: F) -> F:
    """Add --questions."""
    return click.option(
        "--questions", "questions_file", type=click.File("rb"), metavar="FILE.json",
        help="The questions of all rows: an object of them by name, or a request that has one.",
    )(command)  # fmt: skip


def common_questions(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """The questions that the options have for all rows, None where they have none. Raises InvalidRequest for what is no
    question, click.UsageError for options and a file."""
    from ramet.cli.requests import read_all, read_object
    from ramet.request import DecisionRequest

    flagged, file = questions_from_flags(given["nouls"], given["choices"], given["scores"]), given["questions_file"]
    if file is not None and flagged:
        raise click.UsageError("the questions come from one place: --questions, or --noul, --choice and --score")
    if file is None and not flagged:
        return None
    read = flagged if file is None else read_object(read_all(file, "questions"))
    found = read["questions"] if isinstance(read.get("questions"), dict) and "type" not in read["questions"] else read
    DecisionRequest.parse({"state": "", "questions": found})
    return dict(found)


def questions_from_flags(nouls: Sequence[str], choices: Sequence[str], scores: Sequence[str]) -> dict[str, Any]:
    """The request's `questions`: nouls first, then choices, then scores. A name may be used once."""
    asked = [_noul(text) for text in nouls]
    asked += [_choice(text) for text in choices]
    asked += [_score(text) for text in scores]
    questions: dict[str, Any] = {}
    for name, question in asked:
        if name in questions:
            raise click.UsageError(f"two questions are named {name!r}")
        questions[name] = question
    return questions


def _noul(text: str) -> tuple[str, dict[str, Any]]:
    name, instructions = _named("--noul", text)
    return name, {"type": "noul", "instructions": instructions}


def _choice(text: str) -> tuple[str, dict[str, Any]]:
    name, instructions, options = _listed("--choice", text)
    if len(set(options)) < len(options):
        raise click.BadParameter(f"{name!r} has an option twice", param_hint="--choice")
    return name, {"type": "choice", "instructions": instructions, "criteria": dict.fromkeys(options)}


def _score(text: str) -> tuple[str, dict[str, Any]]:
    name, instructions, levels = _listed("--score", text)
    return name, {"type": "score", "instructions": instructions, "criteria": levels}


def _named(flag: str, text: str) -> tuple[str, str]:
    name, equals, rest = (part.strip() for part in text.partition("="))
    if not (name and equals and rest):
        raise click.BadParameter(f"{text!r} is not NAME=INSTRUCTIONS", param_hint=flag)
    return name, rest


def _listed(flag: str, text: str) -> tuple[str, str, list[str]]:
    """Name, instructions and the list after the last colon that a space follows."""
    name, rest = _named(flag, text)
    instructions, colon, listed = rest.rpartition(": ")
    options = [option.strip() for option in listed.split("|")]
    if not colon or not all(options):
        raise click.BadParameter(f"{text!r} is not 'NAME=INSTRUCTIONS: a|b|c'", param_hint=flag)
    return name, instructions.strip(), options
