"""Writes what pages have of commands, settings, docstrings and imports. `make docs` runs it; a test compares."""

from __future__ import annotations

import dataclasses
import runpy
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
from python_page import python_page

from ramet import cli
from ramet.cli import options, peer_names
from ramet.cli.peer_values import PEERS, Peer
from ramet.request import DecisionRequest
from ramet.server import ServerSettings

DIRECTORY = Path(__file__).parent
WIDTH = 100

REQUEST_OPTIONS = {
    "joint": "--joint",
    "x_method": "--method",
    "x_debias": "--debias",
    "x_prior": "--prior",
    "x_samples": "--samples",
    "x_steps": "--steps",
    "x_seed": "--seed",
    "x_temperature": "--temperature",
    "x_confidence": "--confidence",
}
VARIABLES = {
    "RAMET_API_KEY": "The key that `ramet serve` asks for, without --api-key, and that `--url` sends.",
    "HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY": "Of `decide` and `run` with --url; not to this machine itself.",
    "OMP_NUM_THREADS": "Threads of a pass where --threads is not given, beyond a container's quota too.",
    "RAMET_CACHE": "Where kernels and joined models are kept, instead of `ramet` in the user's cache directory.",
    "RAMET_NATIVE": "`0` turns the CPU's compiled kernels off: plain torch and NumPy are several times slower. "
    "`portable`, `avx2`, `avx512`, `avx512-bf16` or `amx-bf16` compiles them for less than an x86-64 processor has.",
    "RAMET_NETWORK_TESTS": "`1` lets the tests marked `network` use the internet.",
    "RAMET_LOAD_SECONDS": "How long the load test runs; 8 by default.",
    "RAMET_ATTACK_EXAMPLES": "How many bodies and checkpoints the attack tests make up; 20000 take an hour.",
    "TRITON_CACHE_DIR": "Where Triton keeps a GPU's kernels, instead of below RAMET_CACHE; not with `warmup --out`.",
    "CC": "The C compiler with which Triton builds its launchers, once.",
    "CXX": "The C++ compiler for the kernels, instead of the first of c++, g++ and clang++.",
    "HF_HOME, HF_HUB_OFFLINE, HF_TOKEN": "Of huggingface_hub, when a model is named by its hub id, or by a name that "
    "`ramet models` lists; offline, packages are not downloaded either.",
}
SERVE_LINES = """\
`ramet serve` takes a serve line of vLLM, and the common options of SGLang's, where what it says can be had here:

```sh
ramet serve google/diffusiongemma-26B-A4B-it --served-model-name gemma fast --max-model-len 8K \\
  --max-num-seqs 16 --tensor-parallel-size 1 --gpu-memory-utilization 0.9 --trust-remote-code
```

Options that Ramet has too have other names here, or the same. What sets nothing here and changes no answer is taken,
and a line says what holds instead. What cannot be had is refused before the model is loaded, with what to do. An
option that is not listed here or in [the command line](cli.md) is an error.

Names may have underscores for dashes. Of `--served-model-name` with several names the first is the model's
(`--name`), and each of the others an alias (`--alias`). Numbers of tokens may be `8k` (8000) or `8K` (8192);
`--max-model-len auto`, or -1, is as many as the model has positions. `--dtype half` and `float16` mean `auto`, which
is bfloat16 where the device multiplies it itself, and `float` means `float32`. One option has another meaning here:
`--block-size` is the rows of a block of masks, not a page of the cache, and is refused for models without masks."""
GENERATED = "<!-- Written by `make docs`. -->"
ORDER_BEGINS, ORDER_ENDS = "<!-- The order of imports, written by `make docs`. -->", "<!-- Its end. -->"


def cli_page() -> str:
    """Every command's help, as the command prints it."""
    parts = [GENERATED, "# The command line", "Exit codes: 0 done, 1 the engine or the model failed, 2 the request or "
             "the options are wrong.\n`ramet serve` ends with 0 at SIGTERM and with 130 at SIGINT. Answers go to "
             "stdout, all else to stderr."]  # fmt: skip
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


def serve_lines_page() -> str:
    """Every option of other servers that `ramet serve` takes or refuses by name."""
    parts = [GENERATED, "# Serve lines of vLLM and SGLang", SERVE_LINES]
    same = ((f"`{peer_names.flag_of(theirs)}`", f"`{options.flag_of(ours)}`") for theirs, ours in _names())
    parts += ["## Other names of options", _table(("option", "is here"), same)]
    parts += ["## Taken, with a note", _table(("option", "values", "what holds here"), _taken_rows())]
    parts += ["## Refused", _table(("option", "values", "why, and what to do"), _refused_rows())]
    return "\n\n".join(parts) + "\n"


def _names() -> Iterator[tuple[str, str]]:
    yield from peer_names.SAME.items()
    yield from ((theirs, f"no_{ours}") for theirs, ours in peer_names.OPPOSITE.items())
    yield from (("served_model_name", "name"), ("model_path", "model"))


def _taken_rows() -> Iterator[tuple[str, ...]]:
    for peer in PEERS:
        if peer.taken is None or peer.taken:
            values = "on and off" if peer.is_switch else "any" if peer.taken is None else _codes(peer.taken)
            yield _codes(peer.flags), values, peer.here


def _refused_rows() -> Iterator[tuple[str, ...]]:
    for peer in PEERS:
        if peer.taken is not None:
            yield _codes(peer.flags), "all others" if peer.taken else _all(peer), peer.remedy


def _all(peer: Peer) -> str:
    return "on" if peer.is_switch else "all"


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


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
    yield "calibration", "the checkpoint's", "`--calibration`", "The file of a [calibration](calibration.md)."
    for field in dataclasses.fields(EngineSettings):
        words, _, default = helps[field.name].partition("  [default: ")
        flag = options.flag_of(field.name)
        yield field.name, default.rstrip("]") or "chosen by what the processor has", f"`{flag}`", words


def _server_rows() -> Iterator[tuple[str, ...]]:
    for name, field in ServerSettings.model_fields.items():
        flag = {"aliases": "--alias", "access_log": "--no-access-log"}.get(name, f"--{name.replace('_', '-')}")
        default = "today" if name == "release_date" else _literal(field.get_default(call_default_factory=True))
        yield name, default, f"`{flag}`", field.description or ""


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


def _setting_helps() -> dict[str, str]:
    """What the engine's settings mean, in plain words."""
    return {name: words.partition("  [default: ")[0] for name, words in _option_helps().items()}


def _literal(value: Any) -> str:
    if value is None or value == ():
        return "none"
    return f"`{dict(value)}`" if hasattr(value, "items") else f"`{value}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def architecture_page() -> str:
    """The page as it is, with the order of imports that the tests hold the package to."""
    page = (DIRECTORY / "architecture.md").read_text(encoding="utf-8")
    before, rest = page.split(ORDER_BEGINS)
    layers = runpy.run_path(str(DIRECTORY.parent / "tests" / "fixtures" / "import_layers.py"))
    return f"{before}{ORDER_BEGINS}\n{layers['import_order']()}\n{ORDER_ENDS}{rest.split(ORDER_ENDS)[1]}"


PAGES = {
    "architecture.md": architecture_page,
    "cli.md": cli_page,
    "settings.md": settings_page,
    "serve-lines.md": serve_lines_page,
    "python.md": lambda: python_page(GENERATED, _setting_helps()),
}


def main() -> None:
    for name, page in PAGES.items():
        (DIRECTORY / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
