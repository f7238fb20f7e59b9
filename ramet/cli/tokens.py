"""Numbers of tokens on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click

from ramet.quoting import shown

AUTO = "auto"
_UNITS: Mapping[str, int] = {"": 1, "k": 1000, "K": 1 << 10, "m": 10**6, "M": 1 << 20}


class Tokens(click.ParamType[Any]):
    """A whole number from 1: 8192, or as vLLM has it 8k for 8000 and 8K for 8192."""

    name = "tokens"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([kKmM]?)", str(value))
        number = float(match[1]) * _UNITS[match[2]] if match else 0.0
        if number < 1 or not number.is_integer():
            self.fail(f"{shown(value)} is no number of tokens from 1, such as 8192, 8k (8000) or 8K (8192)", param, ctx)
        return int(number)


class TokensOrAuto(Tokens):
    """`auto`, which vLLM writes -1 too, beside them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return AUTO if str(value) in (AUTO, "-1") else super().convert(value, param, ctx)


def none_if_auto(_ctx: click.Context, option: click.Parameter, value: int | str | None) -> int | None:
    """Callback: print what auto means, and return None for it."""
    if isinstance(value, str):
        click.echo(f"{option.opts[0]} auto: as many as the model has positions", err=True)
        return None
    return value


TOKENS = Tokens()
TOKENS_OR_AUTO = TokensOrAuto()
