"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import click

from ramet.cli.engine_options import ENGINE_OPTIONS
from ramet.cli.files import OldFile
from ramet.cli.ranges import Finite

DEFAULT_MODEL = "smollm2"

F = TypeVar("F", bound=Callable[..., Any])

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
        "--prior",
        type=Finite(min=0, max=1),
        help="How much of what the model says after an empty state is taken off.  [default: the model's]",
    ),
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
READOUT_FIELDS = {  # by the options' names
    "joint": "joint",
    "method": "x_method",
    "debias": "x_debias",
    "prior": "x_prior",
    "samples": "x_samples",
    "steps": "x_steps",
    "seed": "x_seed",
    "temperatures": "x_temperature",
    "confidence": "x_confidence",
}

READING = ("joint", "method", "debias", "prior", "samples", "steps")


def _apply(options: Sequence[Callable[[F], F]], command: F) -> F:
    for option in reversed(options):
        command = option(command)
    return command


def model_option(command: F) -> F:
    return click.option(
        "--model",
        "-m",
        default=DEFAULT_MODEL,
        show_default=True,
        help="A name that `ramet models` lists, a directory, a .gguf file or a hub id.",
    )(command)


def calibration_option(command: F) -> F:
    return click.option(
        "--calibration",
        type=OldFile(),
        metavar="FILE",
        help="What `ramet calibrate` wrote for this model.  [default: calibration.json in the model's directory]",
    )(command)


def engine_options(command: F) -> F:
    """Add the options that `Engine.load` takes under the same names."""
    return some_engine_options(ENGINE_OPTIONS)(command)


def some_engine_options(names: Collection[str]) -> Callable[[F], F]:
    """Add those of them that set the named settings."""
    chosen = [option for name, option in ENGINE_OPTIONS.items() if name in names]
    return lambda command: _apply(chosen, command)


def reading_options(command: F) -> F:
    """Add those of them that change how questions are read, and so their probabilities before any temperature."""
    named = zip(READOUT_FIELDS, READOUT_OPTIONS, strict=True)
    return _apply([option for name, option in named if name in READING], command)


def readout_options(command: F) -> F:
    """Add the options that become a request's fields: see `readout_fields`."""
    return _apply(READOUT_OPTIONS, command)


def given(options: Mapping[str, Any], names: Iterable[str] = ENGINE_OPTIONS) -> dict[str, Any]:
    """The values of those of the named options that the caller gave."""
    return {name: options[name] for name in names if options.get(name) is not None}


def loaded(options: Mapping[str, Any], *more: str) -> dict[str, Any]:
    """What `load_engine` takes of the options that the caller gave: the engine's, the calibration, the method, which a
    calibration is of, and `more`."""
    return given(options, (*ENGINE_OPTIONS, "calibration", "method", *more))


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether an option was given, be it with its default."""
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def flag_of(setting: str) -> str:
    """The option that sets an engine's setting."""
    return "--op" if setting == "ops" else f"--{setting.replace('_', '-')}"


def readout_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """The request's fields that the readout options set; an option that was not given sets none."""
    fields = {field: given[name] for name, field in READOUT_FIELDS.items()}
    fields["x_temperature"] = _temperature(given["temperatures"])  # keeps its place among the fields
    return {name: value for name, value in fields.items() if value is not None}


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
