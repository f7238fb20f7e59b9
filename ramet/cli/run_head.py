"""The head of a run's output: what its rows were made with, so that `ramet agree` can say what two runs differ in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ramet.cli.remote import calibration_of, endpoint, without_login
from ramet.version import __version__

if TYPE_CHECKING:
    from ramet.engine import Engine

Head = dict[str, Any]
UNITS = {"answers": "probability", "x_label_mass": "probability", "logprobs": "nats"}


def engine_head(engine: Engine, settings: Mapping[str, Any], request: Mapping[str, Any]) -> Head:
    """Of rows that a loaded engine answers. `settings` are the engine's, `request` the fields that every row has."""
    told = dict(engine.describe())
    kernels = {name.removeprefix("op "): why for name, why in told.items() if name.startswith("op ")}
    return {
        **_software(),
        "model": engine.name,
        "model_hash": told["fingerprint"],
        "device": told["device"],
        "dtype": told["dtype"],
        "machine": _machine(told["device"]),
        "kernels": kernels,
        "settings": {name: _plain(value) for name, value in settings.items()},
        "request": dict(request),
        "units": UNITS,
    }


def server_head(url: str, card: Mapping[str, Any], request: Mapping[str, Any]) -> Head:
    """Of rows that a running server answers, which says by its `card` which model it has."""
    return {
        **_software(),
        "server": without_login(endpoint(url)),
        "model": card.get("id") or card.get("name"),
        "model_hash": card.get("x_fingerprint"),
        "calibration": calibration_of(card),
        "request": dict(request),
        "units": UNITS,
    }


@cache
def _software() -> Head:
    from ramet.bench.core.machine import commit

    return {"ramet": __version__, "commit": commit()}


@cache
def _machine(device: str) -> Head:
    from ramet.bench.core import machine

    try:
        torch = {"torch": version("torch")}
    except PackageNotFoundError:
        torch = {}
    return machine.processor() | (machine.gpu() if device.startswith("cuda") else {}) | torch


def _plain(value: Any) -> Any:
    """A setting as JSON has it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
