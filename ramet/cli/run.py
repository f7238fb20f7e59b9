"""`ramet run`: a file of requests, one a line, to a file of answers in the same order.

Each row of the output says what it was made from, its line, the model's fingerprint and the settings: a run that is
started again goes on behind the rows that are there, and refuses what is not its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramet import cli
from ramet.cli import options
from ramet.cli.files import NewFile, OldFile
from ramet.cli.ranges import Count
from ramet.version import __version__

if TYPE_CHECKING:
    from ramet.cli.job import Row, RunJob
    from ramet.cli.output import OutputFile


# Settings of the engine that change nothing of an answer beyond its last digits. A run is marked with all the others.
UNMARKED = frozenset((
    "device", "max_round_tokens", "max_queue", "cache_bytes", "memory_cache_bytes", "disk_cache", "disk_cache_bytes",
    "checkpoint_spacing", "threads", "ops", "max_round_requests", "prefix_caching", "single_pass_reads",
    "latency_cache",
))  # fmt: skip


@click.command("run")
@click.argument("rows_file", metavar="ROWS.jsonl", type=OldFile())
@click.option("--output", "-o", required=True, type=NewFile(), help="Where the answers go.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Start anew, whatever the output holds: it stays as it is until all rows are in OUTPUT.part, which then takes "
    "its place.",
)
@click.option(
    "--parallel", type=Count(max=1 << 16), default=16, show_default=True, help="Requests in flight at a time."
)
@options.model_option
@options.engine_options
@options.readout_options
def command(rows_file: Path, output: Path, overwrite: bool, parallel: int, **given: Any) -> None:
    """Answer a file of requests, one a line.

    Each line is a System One request and may have an `id`, which comes back. The output has a line
    for each, in the same order: its `index`, its `id`, the model's name, the answers and the number
    of tokens; or an `error` with the field, the message and the type. A bad line never stops the run.

    A line with `messages` or a `prompt` in place of `state` and `questions` is a request for text, as
    /v1/chat/completions or /v1/completions take it, parameters and all. Its line of the output has
    the `text`, the `finish_reason` and the `usage`. Options of how questions are answered are not
    for it.

    Run again, it goes on where it stopped, also in mid-line, behind rows that the same command wrote; a file that
    holds anything else is refused as it is. With --overwrite it goes on with OUTPUT.part. Lines that are empty
    count for nothing, and one of more than 16 MiB is an error.
    """
    from ramet.cli.job import RunJob, read_lines
    from ramet.cli.output import OutputFile

    if output.exists() and output.samefile(rows_file):
        raise click.UsageError("the output would overwrite the input")
    fields = options.readout_fields(given)
    fingerprint, settings = cli.identified(given["model"], **options.given(given))
    mark = f"{fingerprint}-{_settings_mark(settings, fields)}"
    with OutputFile(output, overwrite=overwrite) as out:
        n_done = _n_done(out, read_lines(rows_file), mark, overwrite=overwrite)
        if n_bytes := out.mend():
            click.echo(f"{out.path}: took off a half-written line of {n_bytes} bytes", err=True)
        n_rows = sum(1 for _ in read_lines(rows_file))
        if n_done == n_rows:
            click.echo(f"{out.path}: all {n_rows} rows are there already", err=True)
            out.finish()
            return
        if n_done:
            click.echo(f"{out.path}: {n_done} of {n_rows} rows are there; going on behind them", err=True)
        with cli.load_engine(given["model"], **options.given(given)) as engine:
            job = RunJob(engine, rows_file, n_rows, n_done, mark, {**fields, "model": engine.name}, parallel)
            _run_job(job, out)
        out.finish()


def _settings_mark(settings: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """Of what, beside the model, may change an answer in more than its last digits, or was asked for to keep those."""
    marked = {name: value for name, value in settings.items() if name not in UNMARKED}
    text = json.dumps([__version__, marked, fields], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class AnotherRun(click.UsageError):
    """The rows that are there are a run's, but not this one's."""


def _n_done(out: OutputFile, lines: Iterator[bytes], mark: str, *, overwrite: bool) -> int:
    """The number of rows that are there already, each of which belongs to its line and to these settings. A part of
    another run that was to overwrite the output is none: it is taken off."""
    try:
        return _n_matching(out, lines, mark)
    except AnotherRun:
        if not overwrite:
            raise
        out.clear()
        return 0


def _n_matching(out: OutputFile, lines: Iterator[bytes], mark: str) -> int:
    from ramet.cli.job import made_from

    n_done = 0
    for request in out.rows():
        line = next(lines, None)
        if line is None:
            raise AnotherRun(f"{out.path} has more rows than the input; --overwrite starts anew")
        if request != (expected := made_from(line, mark)):
            raise AnotherRun(f"row {n_done} of {out.path} was made {_why(request, expected)}; --overwrite starts anew")
        n_done += 1
    return n_done


def _why(request: str, expected: str) -> str:
    """What differs in that from which two rows were made."""
    reasons = ("from another input", "with another model", "with other options, or by another release of Ramet")
    pairs = zip_longest(request.split("-"), expected.split("-"))
    return next(why for why, (found, wanted) in zip(reasons, pairs, strict=False) if found != wanted)


def _run_job(job: RunJob, out: OutputFile) -> None:
    from ramet.cli.progress import row_progress

    with row_progress(job.n_done, job.n_rows) as advance:

        def write(row: Row, line: bytes) -> None:
            out.append(line)
            job.tally.add(row)
            advance()

        try:
            asyncio.run(job.answer_all(write))
        except KeyboardInterrupt:
            click.echo("stopped; the same command goes on from here", err=True)
            raise click.exceptions.Exit(130) from None
        except OSError as error:
            raise click.ClickException(f"{cli.told(error)}; the same command goes on from here") from error
        finally:
            click.echo(job.tally.summary(), err=True)
