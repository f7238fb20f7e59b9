"""Names of options that mean the same here, of vLLM and LMDeploy, so that their serve lines work."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from ramet.cli import options

F = TypeVar("F", bound=Callable[..., Any])

# Their name of an option -> ours
SAME = {
    "max_num_seqs": "max_round_requests",
    "max_num_batched_tokens": "max_round_tokens",
    "enable_prefix_caching": "prefix_caching",
    "served_model_name": "name",
    "dllm_block_length": "block_size",
    "dllm_unmasking_strategy": "unmasking_strategy",
    "dllm_denoising_steps": "denoising_steps",
    "dllm_confidence_threshold": "confidence_threshold",
}
DIFFUSION = {"canvas_length": int, "max_denoising_steps": int, "single_pass_reads": bool}  # in --diffusion-config


def peer_options(command: F) -> F:
    """The options, each of which `ours` takes away again."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def ours(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, under our names alone. Raises click.UsageError where one thing is told twice and otherwise."""
    found = {name: value for name, value in given.items() if name not in SAME and name != "diffusion_config"}
    for theirs, name in SAME.items():
        _put(found, name, given[theirs], _flag(theirs), options.flag_of(name))
    for name, value in (given["diffusion_config"] or {}).items():
        _put(found, name, value, "--diffusion-config", options.flag_of(name))
    return found


def _put(found: dict[str, Any], name: str, value: Any, theirs: str, ours: str) -> None:
    if value is None:
        return
    if found.get(name) is not None and found[name] != value:
        raise click.UsageError(f"{ours} is {found[name]} and {theirs} says {value}: they are two names of one thing")
    found[name] = value


def _flag(name: str) -> str:
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
    click.option("--served-model-name", metavar="TEXT", help="vLLM's name of --name."),
    click.option("--max-num-seqs", type=click.IntRange(min=1), help="vLLM's name of --max-round-requests."),
    click.option("--max-num-batched-tokens", type=click.IntRange(min=1), help="vLLM's name of --max-round-tokens."),
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
    click.option(
        "--dllm-confidence-threshold", type=click.FloatRange(0, 1), help="LMDeploy's name of --confidence-threshold."
    ),
)
