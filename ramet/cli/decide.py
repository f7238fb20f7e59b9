"""`ramet decide`: one request, from flags, a file or stdin; a table or JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ramet import cli
from ramet.cli import options, url_options
from ramet.cli.questions import question_options, questions_from_flags

if TYPE_CHECKING:
    from ramet.request import DecisionRequest

Answer = dict[str, Any]  # a decision in its wire form

SOURCES = "REQUEST.json (or - for stdin), or --state/--state-file with --noul, --choice and --score"


@click.command("decide")
@click.argument("request_file", metavar="[REQUEST.json | -]", type=click.File("rb"), required=False)
@click.option("--state", help="The text that the questions are about.")
@click.option("--state-file", type=click.File("rb"), help="A file with that text.")
@question_options
@options.model_option
@options.calibration_option
@options.engine_options
@options.readout_options
@url_options.url_options
@click.option("--json", "as_json", is_flag=True, help="Print the answer as the server would send it.")
@click.pass_context
def command(ctx: click.Context, /, request_file: Any, url: str | None, as_json: bool, **given: Any) -> None:
    """Answer the questions of one request.

    The request is a System One request in a file, or is made of options:

    \b
      ramet decide examples/ticket.json
      ramet decide --state "The screen came cracked." --choice "topic=What is it about: damage|delivery|billing"

    A request's own `model` names a served model and counts with --url alone; here --model is loaded.
    """
    from rich.console import Console

    from ramet.cli.requests import with_fields
    from ramet.cli.table import print_decision

    url_options.check(ctx, url, given)
    data = _request_data(request_file, given)
    fields = options.readout_fields(given)
    if url is None or options.is_given(ctx, "model"):
        fields["model"] = given["model"]
    request = with_fields(data, fields)
    _tell_ignored(data)
    if url is None:
        answer, milliseconds = _ask_engine(request, given)
    else:
        answer, milliseconds = _ask_server(url, given["api_key"], {**data, **fields})
    if as_json:
        click.echo(json.dumps(answer, ensure_ascii=False))
    else:
        print_decision(Console(), answer, milliseconds)


def _tell_ignored(data: Mapping[str, Any]) -> None:
    from ramet.request import DecisionRequest

    for name in DecisionRequest.ignored(data):
        click.echo(f"ignored: {name!r} means nothing in a request", err=True)


def _request_data(request_file: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    from ramet.cli.requests import read_all, read_object, read_text

    questions = questions_from_flags(given["nouls"], given["choices"], given["scores"])
    states = [given["state"] is not None, given["state_file"] is not None]
    if request_file is not None:
        if questions or any(states):
            raise click.UsageError(f"the request comes from one place: {SOURCES}")
        return read_object(read_all(request_file))
    if sum(states) != 1 or not questions:
        raise click.UsageError(f"nothing to decide: give {SOURCES}")
    state = given["state"] if given["state_file"] is None else read_text(given["state_file"], "state")
    return {"state": state, "questions": questions}


def _ask_engine(request: DecisionRequest, given: Mapping[str, Any]) -> tuple[Answer, float]:
    with cli.load_engine(given["model"], **options.loaded(given)) as engine:
        started = time.perf_counter()
        answer: Answer = engine.decide(request).model_dump(mode="json")
        return answer, (time.perf_counter() - started) * 1e3


def _ask_server(url: str, api_key: str | None, body: Mapping[str, Any]) -> tuple[Answer, float]:
    from ramet.cli.remote import ask

    started = time.perf_counter()
    answer = ask(url, api_key, body)
    return answer, (time.perf_counter() - started) * 1e3
