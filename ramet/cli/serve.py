"""`ramet serve`: a model over HTTP."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from ramet import cli
from ramet.cli import options, peer_names

if TYPE_CHECKING:
    from ramet.engine import Engine
    from ramet.server import ServerSettings

# Options of ServerSettings' fields of the same names; its defaults hold where nothing is given.
SETTINGS = (
    "host", "port", "api_key", "release_date", "max_body_bytes", "body_timeout_s", "max_logprobs", "drain_s",
)  # fmt: skip

LOCAL = ("127.0.0.1", "::1", "localhost")


@click.command("serve")
@click.argument("source", metavar="[MODEL]", required=False)
@options.model_option
@options.engine_options
@peer_names.peer_options
@click.option("--method", type=click.Choice(["letters", "options"]), help="How answers are read.  [default: model's]")
@click.option("--name", help="Name that the model is served under.  [default: from --model]")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option(
    "--api-key", envvar="RAMET_API_KEY", show_envvar=True, help="Key that clients must send.  [default: none]"
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
@click.option(
    "--max-logprobs", type=click.IntRange(min=-1), help="Most log-probabilities a position of text.  [default: 20]"
)
@click.option("--drain-s", type=click.IntRange(min=0), help="Seconds that running requests get at shutdown.")
@click.option("--release-date", metavar="YYYY-MM-DD", help="Date that /v1/models reports.")
@click.option("--access-log/--no-access-log", default=True, show_default=True, help="Log a line a request.")
@click.pass_context
def command(
    ctx: click.Context, /, source: str | None, aliases: tuple[str, ...], access_log: bool, **given: Any
) -> None:
    """Serve a model over HTTP: POST /v1/systemone, /v1/chat/completions, /v1/completions, GET /v1/models, /health.

    The model is an argument or --model. Stops at SIGINT or SIGTERM, when the running requests are done.
    """
    given = peer_names.ours(given)
    if source is not None:
        if options.is_given(ctx, "model") and given["model"] != source:
            raise click.UsageError(f"the model is {source} and --model says {given['model']}")
        given["model"] = source
    settings = _settings(given, aliases, access_log)
    click.echo(f"loading {given['model']} ...", err=True)
    names = (*options.ENGINE_SETTINGS, "method", "name")
    with cli.load_engine(given["model"], **options.given(given, names)) as engine:
        _check_aliases(engine, settings)
        engine.measure()
        for line in _announcement(engine, settings):
            click.echo(line, err=True)
        from ramet import server

        server.serve(engine, settings)


def _settings(given: Mapping[str, Any], aliases: tuple[str, ...], access_log: bool) -> ServerSettings:
    """Checked before the model is loaded. Raises click.UsageError naming the setting."""
    from pydantic import ValidationError

    from ramet.server import ServerSettings
    from ramet.server.settings import DEFAULT_ALIASES

    values = options.given(given, SETTINGS) | {"access_log": access_log}
    values["aliases"] = {**DEFAULT_ALIASES, **_aliases(aliases)}
    try:
        return ServerSettings(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise click.UsageError(f"--{name}: {first['msg']}") from error


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


def _announcement(engine: Engine, settings: ServerSettings) -> Iterator[str]:
    """What was resolved, the names and the address."""
    chosen = engine.describe()
    width = max(map(len, chosen), default=0)
    for name, value in chosen.items():
        yield f"  {name:<{width}}  {value}"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = settings.port or "(a free port, told below)"
    yield f"serving {', '.join([engine.name, *settings.aliases])} at http://{host}:{port}"
    if settings.api_key is None and settings.host not in LOCAL:
        yield "no --api-key: whoever reaches this address can ask"
