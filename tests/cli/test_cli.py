"""The group of commands: what it says of them, when it imports them, how errors end."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from fakes.cli_engine import CliEngine
from fixtures.import_graph import ROOT, reached

from ramet import cli
from ramet.errors import CheckpointError, EngineFault, InvalidRequest, Overloaded, Problem, RametError, RequestTooLong
from ramet.version import __version__

HEAVY = ("torch", "numpy", "pydantic", "rich", "fastapi", "httpx2", "transformers", "asyncio")
ASK = ["decide", "--state", "s", "--noul", "n=true?"]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nsys.argv = ['ramet', '--help']\nfrom ramet.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"found = [m for m in sys.modules if m.partition('.')[0] in {HEAVY!r} or m.startswith('ramet.cli.')]\n"
        "assert not found, found"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "decide" in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_commands_are_found_and_described(name: str) -> None:
    command = cli.main.get_command(click.Context(cli.main), name)
    assert command is not None
    assert command.help
    assert "torch" not in reached(f"ramet.cli.{name}")
    result = CliRunner().invoke(cli.main, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: main {name}" in result.output


def test_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ramet", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"ramet {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["no-such-command"], ["--no-such-option"], ["decide", "--no-such-option"], ["serve", "--prot", "1"]]
)
def test_what_is_unknown_fails(arguments: list[str]) -> None:
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert "No such" in result.stderr


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (InvalidRequest("wrong", field="state"), 2, "Error: state: wrong\n"),
        (RequestTooLong("too long", field="state"), 2, "Error: state: too long\n"),
        (Overloaded("full"), 2, "Error: full\n"),
        (CheckpointError("no such file"), 1, "Error: no such file\n"),
        (EngineFault("out of memory"), 1, "Error: out of memory\n"),
    ],
)
def test_errors_end_with_their_exit_code(
    cli_engine: CliEngine, error: RametError, exit_code: int, message: str
) -> None:
    cli_engine.failure = error
    result = CliRunner().invoke(cli.main, ASK)
    assert (result.exit_code, result.stderr, result.stdout) == (exit_code, message, "")
    assert cli_engine.closed


def test_every_problem_has_its_line(cli_engine: CliEngine) -> None:
    problems = [Problem(("questions", "a", "type"), "missing", "missing"), Problem((), "too bad", "x")]
    cli_engine.failure = InvalidRequest("missing", problems=problems)
    assert CliRunner().invoke(cli.main, ASK).stderr == "Error: questions.a.type: missing\ntoo bad\n"


def test_a_fault_of_ours_is_not_hidden(cli_engine: CliEngine) -> None:
    cli_engine.failure = AssertionError("a bug")
    with pytest.raises(AssertionError, match="a bug"):
        CliRunner().invoke(cli.main, ASK, catch_exceptions=False)
