"""`ramet warmup`: compiles a model's kernels ahead, and takes them to other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ramet import cli
from ramet.cli import options
from ramet.cli.files import NewFile, OldFile
from ramet.errors import EngineFault

REQUEST = {
    "state": "It is 30 degrees in the shade.",
    "questions": {"warm": {"type": "noul", "instructions": "Is it warm?"}},
}


@click.command("warmup")
@options.model_option
@options.engine_options
@click.option(
    "--out",
    type=NewFile(),
    help="Also write the compiled kernels to this file, a bundle for machines with the same card and versions.",
)
@click.option(
    "--in",
    "bundle",
    type=OldFile(),
    help="Put a bundle's kernels into the cache instead; no model is loaded. Its code will run: trust who made it.",
)
def command(out: Path | None, bundle: Path | None, **given: Any) -> None:
    """Compile a model's kernels ahead, so that `ramet serve` with the same options starts at once.

    They are kept in the cache directory, by versions and card. With --out they are written to a file too, which
    `ramet warmup --in` takes on another machine.
    """
    if out and bundle:
        raise click.UsageError("--out makes a bundle and --in takes one: give one of them")
    device = _device(given)
    if bundle:
        _install(bundle, device)
    elif device == "cpu":
        _warm_cpu(out)
    else:
        _warm_gpu(out, device, given)


def _device(given: dict[str, Any]) -> str:
    from ramet.engine.settings import EngineSettings

    return EngineSettings(**options.given(given)).resolved().device


def _install(bundle: Path, device: str) -> None:
    from ramet.ops import kernels

    kind, n_files = kernels.install(bundle, None if device == "cpu" else device)
    unchecked = ", which is not here to compare" if device == "cpu" else ""
    click.echo(f"{n_files} files for cards of capability {kind.capability}{unchecked}, in {kind.directory}", err=True)


def _warm_cpu(out: Path | None) -> None:
    """The C++ kernels, which any model uses."""
    from ramet.ops import native

    if out:
        raise click.UsageError("--out is for a GPU's kernels; those of a CPU are compiled for each machine, in seconds")
    in_use, why = native.status()
    if not in_use:
        raise EngineFault(f"the CPU's kernels are {why}")
    click.echo(f"the CPU's kernels are compiled, for any model: {why}", err=True)


def _warm_gpu(out: Path | None, device: str, given: dict[str, Any]) -> None:
    from ramet.ops import kernels
    from ramet.request import DecisionRequest

    directory, kind = kernels.use(device), kernels.Kind.of(device)
    if out and directory != kind.directory:
        raise click.UsageError(f"TRITON_CACHE_DIR names {directory}, which others may use too: unset it for --out")
    with cli.load_engine(given["model"], **options.given(given)) as engine:  # compiles what its passes launch
        engine.decide(DecisionRequest.model_validate(REQUEST))  # and what comes after them
    click.echo(f"compiled for capability {kind.capability}, in {directory}", err=True)
    if out:
        kernels.compile_host(directory)
        n_files = kernels.write(out, directory, kind)
        click.echo(f"{out}: {n_files} files, {out.stat().st_size / 1e6:.1f} MB", err=True)
