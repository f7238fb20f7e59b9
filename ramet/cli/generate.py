"""`ramet generate`: a reply to one prompt, canvas by canvas."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import click

from ramet import cli
from ramet.cli import options

if TYPE_CHECKING:
    from ramet.server.openai.reply import Delta
    from ramet.server.openai.request import ChatRequest
    from ramet.server.openai.writing import Writing


@click.command("generate")
@click.argument("prompt", metavar="PROMPT")
@click.option("--system", help="What the model is told before the prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of the reply.  [default: the model's]")
@click.option("--seed", type=int, help="Of the noise.  [default: drawn from the prompt]")
@options.model_option
@options.engine_options
@click.option("--json", "as_json", is_flag=True, help="Print an object with the text, how it ended and the usage.")
def command(prompt: str, as_json: bool, **given: Any) -> None:
    """Write the reply to a PROMPT, or to what stdin holds if it is "-", through the model's chat template.

    Of the models that are known here DiffusionGemma writes; a part of the text comes with each finished canvas.
    """
    from ramet.server.openai.answer import TextUsage
    from ramet.server.openai.request import ChatRequest
    from ramet.server.openai.writing import Writing

    asked = ChatRequest.parse(_fields(prompt, given))
    with cli.load_engine(given["model"], **options.given(given)) as engine:
        writing = Writing.of(asked, engine.name, engine.writer)
        reply = asyncio.run(_written(writing, echo=not as_json))
    if not as_json:
        click.echo()
        return
    usage = TextUsage.of(writing.tallies).model_dump()
    click.echo(json.dumps({"text": reply.text, "finish_reason": reply.finish, "usage": usage}, ensure_ascii=False))


def _fields(prompt: str, given: dict[str, Any]) -> dict[str, Any]:
    from ramet.cli.requests import read_text

    text = read_text(sys.stdin.buffer, "PROMPT") if prompt == "-" else prompt
    told = [] if given["system"] is None else [{"role": "system", "content": given["system"]}]
    messages = [*told, {"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": given["max_tokens"], "seed": given["seed"]}


async def _written(writing: Writing[ChatRequest], *, echo: bool) -> Delta:
    from ramet.server.openai.reply import Delta

    whole = Delta()
    async with aclosing(writing.deltas()) as deltas:
        async for _, delta in deltas:
            whole += delta
            if echo:
                click.echo(delta.text, nl=False)
    return whole
