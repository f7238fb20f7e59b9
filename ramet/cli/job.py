"""A job: the rows that a run answers, several in flight, written in the input's order."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ramet.cli.asker import Asker
from ramet.cli.input_rows import InputRow, RunInput
from ramet.cli.kept import parted
from ramet.cli.output import line_of
from ramet.cli.remote import Refusal
from ramet.cli.reply_row import NO_EFFECT, asks_for_text
from ramet.cli.requests import read_object
from ramet.errors import Cancelled, InvalidRequest, RametError, RequestError
from ramet.quoting import cut, shown
from ramet.request import DecisionRequest
from ramet.server.errors import printable, status_of

Row = dict[str, Any]
MOST_NAMED = 100  # names of fields that are reported


@dataclass
class RunTally:
    """What a run did. `named`: fields that mean nothing in a request, by what became of them, and how many rows have
    them; `n_named_more`: how often others were met when these were many already."""

    n_rows: int = 0
    n_errors: int = 0
    n_tokens: int = 0
    named: dict[tuple[str, str], int] = field(default_factory=dict)
    n_named_more: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, row: Row) -> None:
        self.n_rows += 1
        self.n_errors += "error" in row
        usage = row.get("usage") or {}
        self.n_tokens += usage.get("input_tokens", 0) + usage.get("total_tokens", 0)

    def note(self, what: str, name: str) -> None:
        """A row's field of this name is `kept` or `ignored`."""
        key = what, cut(name)
        if key in self.named or len(self.named) < MOST_NAMED:
            self.named[key] = self.named.get(key, 0) + 1
        else:
            self.n_named_more += 1

    def summary(self) -> str:
        seconds = time.perf_counter() - self.started
        lines = [
            f"{self.n_rows} rows in {seconds:.1f} s ({self.n_rows / seconds:.1f} rows/s, "
            f"{self.n_tokens / seconds:.0f} tokens/s), {self.n_errors} of them errors"
        ]
        lines += [f"{what}: {name!r}, in {count} rows" for (what, name), count in self.named.items()]
        lines += [f"fields of other names, kept or ignored: {self.n_named_more}"] if self.n_named_more else []
        return "\n".join(lines)


@dataclass(frozen=True)
class RunJob:
    """The rows that are left, and how they are asked. `joins`: what is kept of a row is joined to its answer in the
    end, and is no part of its line."""

    asker: Asker
    parallel: int
    source: RunInput
    n_rows: int
    n_done: int
    mark: str
    joins: bool
    tally: RunTally = field(default_factory=RunTally)

    async def answer_all(self, write: Callable[[Row, bytes], None]) -> None:
        """Answer the rows in order, `parallel` of them at a time; `write` gets each, and its line of the output. Raises
        EngineFault, and what `write` and reading the input raise; then all written rows count."""
        async with self.asker:
            await self._answer_all(write)

    async def _answer_all(self, write: Callable[[Row, bytes], None]) -> None:
        window: deque[asyncio.Task[tuple[Row, bytes]]] = deque()
        try:
            for row in islice(self.source.rows(), self.n_done, None):
                if len(window) == self.parallel:
                    write(*await window.popleft())
                window.append(asyncio.create_task(self.answer(row)))
            while window:
                write(*await window.popleft())
        finally:
            for task in window:
                task.cancel()
            await asyncio.gather(*window, return_exceptions=True)

    async def answer(self, given: InputRow) -> tuple[Row, bytes]:
        """A row of the output, and its line: answers, or the error that this row has, one that no line could hold
        included. Raises EngineFault where the asker is broken: other rows would have it too."""
        row: Row = {"index": given.index, "request": made_from(given, self.mark)}
        try:
            answer = await self._answered(given, row)
            answered = row | answer
            return answered, line_of(answered)
        except Cancelled:
            raise
        except Exception as error:
            if self.asker.fault is not None:
                raise self.asker.fault from error
            row["error"] = _error(error)
        return row, line_of(row)

    async def _answered(self, given: InputRow, row: Row) -> Row:
        data = read_object(given.line)
        if "id" in data:
            row["id"] = _held("id", data.pop("id"))
        request, kept = parted(data, self.source.keep) if given.kept is None else (data, given.kept)
        for name, value in kept.items():
            self.tally.note("kept", name)
            if not self.joins:
                row[_held(name, name)] = _held(name, value)
        return await self.asker.ask(self._asked(request))

    def _asked(self, request: Row) -> Row:
        if asks_for_text(request):
            for name in sorted(NO_EFFECT & request.keys()):
                self.tally.note("ignored", name)
            return request
        for name in DecisionRequest.ignored(request):
            self.tally.note("ignored", name)
        if "questions" in request and "questions" in self.asker.fields:
            raise InvalidRequest("are given for all rows: leave the row's own away", field="questions")
        return request


def made_from(row: InputRow, mark: str) -> str:
    """What a row was made from: its source, the model and the settings, each in hexadecimal digits."""
    return f"{hashlib.sha256(row.source).hexdigest()[:16]}-{mark}"


def _held(name: str, value: Any) -> Any:
    """A row's `id`, or what is kept of it, its name as well. Raises InvalidRequest for what the output cannot hold."""
    try:
        line_of(value)
    except ValueError as error:
        is_text = isinstance(error, UnicodeError)
        why = "has an unpaired surrogate, which is no text" if is_text else "has a number that is not finite"
        raise InvalidRequest(f"{shown(value)} {why}", field=name) from error
    return value


def _error(error: Exception) -> Row:
    kind = status_of(error).error_type if isinstance(error, RametError) else "internal_error"
    kind = error.kind if isinstance(error, Refusal) else kind
    if isinstance(error, RequestError):
        field, message = error.field, error.message
    else:
        field, message = None, f"{type(error).__name__}: {error}"
    return {"field": field and printable(field), "message": printable(message), "type": kind}
