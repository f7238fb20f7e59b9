"""Options that several commands share, and what the engine is told of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import click

from ramet.cli.ranges import Finite
from ramet.cli.tokens import TOKENS, TOKENS_OR_AUTO, none_if_auto

DEFAULT_MODEL = "smollm2"

F = TypeVar("F", bound=Callable[..., Any])

_PEERS_DTYPES = {"half": "auto", "float16": "auto", "float": "float32"}  # as vLLM says it


def _dtype(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    ours = _PEERS_DTYPES.get(value or "", value)
    if ours != value:
        meaning = ": 16 bits are bfloat16, where the device multiplies it itself" if ours == "auto" else ""
        click.echo(f"--dtype {value}: means {ours} here{meaning}", err=True)
    return ours


# The fields of EngineSettings. An option that is not given is not passed on; a test holds the defaults that are told
# here against the real ones, which cannot be asked for without importing torch.
ENGINE_OPTIONS = (
    click.option("--device", help="cpu, cuda, cuda:1 ...  [default: auto]"),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "bfloat16", "float32", *_PEERS_DTYPES]),
        callback=_dtype,
        help="Of weights and arithmetic; auto takes bfloat16 where the device multiplies it itself.  [default: auto]",
    ),
    click.option(
        "--max-round-tokens",
        type=TOKENS,
        help="Most tokens in one pass.  [default: 4096 on a CPU, 16384 on a GPU]",
    ),
    click.option(
        "--max-request-tokens",
        type=click.IntRange(min=1),
        help="Most tokens of one request, its branches counted; beyond it 413.  [default: 65536]",
    ),
    click.option(
        "--max-queue", type=click.IntRange(min=1), help="Most requests that wait; beyond it 429.  [default: 1024]"
    ),
    click.option(
        "--cache-bytes",
        type=click.IntRange(min=1),
        help="Device memory for keys, values and recurrent states, of running requests and of states that may come "
        "again.  [default: an eighth of the memory, at most 1 GiB on a CPU, 4 GiB on a GPU]",
    ),
    click.option(
        "--memory-cache-bytes",
        type=click.IntRange(min=0),
        help="Main memory for kept states that must leave the device.  [default: 0]",
    ),
    click.option(
        "--disk-cache",
        type=click.Path(file_okay=False),
        help="Directory for kept states that must leave memory; a restarted engine finds them.  [default: none]",
    ),
    click.option(
        "--disk-cache-bytes", type=click.IntRange(min=1), help="Most bytes in that directory.  [default: 10737418240]"
    ),
    click.option(
        "--checkpoint-spacing",
        type=click.IntRange(min=1),
        help="Tokens between the checkpoints of a long state, for models with recurrent layers.  [default: 1024]",
    ),
    click.option(
        "--batch-invariant",
        is_flag=True,
        default=None,
        help="Every answer has the bits of its question asked alone, at any load.  [default: False]",
    ),
    click.option(
        "--max-model-len",
        type=TOKENS_OR_AUTO,
        callback=none_if_auto,
        metavar="N|auto",
        help="Most positions of a prompt with its reply, whole canvases and blocks.  [default: the model's positions]",
    ),
    click.option(
        "--max-round-requests",
        type=click.IntRange(min=1),
        help="Most requests under way at once.  [default: as many as fit]",
    ),
    click.option(
        "--prefix-caching/--no-prefix-caching",
        default=None,
        help="Keep states for later requests that begin alike.  [default: True]",
    ),
    click.option(
        "--canvas-length",
        type=click.IntRange(min=1),
        help="Of a diffusion model: most rows of a canvas.  [default: the model's]",
    ),
    click.option(
        "--max-denoising-steps",
        type=click.IntRange(min=1),
        help="Of a diffusion model: most steps of a canvas.  [default: the model's]",
    ),
    click.option(
        "--single-pass-reads/--no-single-pass-reads",
        default=None,
        help="Of a diffusion model: read a canvas in the round that ends its prompt, where that has room for it.  "
        "[default: True]",
    ),
    click.option(
        "--block-size",
        type=click.IntRange(min=2),
        help="Of a model that fills in masks: rows of a block.  [default: the model's]",
    ),
    click.option(
        "--mode",
        type=click.Choice(["chunk", "block"]),
        help="Of a model that fills in masks: a reply's step runs a chunk of its block, or all of the block, the plain "
        "way.  [default: chunk]",
    ),
    click.option(
        "--chunk-size",
        metavar="auto|block|N",
        help="Rows of a chunk at most. auto, the default of ramet serve: what gains the most tokens a second, but the "
        "block for a reply that is alone or has a seed, and with --batch-invariant.  [default: block]",
    ),
    click.option(
        "--chunk-tiers",
        metavar="N:SIZE,...",
        help="Rows of a chunk by the number of replies, instead: 4:32,32:16,256:8.  [default: none]",
    ),
    click.option(
        "--ahead/--no-ahead",
        default=None,
        help="The largest chunks may reach into the next block.  [default: False]",
    ),
    click.option(
        "--unmasking-strategy",
        type=click.Choice(["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"]),
        help="By which masked rows keep what was drawn for them.  [default: low_confidence_dynamic]",
    ),
    click.option(
        "--confidence-threshold",
        type=Finite(0, 1),
        help="Above which a masked row keeps what was drawn for it.  [default: 0.9]",
    ),
    click.option(
        "--denoising-steps",
        type=click.IntRange(min=1),
        help="Steps that a block is to take at most.  [default: the block's rows]",
    ),
    click.option(
        "--latency-cache",
        type=click.Path(file_okay=False),
        help="Directory of what passes were measured to take, for --chunk-size auto.  "
        "[default: in the user's cache directory]",
    ),
    click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Threads of a pass on the CPU.  [default: a core each, as far as a container's quota goes]",
    ),
    click.option(
        "--op",
        "ops",
        multiple=True,
        metavar="OP=IMPLEMENTATION",
        callback=lambda _ctx, _option, texts: _by_name(texts) or None,
        help="Overrides the choice of a kernel: attention=reference. May be repeated; see `ramet doctor`.",
    ),
)
ENGINE_SETTINGS = (
    "device",
    "dtype",
    "max_round_tokens",
    "max_request_tokens",
    "max_queue",
    "cache_bytes",
    "memory_cache_bytes",
    "disk_cache",
    "disk_cache_bytes",
    "checkpoint_spacing",
    "batch_invariant",
    "max_model_len",
    "max_round_requests",
    "prefix_caching",
    "canvas_length",
    "max_denoising_steps",
    "single_pass_reads",
    "block_size",
    "mode",
    "chunk_size",
    "chunk_tiers",
    "ahead",
    "unmasking_strategy",
    "confidence_threshold",
    "denoising_steps",
    "latency_cache",
    "threads",
    "ops",
)

READOUT_OPTIONS = (
    click.option(
        "--joint",
        is_flag=True,
        default=None,
        help="Answer the questions on one canvas, or on few; diffusion models alone.",
    ),
    click.option(
        "--method", type=click.Choice(["letters", "options"]), help="How answers are read.  [default: the model's]"
    ),
    click.option("--debias", type=click.IntRange(1, 16), help="Average over this many orders of the options."),
    click.option(
        "--samples", type=click.IntRange(1, 32), help="Average over this many draws of noise; diffusion models alone."
    ),
    click.option(
        "--steps", type=click.IntRange(1, 8), help="Denoise what is read in so many steps; diffusion models alone."
    ),
    click.option("--seed", type=int, help="Draw the noise that is read by this number, too; diffusion models alone."),
    click.option(
        "--temperature",
        "temperatures",
        multiple=True,
        metavar="[TYPE=]T",
        help="For all questions, or for those of a type: choice=1.3. May be repeated.  [default: the model's]",
    ),
    click.option("--confidence", type=click.Choice(["typesafe", "vllm", "top"]), help="Formula of the confidence."),
)


def _apply(options: tuple[Callable[[F], F], ...], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def model_option(command: F) -> F:
    return click.option(
        "--model",
        "-m",
        default=DEFAULT_MODEL,
        show_default=True,
        help="smollm2, gemma3-270m (each of an installed package), a directory, a .gguf file or a hub id.",
    )(command)


def engine_options(command: F) -> F:
    """The options that `Engine.load` takes under the same names."""
    return _apply(ENGINE_OPTIONS, command)


def some_engine_options(names: Collection[str]) -> Callable[[F], F]:
    """Those of them for the settings of these names."""
    chosen = tuple(o for name, o in zip(ENGINE_SETTINGS, ENGINE_OPTIONS, strict=True) if name in names)
    return lambda command: _apply(chosen, command)


def readout_options(command: F) -> F:
    """The options that become a request's fields: see `readout_fields`."""
    return _apply(READOUT_OPTIONS, command)


def given(options: Mapping[str, Any], names: tuple[str, ...] = ENGINE_SETTINGS) -> dict[str, Any]:
    """Those of the named options that were given."""
    return {name: options[name] for name in names if options.get(name) is not None}


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether an option was given, be it with its default."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def flag_of(setting: str) -> str:
    """The option that sets an engine's setting."""
    return "--op" if setting == "ops" else f"--{setting.replace('_', '-')}"


# What `readout_fields` takes.
READOUTS = ("joint", "method", "debias", "samples", "steps", "seed", "temperatures", "confidence")


def readout_fields(
    joint: bool | None,
    method: str | None,
    debias: int | None,
    samples: int | None,
    steps: int | None,
    seed: int | None,
    temperatures: tuple[str, ...],
    confidence: str | None,
) -> dict[str, Any]:
    """Fields of a request; what was not given is left out."""
    fields = {
        "joint": joint,
        "x_method": method,
        "x_debias": debias,
        "x_samples": samples,
        "x_steps": steps,
        "x_seed": seed,
        "x_temperature": _temperature(temperatures),
        "x_confidence": confidence,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _by_name(texts: tuple[str, ...]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for text in texts:
        op, _, implementation = text.partition("=")
        if not (op and implementation) or op in chosen:
            raise click.BadParameter(f"{text!r} is not OP=IMPLEMENTATION, or the op comes twice")
        chosen[op] = implementation
    return chosen


def _temperature(texts: tuple[str, ...]) -> float | dict[str, float] | None:
    by_type: dict[str, float] = {}
    for text in texts:
        kind, _, number = text.rpartition("=")
        if kind not in ("", "noul", "choice", "score"):
            raise click.BadParameter(
                f"{kind!r} is no type of question: noul, choice or score", param_hint="--temperature"
            )
        if kind in by_type:
            raise click.BadParameter(f"given twice for {kind or 'all questions'}", param_hint="--temperature")
        by_type[kind] = _positive(number)
    if "" in by_type and len(by_type) > 1:
        raise click.BadParameter("give one for all questions or one a type, not both", param_hint="--temperature")
    return by_type.get("", by_type or None)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise click.BadParameter(f"{text!r} is no positive number", param_hint="--temperature")
    return value
