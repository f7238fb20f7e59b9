"""ENGINE_OPTIONS: the command line's options for the engine's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from ramet.cli.ranges import Finite
from ramet.cli.tokens import TOKENS, TOKENS_OR_AUTO, none_if_auto

_PEERS_DTYPES = {"half": "auto", "float16": "auto", "float": "float32"}  # as vLLM says it


def _dtype(_ctx: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    ours = _PEERS_DTYPES.get(value or "", value)
    if ours != value:
        meaning = ": 16 bits are bfloat16, where the device multiplies it itself" if ours == "auto" else ""
        click.echo(f"--dtype {value}: means {ours} here{meaning}", err=True)
    return ours


def _by_name(texts: tuple[str, ...]) -> dict[str, str]:
    chosen: dict[str, str] = {}
    for text in texts:
        op, _, implementation = text.partition("=")
        if not (op and implementation) or op in chosen:
            raise click.BadParameter(f"{text!r} is not OP=IMPLEMENTATION, or the op comes twice")
        chosen[op] = implementation
    return chosen


# By the fields of EngineSettings. An option that is not given is not passed on. A test compares the defaults in these
# helps with the real ones, which cannot be imported without torch.
ENGINE_OPTIONS: Mapping[str, Callable[[Any], Any]] = {
    "device": click.option("--device", help="cpu, cuda, cuda:1 ...  [default: auto]"),
    "dtype": click.option(
        "--dtype",
        type=click.Choice(["auto", "bfloat16", "float32", *_PEERS_DTYPES]),
        callback=_dtype,
        help="Of weights and arithmetic; auto takes bfloat16 where the device multiplies it itself.  [default: auto]",
    ),
    "max_round_tokens": click.option(
        "--max-round-tokens",
        type=TOKENS,
        help="Most tokens in one pass.  [default: 4096 on a CPU, 16384 on a GPU]",
    ),
    "max_request_tokens": click.option(
        "--max-request-tokens",
        type=click.IntRange(min=1),
        help="Most tokens of one request, its branches counted; beyond it 413.  [default: 65536]",
    ),
    "max_queue": click.option(
        "--max-queue", type=click.IntRange(min=1), help="Most requests that wait; beyond it 429.  [default: 1024]"
    ),
    "cache_bytes": click.option(
        "--cache-bytes",
        type=click.IntRange(min=1),
        help="Device memory for keys, values and recurrent states, of running requests and of states that may come "
        "again.  [default: an eighth of the memory, at most 1 GiB on a CPU, 4 GiB on a GPU]",
    ),
    "memory_cache_bytes": click.option(
        "--memory-cache-bytes",
        type=click.IntRange(min=0),
        help="Main memory for kept states that must leave the device.  [default: 0]",
    ),
    "disk_cache": click.option(
        "--disk-cache",
        type=click.Path(file_okay=False),
        help="Directory for kept states that must leave memory; a restarted engine finds them.  [default: none]",
    ),
    "disk_cache_bytes": click.option(
        "--disk-cache-bytes", type=click.IntRange(min=1), help="Most bytes in that directory.  [default: 10737418240]"
    ),
    "checkpoint_spacing": click.option(
        "--checkpoint-spacing",
        type=click.IntRange(min=1),
        help="Tokens between the checkpoints of a long state, for models with recurrent layers.  [default: 1024]",
    ),
    "batch_invariant": click.option(
        "--batch-invariant",
        is_flag=True,
        default=None,
        help="Every answer has the bits of its question asked alone, at any load.  [default: False]",
    ),
    "max_model_len": click.option(
        "--max-model-len",
        type=TOKENS_OR_AUTO,
        callback=none_if_auto,
        metavar="N|auto",
        help="Most positions of a prompt with its reply, whole canvases and blocks.  [default: the model's positions]",
    ),
    "max_round_requests": click.option(
        "--max-round-requests",
        type=click.IntRange(min=1),
        help="Most requests under way at once.  [default: as many as fit]",
    ),
    "prefix_caching": click.option(
        "--prefix-caching/--no-prefix-caching",
        default=None,
        help="Keep states for later requests that begin alike.  [default: True]",
    ),
    "canvas_length": click.option(
        "--canvas-length",
        type=click.IntRange(min=1),
        help="Of a diffusion model: most rows of a canvas.  [default: the model's]",
    ),
    "max_denoising_steps": click.option(
        "--max-denoising-steps",
        type=click.IntRange(min=1),
        help="Of a diffusion model: most steps of a canvas.  [default: the model's]",
    ),
    "single_pass_reads": click.option(
        "--single-pass-reads/--no-single-pass-reads",
        default=None,
        help="Of a diffusion model: read a canvas in the round that ends its prompt, where that has room for it.  "
        "[default: True]",
    ),
    "block_size": click.option(
        "--block-size",
        type=click.IntRange(min=2),
        help="Of a model that fills in masks: rows of a block.  [default: the model's]",
    ),
    "mode": click.option(
        "--mode",
        type=click.Choice(["chunk", "block"]),
        help="Of a model that fills in masks: a reply's step runs a chunk of its block, or all of the block, the plain "
        "way.  [default: chunk]",
    ),
    "chunk_size": click.option(
        "--chunk-size",
        metavar="auto|block|N",
        help="Rows of a chunk at most. auto, the default of ramet serve: what gains the most tokens a second, but the "
        "block for a reply that is alone or has a seed, and with --batch-invariant.  [default: block]",
    ),
    "chunk_tiers": click.option(
        "--chunk-tiers",
        metavar="N:SIZE,...",
        help="Rows of a chunk by the number of replies, instead: 4:32,32:16,256:8.  [default: none]",
    ),
    "ahead": click.option(
        "--ahead/--no-ahead",
        default=None,
        help="The largest chunks may reach into the next block.  [default: False]",
    ),
    "unmasking_strategy": click.option(
        "--unmasking-strategy",
        type=click.Choice(["low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded"]),
        help="By which masked rows keep what was drawn for them.  [default: low_confidence_dynamic]",
    ),
    "confidence_threshold": click.option(
        "--confidence-threshold",
        type=Finite(0, 1),
        help="Above which a masked row keeps what was drawn for it.  [default: 0.9]",
    ),
    "denoising_steps": click.option(
        "--denoising-steps",
        type=click.IntRange(min=1),
        help="Steps that a block is to take at most.  [default: the block's rows]",
    ),
    "latency_cache": click.option(
        "--latency-cache",
        type=click.Path(file_okay=False),
        help="Directory of what passes were measured to take, for --chunk-size auto.  "
        "[default: in the user's cache directory]",
    ),
    "threads": click.option(
        "--threads",
        type=click.IntRange(min=1),
        help="Threads of a pass on the CPU.  [default: a core each, as far as a container's quota goes]",
    ),
    "ops": click.option(
        "--op",
        "ops",
        multiple=True,
        metavar="OP=IMPLEMENTATION",
        callback=lambda _ctx, _option, texts: _by_name(texts) or None,
        help="Overrides the choice of a kernel: attention=reference. May be repeated; see `ramet doctor`.",
    ),
}
