"""Writes docs/cli.md and docs/settings.md from the commands and the settings. `make docs` runs it; a test compares."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from ramet import cli
from ramet.cli import options
from ramet.cli.serve import SETTINGS as SERVE_OPTIONS
from ramet.request import DecisionRequest
from ramet.server import ServerSettings

DIRECTORY = Path(__file__).parent
WIDTH = 100

REQUEST_OPTIONS = {
    "joint": "--joint",
    "x_method": "--method",
    "x_debias": "--debias",
    "x_samples": "--samples",
    "x_steps": "--steps",
    "x_seed": "--seed",
    "x_temperature": "--temperature",
    "x_confidence": "--confidence",
}
VARIABLES = {
    "RAMET_API_KEY": "The key that `ramet serve` asks for, and that `ramet decide --url` sends.",
    "RAMET_CACHE": "Where compiled kernels are kept, instead of `ramet` in the user's cache directory.",
    "RAMET_NATIVE": "`0` turns the compiled kernels off: plain torch and NumPy are several times slower. `portable`, "
    "`avx2`, `avx512`, `avx512-bf16` or `amx-bf16` compiles them for less than an x86-64 processor has.",
    "RAMET_NETWORK_TESTS": "`1` lets the tests marked `network` use the internet.",
    "RAMET_LOAD_SECONDS": "How long the load test runs; 8 by default.",
    "TRITON_CACHE_DIR": "Where Triton keeps a GPU's kernels, instead of below RAMET_CACHE; not with `warmup --out`.",
    "CC": "The C compiler with which Triton builds its launchers, once.",
    "CXX": "The C++ compiler for the kernels, instead of the first of c++, g++ and clang++.",
    "HF_HOME, HF_HUB_OFFLINE, HF_TOKEN": "Of huggingface_hub, when a model is named by its hub id.",
}
GENERATED = "<!-- Written by `make docs`. -->"


def cli_page() -> str:
    """Every command's help, as the command prints it."""
    parts = [GENERATED, "# The command line", "Exit codes: 0 done, 1 the engine or the model failed, 2 the request or "
             "the options are wrong. Answers go to stdout, all else to stderr."]  # fmt: skip
    for context in _contexts(cli.main, "ramet", None):
        parts.append(f"## {context.command_path}\n\n```\n{context.get_help().rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """Every setting with its default, its option and what it means."""
    sections = {
        "The engine": ("Keywords of `Engine.load`, options of `serve`, `decide` and `run`.", _engine_rows()),
        "The server": ("Fields of `ServerSettings`, options of `ramet serve`.", _server_rows()),
        "A request": (
            "Fields of the request beside state and questions; options of `decide` and `run`.",
            _request_rows(),
        ),
    }
    parts = [GENERATED, "# Settings"]
    for title, (words, rows) in sections.items():
        parts += [f"## {title}", words, _table(("setting", "default", "option", "meaning"), rows)]
    parts += ["## Environment variables", _table(("variable", "meaning"), _variable_rows())]
    return "\n\n".join(parts) + "\n"


def _contexts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """Contexts of the command and all below it, as wide as the page and made as a call makes them."""
    context = command.make_context(name, [], parent, resilient_parsing=True, terminal_width=WIDTH)
    yield context
    if isinstance(command, click.Group):
        for inner_name in command.list_commands(context):
            inner = command.get_command(context, inner_name)
            assert inner is not None
            yield from _contexts(inner, inner_name, context)


def _engine_rows() -> Iterator[tuple[str, ...]]:
    from ramet.engine.settings import EngineSettings

    helps = _option_helps()
    yield "name", "the checkpoint's", "`--name`", "What answers and /v1/models call the model."
    yield "method", "the model's", "`--method`", "How answers are read: `letters` or `options`."
    for field in dataclasses.fields(EngineSettings):
        words, _, default = helps[field.name].partition("  [default: ")
        flag = options.flag_of(field.name)
        yield field.name, default.rstrip("]") or "chosen by what the processor has", f"`{flag}`", words


def _server_rows() -> Iterator[tuple[str, ...]]:
    for name, field in ServerSettings.model_fields.items():
        flag = f"--{name.replace('_', '-')}" if name in SERVE_OPTIONS else {"aliases": "--alias"}.get(name)
        default = "today" if name == "release_date" else _literal(field.get_default(call_default_factory=True))
        yield name, default, f"`{flag or '--no-access-log'}`", field.description or ""


def _request_rows() -> Iterator[tuple[str, ...]]:
    for name, flag in REQUEST_OPTIONS.items():
        field = DecisionRequest.model_fields[name]
        yield name, _literal(field.default), f"`{flag}`", field.description or ""


def _variable_rows() -> Iterator[tuple[str, ...]]:
    for name, meaning in VARIABLES.items():
        yield f"`{name}`", meaning


def _option_helps() -> dict[str, str]:
    @options.engine_options
    @click.command()
    def command(**_: Any) -> None: ...

    return {p.name: p.help or "" for p in command.params if isinstance(p, click.Option) and p.name}


def _literal(value: Any) -> str:
    if value is None:
        return "none"
    return f"`{dict(value)}`" if hasattr(value, "items") else f"`{value}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


PAGES = {"cli.md": cli_page, "settings.md": settings_page}


def main() -> None:
    for name, page in PAGES.items():
        (DIRECTORY / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
