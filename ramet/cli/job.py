"""A job: the rows that a run answers, several in flight, written in the input's order."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ramet.cli.output import line_of
from ramet.cli.reply_row import NO_EFFECT, asks_for_text, reply_row, text_request
from ramet.cli.requests import MAX_BYTES, read_object, with_fields
from ramet.errors import Cancelled, InvalidRequest, Overloaded, RametError, RequestError
from ramet.quoting import cut, shown
from ramet.request import DecisionRequest
from ramet.server.errors import printable, status_of

if TYPE_CHECKING:
    from ramet.engine import Engine

Row = dict[str, Any]
_PIECE = 1 << 16  # bytes at a time of what is not kept of a line
MOST_IGNORED = 100  # names of ignored fields that are told
MAX_WAIT_S = 1.0  # of a row that found the queue full: the engine is ours, and there is no crowd to keep away


@dataclass
class RunTally:
    """What a run did. `ignored`: fields that mean nothing here, and how many rows have them; `n_ignored_more`: how
    often others were met when these were many already."""

    n_rows: int = 0
    n_errors: int = 0
    n_tokens: int = 0
    ignored: dict[str, int] = field(default_factory=dict)
    n_ignored_more: int = 0
    started: float = field(default_factory=time.perf_counter)

    def add(self, row: Row) -> None:
        self.n_rows += 1
        self.n_errors += "error" in row
        usage = row.get("usage", {})
        self.n_tokens += usage.get("input_tokens", 0) + usage.get("total_tokens", 0)

    def ignore(self, name: str) -> None:
        name = cut(name)
        if name in self.ignored or len(self.ignored) < MOST_IGNORED:
            self.ignored[name] = self.ignored.get(name, 0) + 1
        else:
            self.n_ignored_more += 1

    def summary(self) -> str:
        seconds = time.perf_counter() - self.started
        lines = [
            f"{self.n_rows} rows in {seconds:.1f} s ({self.n_rows / seconds:.1f} rows/s, "
            f"{self.n_tokens / seconds:.0f} tokens/s), {self.n_errors} of them errors"
        ]
        lines += [f"ignored: {name!r}, in {count} rows" for name, count in self.ignored.items()]
        lines += [f"ignored: fields of other names, {self.n_ignored_more}"] if self.n_ignored_more else []
        return "\n".join(lines)


@dataclass(frozen=True)
class RunJob:
    """The rows that are left, and how they are asked."""

    engine: Engine
    rows_file: Path
    n_rows: int
    n_done: int
    mark: str
    fields: Mapping[str, Any]
    parallel: int
    tally: RunTally = field(default_factory=RunTally)

    async def answer_all(self, write: Callable[[Row, bytes], None]) -> None:
        """Answer the rows in order, `parallel` of them at a time; `write` gets each, and its line of the output. Raises
        EngineFault, and what `write` and reading the input raise; then all written rows count."""
        window: deque[asyncio.Task[tuple[Row, bytes]]] = deque()
        try:
            for index, line in enumerate(read_lines(self.rows_file)):
                if index < self.n_done:
                    continue
                if len(window) == self.parallel:
                    write(*await window.popleft())
                window.append(asyncio.create_task(self.answer(index, line)))
            while window:
                write(*await window.popleft())
        finally:
            for task in window:
                task.cancel()
            await asyncio.gather(*window, return_exceptions=True)

    async def answer(self, index: int, line: bytes) -> tuple[Row, bytes]:
        """A row of the output, and its line: answers, or the error that this row has, one that no line could hold
        included. Raises EngineFault where the engine is broken: other rows would have it too."""
        row: Row = {"index": index, "request": made_from(line, self.mark)}
        try:
            answer = await self._answered(line, row)
            answered = row | answer
            return answered, line_of(answered)
        except Cancelled:
            raise
        except Exception as error:
            if self.engine.fault is not None:
                raise self.engine.fault from error
            row["error"] = _error(error)
        return row, line_of(row)

    async def _answered(self, line: bytes, row: Row) -> Row:
        data = read_object(line)
        if "id" in data:
            row["id"] = _id(data.pop("id"))
        ask = self._reply(data) if asks_for_text(data) else self._decision(data)
        while True:
            try:
                return await ask()
            except Overloaded as error:
                await asyncio.sleep(min(error.retry_after_s, MAX_WAIT_S))

    def _decision(self, data: Mapping[str, Any]) -> Callable[[], Awaitable[Row]]:
        for name in DecisionRequest.ignored(data):
            self.tally.ignore(name)
        request = with_fields(data, self.fields)

        async def ask() -> Row:
            decision = await self.engine.decide_async(request)
            # What depends on the moment is left out, so that a resumed run writes what an uninterrupted one would.
            answered: Row = decision.model_dump(mode="json", exclude={"x_timing": True, "usage": {"x_cached_tokens"}})
            return answered

        return ask

    def _reply(self, data: Mapping[str, Any]) -> Callable[[], Awaitable[Row]]:
        for name in sorted(NO_EFFECT & data.keys()):
            self.tally.ignore(name)
        request = text_request(data, self.engine.name)
        return lambda: reply_row(self.engine, request)


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines that hold something, without their ends; of one beyond MAX_BYTES its first MAX_BYTES + 1."""
    with path.open("rb") as file:
        while piece := file.readline(MAX_BYTES + 1):
            line = piece.removesuffix(b"\n")
            while not piece.endswith(b"\n") and (piece := file.readline(_PIECE)):
                pass
            if len(line) > MAX_BYTES or line.strip():
                yield line


def made_from(line: bytes, mark: str) -> str:
    """What a row was made from: its line, the model and the settings, each in hexadecimal digits."""
    return f"{hashlib.sha256(line.strip()).hexdigest()[:16]}-{mark}"


def _id(value: Any) -> Any:
    """A row's `id`. Raises InvalidRequest for one that the output cannot hold."""
    try:
        line_of(value)
    except ValueError as error:
        is_text = isinstance(error, UnicodeError)
        why = "has an unpaired surrogate, which is no text" if is_text else "has a number that is not finite"
        raise InvalidRequest(f"{shown(value)} {why}", field="id") from error
    return value


def _error(error: Exception) -> Row:
    kind = status_of(error).error_type if isinstance(error, RametError) else "internal_error"
    if isinstance(error, RequestError):
        field, message = error.field, error.message
    else:
        field, message = None, f"{type(error).__name__}: {error}"
    return {"field": field and printable(field), "message": printable(message), "type": kind}
