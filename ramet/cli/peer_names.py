"""Options of vLLM, SGLang and LMDeploy, so that their serve lines work: names of what is an option here too, and
others, which `peer_values` has."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click

from ramet.cli import options
from ramet.cli.peer_values import PEERS, notes
from ramet.cli.ranges import Finite
from ramet.cli.tokens import TOKENS

F = TypeVar("F", bound=Callable[..., Any])

# Their name of an option -> ours
SAME = {
    "max_num_seqs": "max_round_requests",
    "max_running_requests": "max_round_requests",
    "max_num_batched_tokens": "max_round_tokens",
    "context_length": "max_model_len",
    "enable_prefix_caching": "prefix_caching",
    "dllm_block_length": "block_size",
    "dllm_unmasking_strategy": "unmasking_strategy",
    "dllm_denoising_steps": "denoising_steps",
    "dllm_confidence_threshold": "confidence_threshold",
}
OPPOSITE = {"disable_radix_cache": "prefix_caching", "disable_uvicorn_access_log": "access_log"}
DIFFUSION = {"canvas_length": int, "max_denoising_steps": int, "single_pass_reads": bool}  # in --diffusion-config
_OTHERS = ("served_model_name", "model_path", "diffusion_config")


class PeerCommand(click.Command):
    """A command whose options may be written as vLLM's parser has them: with underscores, and --served-model-name with
    several values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_spread([_dashed(each) for each in args])))


def peer_options(command: F) -> F:
    """Decorator: the options, which `ours` turns into ours."""
    for option in reversed([*_OPTIONS, *(peer.option() for peer in PEERS)]):
        command = option(command)
    return command


def ours(given: Mapping[str, Any], model: str | None) -> dict[str, Any]:
    """What was given, under our names alone; `model` is the one that was named, if any. Prints what those options do
    here that set nothing.

    Raises click.UsageError where two options contradict each other, and for what cannot be had here.
    """
    for line in notes(given):
        click.echo(line, err=True)
    taken = {*SAME, *OPPOSITE, *_OTHERS, *(peer.name for peer in PEERS)}
    found = {name: value for name, value in given.items() if name not in taken} | {"model": model}
    for theirs, name in SAME.items():
        _put(found, name, given[theirs], flag_of(theirs), options.flag_of(name))
    for theirs, name in OPPOSITE.items():
        _put(found, name, False if given[theirs] else None, flag_of(theirs), options.flag_of(name))
    for name, value in (given["diffusion_config"] or {}).items():
        _put(found, name, value, "--diffusion-config", options.flag_of(name))
    _put(found, "model", given["model_path"], "--model-path", "the model")
    _put_names(found, given["served_model_name"])
    return found


def _put_names(found: dict[str, Any], names: Sequence[str]) -> None:
    """The first is what answers call the model, the others are aliases."""
    for name in names[:1]:
        _put(found, "name", name, "--served-model-name", "--name")
    found["aliases"] = (*found["aliases"], *(name for name in dict.fromkeys(names) if name not in names[:1]))


def _dashed(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else word


def _spread(words: Sequence[str]) -> Iterator[str]:
    """With the option's name before each of its values; they end where the next option begins."""
    inside = False
    for word in words:
        if word.startswith("-"):
            inside = word == "--served-model-name"
            if inside:
                continue
        yield from ("--served-model-name", word) if inside else (word,)


def _put(found: dict[str, Any], name: str, value: Any, theirs: str, ours: str) -> None:
    if value is None:
        return
    if found.get(name) is not None and found[name] != value:
        raise click.UsageError(f"{ours} is {found[name]} and {theirs} says {value}: they are two names of one thing")
    found[name] = value


def flag_of(name: str) -> str:
    """Their option of a parameter."""
    return f"--{name.replace('_', '-')}"


def _diffusion_config(_ctx: click.Context, _option: click.Parameter, text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise click.BadParameter(f"is no object with {', '.join(DIFFUSION)}")
    for name, each in value.items():
        if name not in DIFFUSION:
            raise click.BadParameter(f"{name!r} is unknown; known are {', '.join(DIFFUSION)}")
        if type(each) is not DIFFUSION[name] or (type(each) is int and each < 1):
            what = "true or false" if DIFFUSION[name] is bool else "a whole number from 1"
            raise click.BadParameter(f"{name} is {json.dumps(each)}; it must be {what}")
    return value


_OPTIONS = (
    click.option(
        "--served-model-name",
        multiple=True,
        metavar="NAME...",
        help="vLLM's name of --name; further ones are each an --alias.",
    ),
    click.option("--model-path", hidden=True),
    click.option("--max-num-seqs", type=click.IntRange(min=1), help="vLLM's name of --max-round-requests."),
    click.option("--max-running-requests", type=click.IntRange(min=1), hidden=True),
    click.option("--max-num-batched-tokens", type=TOKENS, help="vLLM's name of --max-round-tokens."),
    click.option("--context-length", type=TOKENS, hidden=True),
    click.option("--disable-radix-cache", is_flag=True, hidden=True),
    click.option("--disable-uvicorn-access-log", is_flag=True, hidden=True),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching", default=None, help="vLLM's name of --prefix-caching."
    ),
    click.option(
        "--diffusion-config",
        "-dc",
        metavar="JSON",
        callback=_diffusion_config,
        help="As of vLLM: an object with canvas_length, max_denoising_steps and single_pass_reads.",
    ),
    click.option("--dllm-block-length", type=click.IntRange(min=2), help="LMDeploy's name of --block-size."),
    click.option(
        "--dllm-unmasking-strategy",
        type=click.Choice(["low_confidence_dynamic", "low_confidence_static", "sequential"]),
        help="LMDeploy's name of --unmasking-strategy.",
    ),
    click.option("--dllm-denoising-steps", type=click.IntRange(min=1), help="LMDeploy's name of --denoising-steps."),
    click.option("--dllm-confidence-threshold", type=Finite(0, 1), help="LMDeploy's name of --confidence-threshold."),
)
