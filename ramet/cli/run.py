"""`ramet run`: a file of requests, one a row, to a file of answers in the same order.

Each row of the output says what it was made from, its row, the model's fingerprint and the settings: a run that is
started again goes on behind the rows that are there, and refuses what is not its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramet import cli
from ramet.cli import options, url_options
from ramet.cli.files import NewRows, OldRows
from ramet.cli.questions import common_questions, question_options, questions_file_option
from ramet.cli.ranges import MOST_ROWS, Count
from ramet.version import __version__

if TYPE_CHECKING:
    from ramet.cli.asker import Asker
    from ramet.cli.input_rows import RunInput
    from ramet.cli.job import Row, RunJob
    from ramet.cli.output import OutputFile


# Settings of the engine that change nothing of an answer beyond its last digits. A run is marked with all the others.
UNMARKED = frozenset((
    "device", "max_round_tokens", "max_queue", "cache_bytes", "memory_cache_bytes", "disk_cache", "disk_cache_bytes",
    "checkpoint_spacing", "threads", "ops", "max_round_requests", "prefix_caching", "single_pass_reads",
    "latency_cache",
))  # fmt: skip


@click.command("run")
@click.argument("rows_file", metavar="ROWS", type=OldRows())
@click.option("--output", "-o", required=True, type=NewRows(), help="Where the answers go.")
@click.option(
    "--overwrite",
    is_flag=True,
    help="Start anew, whatever the output holds: it stays as it is until all rows are in OUTPUT.part, which then takes "
    "its place.",
)
@click.option(
    "--parallel", "--concurrency", "parallel", type=Count(max=1 << 16), default=16, show_default=True,
    help="Requests in flight at a time.",
)  # fmt: skip
@click.option(
    "--every", type=Count(max=MOST_ROWS), default=1, show_default=True, help="Answer the first of every so many rows."
)
@click.option("--limit", type=Count(max=MOST_ROWS), help="Answer so many rows at most.")
@click.option("--keep", multiple=True, metavar="FIELD", help="Have this field in the output too. May be repeated.")
@questions_file_option
@question_options
@options.model_option
@options.calibration_option
@options.engine_options
@options.readout_options
@url_options.url_options
@click.pass_context
def command(ctx: click.Context, /, rows_file: Path, output: Path, overwrite: bool, **given: Any) -> None:
    """Answer a file of requests, one a row.

    Files are JSON Lines, CSV or Parquet, by the ending of the name: .jsonl, .ndjson, .csv (each also with
    .gz) or .parquet.

    Each row is a System One request and may have an `id`, which comes back. The output has a row for
    each, in the same order: its `index`, its `id`, the model's name, the answers and the number of tokens;
    or an `error` with the field, the message and the type. A bad row never stops the run. Fields that no
    request has come back as they are. With --questions, --noul, --choice or --score all rows get the same
    questions, and have none of their own.

    A row with `messages` or a `prompt` in place of `state` and `questions` is a request for text, as
    /v1/chat/completions or /v1/completions take it, parameters and all. Its row of the output has
    the `text`, the `finish_reason` and the `usage`. Options of how questions are answered are not
    for it.

    Run again, it goes on where it stopped, also in mid-line, behind rows that the same command wrote; a file that
    holds anything else is refused as it is. An output that is not plain JSON Lines is made when all rows are there;
    until then they lie in OUTPUT.part. Lines that are empty count for nothing, and one of more than 16 MiB is an error.
    """
    from ramet.cli.input_rows import RunInput

    if output.exists() and output.samefile(rows_file):
        raise click.UsageError("the output would overwrite the input")
    url_options.check(ctx, given["url"], given)
    source = RunInput(rows_file, given["every"], given["limit"], frozenset(given["keep"]))
    if "id" in source.keep:
        raise click.UsageError("--keep id: it comes back anyway")
    fields = options.readout_fields(given)
    if (questions := common_questions(given)) is not None:
        fields["questions"] = questions
    _check_columns(source, has_questions=questions is not None)
    if given["url"] is None:
        _run_here(source, output, fields, given, overwrite=overwrite)
    else:
        model = given["model"] if options.is_given(ctx, "model") else None
        _run_there(source, output, fields, model, given, overwrite=overwrite)


def _check_columns(source: RunInput, *, has_questions: bool) -> None:
    """Raises click.UsageError, or InvalidRequest, where no row of a table can be answered."""
    if not source.is_table:
        return
    columns = set(source.columns)
    if has_questions and "questions" in columns:
        raise click.UsageError(f"{source.path} has a column `questions`, and the options have questions: leave one out")
    asked = columns & {"state", "messages", "prompt"}
    if not asked or not (has_questions or columns & {"questions", "messages", "prompt"}):
        raise click.UsageError(
            f"{source.path} has the columns {', '.join(map(repr, source.columns))}: a decision needs `state`, and "
            "`questions` as JSON or as options for all rows; a request for text `messages` or `prompt`"
        )
    assert source.kept is not None  # their names are good


def _run_here(
    source: RunInput, output: Path, fields: Mapping[str, Any], given: Mapping[str, Any], *, overwrite: bool
) -> None:
    """Answer the rows with a model that is loaded."""
    from ramet.cli.asker import EngineAsker
    from ramet.cli.run_head import engine_head

    loaded = options.loaded(given)
    fingerprint, settings = cli.identified(given["model"], calibration=given["calibration"], **options.given(given))
    mark = f"{fingerprint}-{_settings_mark(settings, {**fields, **_kept_mark(source)})}"
    with _opened(source, output, mark, overwrite=overwrite) as (out, left):
        if left is not None:
            with cli.load_engine(given["model"], **loaded) as engine:
                out.head = engine_head(engine, settings, fields)
                _run_job(left(EngineAsker(engine, fields), given["parallel"]), out)


def _run_there(
    source: RunInput,
    output: Path,
    fields: Mapping[str, Any],
    model: str | None,
    given: Mapping[str, Any],
    *,
    overwrite: bool,
) -> None:
    """Let a running server answer the rows."""
    from ramet.cli.remote import calibration_of
    from ramet.cli.run_head import server_head
    from ramet.cli.server_asker import ServerAsker

    asker = ServerAsker(given["url"], given["api_key"], fields, given["parallel"], model)
    card = asyncio.run(asker.card())
    said = fields if model is None else {**fields, "model": model}
    applied = calibration_of(card)
    settings = {} if applied is None else {"calibration": applied}
    mark = f"{asker.mark(card)}-{_settings_mark(settings, {**said, **_kept_mark(source)})}"
    with _opened(source, output, mark, overwrite=overwrite) as (out, left):
        if left is not None:
            out.head = server_head(given["url"], card, said)
            _run_job(left(asker, given["parallel"]), out)


@contextmanager
def _opened(
    source: RunInput, output: Path, mark: str, *, overwrite: bool
) -> Iterator[tuple[OutputFile, Callable[[Asker, int], RunJob] | None]]:
    """The output, and what makes the job of the rows that it lacks; None where it has all. It is finished at the end
    of the block."""
    from ramet.cli.job import RunJob
    from ramet.cli.output import OutputFile
    from ramet.rows.form import form_of
    from ramet.rows.write import KeptColumns

    joins = source.is_table and form_of(output).is_table
    kept = KeptColumns(source.path, source.kept, source.every) if joins and source.kept else None
    with OutputFile(output, overwrite=overwrite, kept=kept) as out:
        n_done = _n_done(out, source, mark, overwrite=overwrite)
        if n_bytes := out.mend():
            click.echo(f"{out.path}: took off a half-written line of {n_bytes} bytes", err=True)
        n_rows = sum(1 for _ in source.rows())
        if n_done == n_rows:
            click.echo(f"{output}: all {n_rows} rows are there already", err=True)
            yield out, None
        else:
            if n_done:
                click.echo(f"{out.holder}: {n_done} of {n_rows} rows are there; going on behind them", err=True)
            yield out, partial(RunJob, source=source, n_rows=n_rows, n_done=n_done, mark=mark, joins=joins)
        out.finish()


def _settings_mark(settings: Mapping[str, Any], fields: Mapping[str, Any]) -> str:
    """A digest of what, beside the model, may change an answer in more than its last digits, and of the settings that
    keep these digits."""
    marked = {name: value for name, value in settings.items() if name not in UNMARKED}
    text = json.dumps([__version__, marked, fields], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept_mark(source: RunInput) -> dict[str, Any]:
    """What of --keep changes a row."""
    return {"keep": sorted(source.keep)} if source.keep else {}


class AnotherRun(click.UsageError):
    """The rows that are there are a run's, but not this one's."""


def _n_done(out: OutputFile, source: RunInput, mark: str, *, overwrite: bool) -> int:
    """The number of rows that are there already, each of which belongs to its row and to these settings. A part of
    another run that was to overwrite the output is none: it is taken off."""
    try:
        return _n_matching(out, source, mark)
    except AnotherRun:
        if not overwrite:
            raise
        out.clear()
        return 0


def _n_matching(out: OutputFile, source: RunInput, mark: str) -> int:
    from ramet.cli.job import made_from

    n_done, asked = 0, source.rows()
    for index, request in out.rows():
        row = next(asked, None)
        if row is None:
            what = "the input" if source.limit is None else "--limit says, or than the input"
            raise AnotherRun(f"{out.holder} has more rows than {what}; --overwrite starts anew")
        if index != row.index:
            why = "answers another row of the input: --every was another"
            raise AnotherRun(f"row {n_done} of {out.holder} {why}; --overwrite starts anew")
        if request != (expected := made_from(row, mark)):
            raise AnotherRun(
                f"row {n_done} of {out.holder} was made {_why(request, expected)}; --overwrite starts anew"
            )
        n_done += 1
    return n_done


def _why(request: str, expected: str) -> str:
    """What differs in that from which two rows were made."""
    reasons = ("with another model", "with other options, or by another release of Ramet", "from another input")
    first, *pairs = zip_longest(request.split("-"), expected.split("-"))
    return next(why for why, (found, wanted) in zip(reasons, [*pairs, first], strict=False) if found != wanted)


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
