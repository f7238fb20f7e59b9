"""Questions written as options: NAME=INSTRUCTIONS, and for choices and scores a list of options after a colon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click


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
