"""Options of commands that ask a running server in place of a model that they load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ramet.cli import options
from ramet.cli.engine_options import ENGINE_OPTIONS

F = TypeVar("F", bound=Callable[..., Any])


def url_options(command: F) -> F:
    """Add --url and --api-key."""
    key = click.option("--api-key", envvar="RAMET_API_KEY", show_envvar=True, help="The server's key, with --url.")
    return click.option("--url", help="Ask this running server instead of loading a model.")(key(command))


def check(ctx: click.Context, url: str | None, given: Mapping[str, Any]) -> None:
    """Raises click.UsageError for an option without effect, and for a key that no header can hold."""
    if url is not None:
        idle = [name for name in (*ENGINE_OPTIONS, "calibration") if given[name] is not None]
        if idle:
            raise click.UsageError(f"{options.flag_of(idle[0])} is the server's to say: it has no effect with --url")
        _check_key(given["api_key"])
    elif options.is_given(ctx, "api_key"):
        raise click.UsageError("--api-key has no effect without --url")


def _check_key(key: str | None) -> None:
    from ramet.server.authentication import check_key

    try:
        if key is not None:
            check_key(key)
    except ValueError as error:
        raise click.UsageError(f"--api-key, or RAMET_API_KEY: {error}") from error
