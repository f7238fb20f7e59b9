"""`ramet serve`: a model over HTTP."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ramet import cli
from ramet.cli import options, peer_names

if TYPE_CHECKING:
    from ramet.engine import Engine
    from ramet.server import ServerSettings

# Options of ServerSettings' fields of the same names; its defaults hold where nothing is given.
SETTINGS = (
    "host", "port", "release_date", "max_body_bytes", "body_timeout_s", "head_timeout_s", "send_timeout_s",
    "max_connections", "max_logprobs", "drain_s", "access_log",
)  # fmt: skip
ENVIRONMENT = "RAMET_API_KEY"

BY_LOAD = {"chunk_size": "auto"}  # unless it is given
LOCAL = ("127.0.0.1", "::1", "localhost")


@click.command("serve", cls=peer_names.PeerCommand)
@click.argument("source", metavar="[MODEL]", required=False)
@options.model_option
@options.calibration_option
@options.engine_options
@peer_names.peer_options
@click.option("--method", type=click.Choice(["letters", "options"]), help="How answers are read.  [default: model's]")
@click.option("--name", help="Name that the model is served under.  [default: from --model]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option(
    "--api-key",
    multiple=True,
    help="Key that clients must send. May be repeated: each will do.  [env var: RAMET_API_KEY]  [default: none]",
)
@click.option(
    "--api-key-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with further such keys, one a line; lines that begin with # are none. No list of processes shows them.",
)
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="NAME[=MODEL]",
    help="A further name of the model, beside jev-latest. May be repeated.",
)
@click.option("--max-body-bytes", type=click.IntRange(min=1024), help="Largest request body, also decompressed.")
@click.option("--body-timeout-s", type=float, help="Seconds that a client has to send its body.")
@click.option("--head-timeout-s", type=float, help="Seconds that a client has to send a head.  [default: 20]")
@click.option(
    "--send-timeout-s",
    type=float,
    help="Seconds in which a client must take something of its answer, or be cut off.  [default: 60]",
)
@click.option(
    "--max-connections",
    type=click.IntRange(min=1),
    help="Most connections at once; beyond it 503.  [default: as many as files may be open]",
)
@click.option(
    "--max-logprobs", type=click.IntRange(min=-1), help="Most log-probabilities a position of text.  [default: 20]"
)
@click.option(
    "--drain-s",
    type=click.IntRange(min=0),
    help="Seconds that running requests get at shutdown, before they get a 503.  [default: 30]",
)
@click.option("--release-date", metavar="YYYY-MM-DD", help="Date that /v1/models reports.")
@click.option(
    "--access-log/--no-access-log",
    default=None,
    help="Log a line a request, but for those of probes.  [default: access-log]",
)
@click.pass_context
def command(ctx: click.Context, /, source: str | None, **given: Any) -> None:
    """Serve a model over HTTP: POST /v1/systemone, /v1/chat/completions, /v1/completions, GET /v1/models, /health.

    The model is an argument or --model. The address is taken first, and answers 503 until the model is loaded.

    SIGTERM and SIGINT end the server: running requests get --drain-s seconds, kept states go to --disk-cache, and the
    exit status is 0, or 130 at SIGINT. A second signal ends it at once.

    Serve lines of vLLM and SGLang are taken where what they say can be had: docs/serve-lines.md lists their options.
    """
    from ramet import server

    model = source
    if options.is_given(ctx, "model") and source not in (None, given["model"]):
        raise click.UsageError(f"the model is {source} and --model says {given['model']}")
    if source is None and options.is_given(ctx, "model"):
        model = given["model"]
    given = peer_names.ours(given, model)
    source = options.DEFAULT_MODEL if given["model"] is None else given["model"]
    settings = _settings(given)
    with server.Signals() as signals, server.Listener.open(settings) as listener, ExitStack() as stack:
        click.echo(f"loading {source} ... ({listener.url} answers 503 until it is loaded)", err=True)
        with server.Loading(listener, given["name"] or source, settings):
            engine = stack.enter_context(cli.load_engine(source, **BY_LOAD | options.loaded(given, "method", "name")))
            _check_aliases(engine, settings)
            engine.measure()
        for line in _announcement(engine, settings, listener.url):
            click.echo(line, err=True)
        server.serve(engine, settings, listener, signals)
    ctx.exit(signals.status)


def _settings(given: Mapping[str, Any]) -> ServerSettings:
    """Checked before the model is loaded. Raises click.UsageError naming the setting."""
    from pydantic import ValidationError

    from ramet.server import ServerSettings
    from ramet.server.settings import DEFAULT_ALIASES

    values = options.given(given, SETTINGS) | {"api_key": _keys(given["api_key"], given["api_key_file"])}
    values["aliases"] = {**DEFAULT_ALIASES, **_aliases(given["aliases"])}
    try:
        return ServerSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise click.UsageError(f"--{name}: {first['msg']}") from error


def _keys(given: tuple[str, ...], file: Path | None) -> tuple[str, ...]:
    """Of the option, or else of the environment, and of the file. Raises click.UsageError for one that guards nothing,
    so that a variable that was set to nothing does not open the server."""
    from ramet.server.authentication import check_key, read_keys

    where, keys = "--api-key", given
    try:
        if not given and ENVIRONMENT in os.environ:
            where, keys = ENVIRONMENT, (os.environ[ENVIRONMENT],)
        for key in keys:
            check_key(key)
        where = "--api-key-file"
        return (*keys, *(read_keys(file) if file is not None else ()))
    except ValueError as error:
        remedy = ": give it a key, or unset it" if where == ENVIRONMENT else ""
        raise click.UsageError(f"{where}: {error}{remedy}") from error


def _aliases(texts: tuple[str, ...]) -> dict[str, str | None]:
    aliases: dict[str, str | None] = {}
    for text in texts:
        name, equals, target = text.partition("=")
        if not name or (equals and not target) or name in aliases:
            raise click.BadParameter(f"{text!r} is not NAME or NAME=MODEL, or comes twice", param_hint="--alias")
        aliases[name] = target or None
    return aliases


def _check_aliases(engine: Engine, settings: ServerSettings) -> None:
    from ramet.server.models import Models

    try:
        Models(engine, settings)
    except ValueError as error:
        raise click.UsageError(f"--alias: {error}") from error


def _announcement(engine: Engine, settings: ServerSettings, url: str) -> Iterator[str]:
    """What was resolved, the names and the address."""
    chosen = engine.describe()
    width = max(map(len, chosen), default=0)
    for name, value in chosen.items():
        yield f"  {name:<{width}}  {value}"
    yield f"serving {', '.join([engine.name, *settings.aliases])} at {url}"
    if not settings.api_key and settings.host not in LOCAL:
        yield "no --api-key: whoever reaches this address can ask"
