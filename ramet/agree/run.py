"""A run: the content of one file of answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ramet.agree.answer import Answer
from ramet.agree.lines import Identity, check_new, fault
from ramet.agree.reply import WrittenReply
from ramet.rows import numbered_rows
from ramet.rows.text import Advance
from ramet.values import as_json

REMEDY = "`ramet run` writes such files, and started again it finishes one that was cut off"
ADDRESS = "url"  # begins what stands for a model of which a server says no fingerprint
TEXT = frozenset(("text", "finish_reason"))


@dataclass(frozen=True, slots=True)
class AnsweredRow:
    """A row's answers by question, or the error that it has instead. `line_hash` stands for the line of input
    that it answers, `fingerprint` for the models that did. One that asked for text has a `reply`, and no answers."""

    identity: Identity
    line: int
    line_hash: str | None
    fingerprint: str | None
    answers: dict[str, Answer]
    error: str | None = None
    reply: WrittenReply | None = None


@dataclass(frozen=True, slots=True)
class AnswersFile:
    """The rows of a file by what they are known by, in its order, and the models that answered: their names, which may
    be those of several, and their fingerprints, where `ramet run` wrote them. `heads` say what it was run with."""

    path: Path
    rows: dict[str, AnsweredRow] = field(default_factory=dict)
    models: list[str] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    heads: list[dict[str, Any]] = field(default_factory=list)

    @property
    def n_failed(self) -> int:
        return sum(row.error is not None for row in self.rows.values())


def read_run(path: Path, advance: Advance, *, by_line: bool = False) -> AnswersFile:
    """Read a file. Raises InvalidRequest naming the line where it is not a run's output, or a row comes twice."""
    run = AnswersFile(path)
    for number, data in numbered_rows(path, advance, REMEDY, run.heads):
        row = _row(path, number, data, len(run.rows))
        key = row.identity.key(by_line=by_line)
        check_new(path, number, row.identity, run.rows[key].line if key in run.rows else None)
        run.rows[key] = row
        model = data.get("model")
        if isinstance(model, str) and model not in run.models:
            run.models.append(model)
        if row.fingerprint is not None and row.fingerprint not in run.fingerprints:
            run.fingerprints.append(row.fingerprint)
    return run


def _row(path: Path, number: int, data: dict[str, Any], position: int) -> AnsweredRow:
    request = data.get("request")
    line_hash, *made_with = request.split("-") if isinstance(request, str) else [None]
    by = made_with[0] if len(made_with) == 2 else None
    fingerprint = None if by is None or by.startswith(ADDRESS) else by
    index = data.get("index")  # which the answers of another program may lack
    identity = Identity(data.get("id"), index if type(index) is int else position)
    if data.get("error") is not None:
        return AnsweredRow(identity, number, line_hash, fingerprint, {}, _error_text(data["error"]))
    if data.get("answers") is None and any(data.get(name) is not None for name in TEXT):
        return AnsweredRow(identity, number, line_hash, fingerprint, {}, reply=_reply(path, number, data))
    answers = data.get("answers")
    if not isinstance(answers, dict) or not answers:
        raise fault(path, number, f"has no `answers`, no `text` and no `error`; {REMEDY}")
    found = {name: _answer(path, number, name, a) for name, a in answers.items()}
    return AnsweredRow(identity, number, line_hash, fingerprint, found)


def _answer(path: Path, number: int, name: str, data: Any) -> Answer:
    try:
        return Answer.parse(data)
    except ValueError as error:
        raise fault(path, number, f"the answer to {name!r} cannot be read: {error}; {REMEDY}") from error


def _reply(path: Path, number: int, data: dict[str, Any]) -> WrittenReply:
    try:
        return WrittenReply.parse(data)
    except ValueError as error:
        raise fault(path, number, f"the reply cannot be read: {error}; {REMEDY}") from error


def _error_text(error: Any) -> str:
    if isinstance(error, dict) and "message" in error:
        message = as_json(error["message"])
        return f"{error['field']}: {message}" if error.get("field") else message
    return as_json(error)
