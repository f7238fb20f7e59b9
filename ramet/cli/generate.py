"""`ramet generate`: a reply to one prompt, as it is written."""

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
    from ramet.server.openai.answer import TextUsage
    from ramet.server.openai.request import ChatRequest
    from ramet.server.openai.requested_replies import RequestedReplies
    from ramet.server.openai.text_reply import Delta

# Options that are fields of the request, under the same names.
FIELDS = ("max_tokens", "seed", "temperature", "top_p", "top_k", "entropy_bound")


@click.command("generate")
@click.argument("prompt", metavar="PROMPT")
@click.option("--system", help="What the model is told before the prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="Most tokens of the reply.  [default: the model's]")
@click.option("--seed", type=int, help="Of what is drawn.  [default: taken from the prompt]")
@click.option("--temperature", type=float, help="At which tokens are drawn; 0: the likeliest.  [default: the model's]")
@click.option("--top-p", type=float, help="Draw from the likeliest tokens that make up this much.  [default: 1]")
@click.option("--top-k", type=int, help="Draw from so many of the likeliest tokens; 0: from all.  [default: 0]")
@click.option(
    "--entropy-bound", type=float, help="Nats that a step accepts, with --unmasking-strategy entropy_bounded."
)
@click.option("--stop", multiple=True, metavar="TEXT", help="The reply ends before this text. May be repeated.")
@options.model_option
@options.engine_options
@click.option("--json", "as_json", is_flag=True, help="Print an object with the text, how it ended and the usage.")
def command(prompt: str, as_json: bool, **given: Any) -> None:
    """Write the reply to a PROMPT, or to what stdin holds if it is "-", through the model's chat template.

    The text comes as it is written: canvas by canvas, a part of a block at a time, or token by token, as the model
    writes. --top-p and --top-k are for models without canvases; those with them take a --temperature of 0 or 1. The
    last line, on stderr, says what the reply took.
    """
    from ramet.server.openai.answer import TextUsage
    from ramet.server.openai.request import ChatRequest
    from ramet.server.openai.requested_replies import RequestedReplies

    asked = ChatRequest.parse(_fields(prompt, given))
    with cli.load_engine(given["model"], **{"max_round_requests": 1} | options.given(given)) as engine:
        requested = RequestedReplies.of(asked, engine.name, engine.writer)
        reply = asyncio.run(_written(requested, echo=not as_json))
    usage = TextUsage.of(requested.counts)
    if as_json:
        told = {"text": reply.text, "finish_reason": reply.finish, "usage": usage.model_dump()}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        click.echo()
        click.secho(_summary(usage), dim=True, err=True)


def _fields(prompt: str, given: dict[str, Any]) -> dict[str, Any]:
    from ramet.cli.requests import read_text

    text = read_text(sys.stdin.buffer, "PROMPT") if prompt == "-" else prompt
    told = [] if given["system"] is None else [{"role": "system", "content": given["system"]}]
    messages = [*told, {"role": "user", "content": text}]
    return {"messages": messages, "stop": list(given["stop"]), **{name: given[name] for name in FIELDS}}


def _summary(usage: TextUsage) -> str:
    told = f"tokens {usage.completion_tokens}, steps {usage.x_steps}, "
    if usage.x_canvases is not None:
        return f"{told}canvases {usage.x_canvases}"
    return f"{told}tokens a step {usage.x_tokens_per_step:.2f}, mean chunk {usage.x_mean_chunk:.1f}"


async def _written(requested: RequestedReplies[ChatRequest], *, echo: bool) -> Delta:
    from ramet.server.openai.text_reply import Delta

    whole = Delta()
    async with aclosing(requested.deltas()) as deltas:
        async for _, delta in deltas:
            whole += delta
            if echo:
                click.echo(delta.text, nl=False)
    return whole
