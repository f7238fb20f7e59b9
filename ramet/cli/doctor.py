"""`ramet doctor`: what this machine has, and which kernels and types Ramet chooses there and why."""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import click

State = Literal["ok", "note", "broken"]

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy", "pydantic", "fastapi", "uvicorn")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. "note": works, but there is something to know. "broken": does not work."""

    section: str
    name: str
    value: str
    state: State = "ok"


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(as_json: bool) -> None:
    """Say what this machine has and what Ramet makes of it. Exits with 1 if something is broken."""
    findings = examine()
    broken = any(finding.state == "broken" for finding in findings)
    if as_json:
        click.echo(json.dumps({"ok": not broken, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        _print(findings)
    if broken:
        raise click.exceptions.Exit(1)


def examine() -> list[Finding]:
    """All findings. What fails while it is looked at is a finding too."""
    found: list[Finding] = []
    for section, look in SECTIONS.items():
        try:
            found += [Finding(section, *rest) for rest in look()]
        except Exception as error:  # to report it is what this command is for
            found.append(Finding(section, "error", f"{type(error).__name__}: {error}", "broken"))
    return found


Look = Callable[[], Iterator[tuple[str, str, State]]]


def versions() -> Iterator[tuple[str, str, State]]:
    from ramet.version import __version__

    yield "ramet", __version__, "ok"
    yield "python", f"{platform.python_version()}, {sys.executable}", "ok"
    for package in PACKAGES:
        try:
            yield package, version(package), "ok"
        except PackageNotFoundError:
            yield package, "not installed", "broken"


def hardware() -> Iterator[tuple[str, str, State]]:
    import torch

    from ramet.bench.core.machine import describe
    from ramet.machine import allowance

    machine, ours = describe(torch.get_num_threads()), allowance()
    for name in ("cpu", "units"):
        yield name, machine[name], "ok"
    yield "processors", ours.processors(), "ok"
    yield "memory", ours.bytes(), "ok"
    if not torch.cuda.is_available():
        yield "gpu", "none that torch can use", "ok"
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}", f"{card.name}, {card.total_memory / 2**30:.0f} GiB, sm_{card.major}{card.minor}", "ok"


def arithmetic() -> Iterator[tuple[str, str, State]]:
    import torch

    from ramet.bench.core.rates import DeviceRates
    from ramet.engine.settings import has_bfloat16_units
    from ramet.ops import OpShape, choose

    yield "torch", f"{torch.__version__}, oneDNN {'yes' if torch.backends.mkldnn.is_available() else 'no'}", "ok"
    yield "threads", f"{torch.get_num_threads()} in an operation, {torch.get_num_interop_threads()} between", "ok"
    yield "cpu kernels", f"torch's own for {torch.backends.cpu.get_cpu_capability()}", "ok"
    dtype = torch.bfloat16 if has_bfloat16_units() else torch.float32
    with warnings.catch_warnings(action="ignore"):  # the doctor shows under "kernels" what would be warned of
        ops = choose(torch.device("cpu"))(OpShape(dtype))
        rates = DeviceRates.measure(torch.device("cpu"), dtype, ops.pack)
    yield "products", f"{str(dtype).removeprefix('torch.')} by {ops.why['linear']}", "ok"
    yield "rates", f"{rates.flop_per_s / 1e12:.2f} TFLOP/s, memory read at {rates.bytes_per_s / 1e9:.1f} GB/s", "ok"


def choices() -> Iterator[tuple[str, str, State]]:
    from ramet.engine.settings import DTYPES, EngineSettings, has_bfloat16_units

    chosen = EngineSettings().resolved()
    units = "the CPU multiplies bfloat16 itself" if has_bfloat16_units() else "the CPU has no bfloat16 units"
    yield "device", f"{chosen.device} unless --device says otherwise", "ok"
    yield "dtype", f"{chosen.dtype} of {', '.join(DTYPES)} ({units})", "ok"
    yield "threads", str(chosen.threads), "ok"
    yield "round", f"{chosen.max_round_tokens} tokens", "ok"
    yield "cache", f"{(chosen.cache_bytes or 0) / 2**20:.0f} MiB of keys, values and recurrent states", "ok"


def kernels() -> Iterator[tuple[str, str, State]]:
    import torch

    from ramet.engine.host import host_for
    from ramet.engine.settings import DTYPES, EngineSettings
    from ramet.ops import choose
    from ramet.ops.native import status

    with warnings.catch_warnings(action="ignore"):  # the doctor shows here what would be warned of
        in_use, why = status()
    yield "native", why, "ok" if in_use else "note"
    settings = EngineSettings().resolved()
    device = torch.device(settings.device)
    yield "host", host_for(device).how, "ok"
    for op, reason in choose(device).usual(DTYPES[settings.dtype]).items():
        yield op, reason, "ok"


def models() -> Iterator[tuple[str, str, State]]:
    from huggingface_hub.constants import HF_HUB_CACHE

    from ramet.ops.native.build import cache_directory
    from ramet.weights.known import KNOWN
    from ramet.weights.named import place

    for name, model in KNOWN.items():
        found = place(name)
        yield name, str(found or f"not here, {model.n_bytes / 1e6:.0f} MB"), "ok" if found else "note"
    yield "hub cache", _cache(Path(HF_HUB_CACHE)), "ok"
    yield "kernel cache", _cache(cache_directory()), "ok"


def _cache(directory: Path) -> str:
    n_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file() and not file.is_symlink())
    return f"{directory}, {n_bytes / 1e6:.0f} MB"


SECTIONS: dict[str, Look] = {
    "versions": versions,
    "hardware": hardware,
    "arithmetic": arithmetic,
    "choices": choices,
    "kernels": kernels,
    "models": models,
}


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    styles = {"ok": "", "note": "yellow", "broken": "bold red"}
    table = Table(box=None, pad_edge=False, show_header=False)
    section = None
    for finding in findings:
        head = "" if finding.section == section else finding.section
        section = finding.section
        mark = "" if finding.state == "ok" else f"{finding.state}: "
        table.add_row(
            Text(head, style="bold"), Text(finding.name), Text(mark + finding.value, style=styles[finding.state])
        )
    Console().print(table)
