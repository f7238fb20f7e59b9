"""`ramet bench reads`: what a read of a diffusion model costs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ramet.cli import options
from ramet.cli.bench_watch import budget_option, drawer, json_option, plot_option, printed, repeats_option, watched
from ramet.cli.ranges import MOST, Count, Finite
from ramet.quoting import shown

SHAPES = ("26b-a4b", "100m", "tiny")
_CLIENTS = {"cpu": (1, 2, 5, 10, 20), "cuda": (1, 16, 64)}
_QUICK: dict[str, Any] = {"n_reads": 12, "repeats": 3, "budget_s": 1.0, "clients": (1, 4)}
_ENGINE = ("device", "dtype", "threads", "max_round_tokens", "batch_invariant", "ops")


class Numbers(click.ParamType[tuple[int, ...]]):
    """Whole numbers from 1, with commas between."""

    name = "N,N,..."

    def __init__(self, most: int = MOST) -> None:
        self._most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        parts = str(value).split(",")
        if not all(re.fullmatch(r" *[0-9]{1,7} *", part) and 0 < int(part) <= self._most for part in parts):
            self.fail(f"{shown(value)} is no list of whole numbers from 1 to {self._most}, such as 1,16", param, ctx)
        return tuple(map(int, parts))


@click.command("reads")
@click.option(
    "--shape",
    type=click.Choice(SHAPES),
    default=SHAPES[0],
    show_default=True,
    help="DiffusionGemma's own, or a smaller one of the same structure; weights are random.",
)
@click.option("--prompts", type=Numbers(), default="188,1250", show_default=True, help="Tokens of a prompt.")
@click.option("--canvas", type=Count(), default=32, show_default=True, help="Rows of a canvas.")
@click.option(
    "--clients", type=Numbers(4096), help="How many ask at once.  [default: 1,2,5,10,20 on a CPU, 1,16,64 on a GPU]"
)
@click.option(
    "--questions",
    type=Count(0),
    default=16,
    show_default=True,
    help="Asked on one joint canvas, and on a canvas each; 0 leaves that out.",
)
@click.option(
    "--peer",
    type=click.Choice(["transformers", "none"]),
    default="none",
    show_default=True,
    help="On the same weights.",
)
@click.option(
    "--price-per-month", type=Finite(min=0, min_open=True), help="Of the machine, for the cost of 1000 reads."
)
@click.option(
    "--reads",
    "n_reads",
    type=Count(),
    default=231,
    show_default=True,
    help="One after the other, of each way, with prompts of the first length; engine steps are counted over them.",
)
@repeats_option("Of everything else that is timed.")
@budget_option("a load, and of the peer at a length")
@click.option(
    "--quick", is_flag=True, help="12 reads, 3 repeats, 1 and 4 clients, 1 s of each, where not said otherwise."
)
@click.option("--seed", default=0, show_default=True, help="Of the token ids.")
@json_option
@plot_option("Draw a read's time against reads a second")
@options.some_engine_options(_ENGINE)
def reads(
    json_path: Path | None, plot_path: Path | None, shape: str, peer: str,
    price_per_month: float | None, **given: Any,
) -> None:  # fmt: skip
    """Time reads of DiffusionGemma: one pass against two steps, under load, and several questions.

    Weights are random, of the true shape, and made in seconds; no checkpoint is needed. The baseline of two steps is
    measured twice: its repeat is the noise. Answers are compared first, on a small model in float32: there is no figure
    for a wrong one.
    """
    from ramet.bench.core.samples import Effort
    from ramet.bench.reads import run as bench
    from ramet.engine.settings import EngineSettings

    settings = EngineSettings(**options.given(given, _ENGINE)).resolved()
    if given["quick"]:
        given |= {name: value for name, value in _QUICK.items() if _is_default(name)}
    clients = given["clients"] or _CLIENTS[settings.device.partition(":")[0]]
    effort = Effort(repeats=given["repeats"], budget_s=given["budget_s"], seed=given["seed"])
    work = bench.ReadsWork(given["prompts"], given["canvas"], clients, given["questions"], given["n_reads"], effort)
    draw = None if plot_path is None else drawer("ramet.bench.reads.plot")
    with watched(json_path) as watch:
        with_peer = peer == "transformers"
        found = bench.run(shape, settings, work, with_peer=with_peer, price=price_per_month, watch=watch)
    printed(found)
    if draw is not None:
        draw(found, plot_path)


def _is_default(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) == ParameterSource.DEFAULT
