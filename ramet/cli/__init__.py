"""The command line. Each command lies in a file of its own name and is imported when it is called.

`ramet --help` therefore answers without importing torch, pydantic or the commands themselves: what it says of
them is written here.
"""

from __future__ import annotations

import importlib
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from ramet.errors import InvalidRequest, RametError, RequestError
from ramet.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from ramet.engine import Engine

COMMANDS = {
    "decide": "Answer the questions of one request.",
    "generate": "Write the reply to a prompt.",
    "serve": "Serve a model over HTTP.",
    "run": "Answer a file of requests, one a row.",
    "warmup": "Compile a model's kernels ahead, or take them from a file.",
    "agree": "Compare two runs of the same rows.",
    "calibrate": "Fit temperatures and thresholds to labelled rows.",
    "models": "List the models that are known by name, and which are here.",
    "doctor": "Say what this machine has and what Ramet makes of it.",
    "bench": "Measure: beside other engines, reads, states that grow, the same bits.",
}


class Failure(click.ClickException):
    """An error of Ramet's own, as the command line reports it: exit code 1."""

    def __init__(self, error: RametError) -> None:
        super().__init__(_told(error))


class RequestFailure(Failure):
    """An error that the caller can mend: exit code 2."""

    exit_code = 2


def _told(error: RametError) -> str:
    """The message; of a request with several problems, each on a line of its own."""
    if not isinstance(error, InvalidRequest) or len(error.problems) < 2:
        return str(error)
    places = (".".join(map(str, problem.loc)) for problem in error.problems)
    return "\n".join(
        f"{place}: {problem.message}" if place else problem.message
        for place, problem in zip(places, error.problems, strict=True)
    )


def told(error: OSError) -> str:
    """The file, where one is known, and what the system says."""
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)


class LazyGroup(click.Group):
    """A group whose commands are `ramet.cli.NAME.command`, imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"ramet.cli.{cmd_name}").command
        assert isinstance(command, click.Command), cmd_name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _in_one_line():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _in_one_line(), _in_order():
            return super().invoke(ctx)


@contextmanager
def _in_one_line() -> Iterator[None]:
    """An error of Ramet's own, or of the system about a file, without its trace."""
    try:
        yield
    except RametError as error:
        raise (RequestFailure if isinstance(error, RequestError) else Failure)(error) from error
    except BrokenPipeError:  # click's own: who reads the output has enough
        raise
    except OSError as error:
        raise click.ClickException(told(error)) from error


@contextmanager
def _in_order() -> Iterator[None]:
    """SIGTERM ends a command as an error does, with the status that shells give it: what is open is closed, and what is
    temporary removed. `ramet serve` has its own way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Ramet answers many questions about one state in one pass of a language model."""


def load_engine(source: str, **options: Any) -> Engine:
    """The engine for a model's name, path or hub id. The one place where a command gets its engine."""
    from ramet.engine import Engine

    engine = Engine.load(source, **options)
    if engine.calibration is not None:
        whose = "the checkpoint's own" if options.get("calibration") is None else str(options["calibration"])
        click.echo(f"calibration: {whose}, {engine.calibration.summary()}", err=True)
    return engine


def identified(source: str, *, calibration: Path | None = None, **options: Any) -> tuple[str, dict[str, Any]]:
    """What `load_engine` would load, without loading it: the model's fingerprint, and the settings with every "auto"
    resolved, with the digest of the `calibration`. The one place where a command asks this. Raises CheckpointError,
    InvalidRequest."""
    from dataclasses import asdict

    from ramet.engine.calibration import ChosenCalibration
    from ramet.engine.settings import EngineSettings
    from ramet.weights import Fingerprint, open_checkpoint

    resolved, checkpoint = EngineSettings(**options).resolved(), open_checkpoint(source)
    chosen = ChosenCalibration.of(source, checkpoint, calibration).calibration
    settings = asdict(resolved) if chosen is None else asdict(resolved) | {"calibration": chosen.digest}
    with Fingerprint(checkpoint.files) as fingerprint:
        return fingerprint.result(), settings
