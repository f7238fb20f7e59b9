"""Profiles: how long steps took, kept on disk, so that a model is measured once on a machine.

    DIRECTORY/<hash of a Setup>.json

A file is written beside its place and then renamed. Where it is damaged, or of another setup or format, the steps are
measured again, and the file is replaced.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from ramet.denoise.latency import RowTiming

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Setup:
    """What timings depend on: the model's fingerprint, the dtype, the device, and Ramet's version with its kernels."""

    model: str
    dtype: str
    device: str
    version: str

    @property
    def name(self) -> str:
        digest = hashlib.sha256("\0".join(astuple(self)).encode()).hexdigest()
        return f"{digest[:32]}.json"


class Profiles:
    """Timings by setup. Several processes may use one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, setup: Setup) -> tuple[RowTiming, ...] | None:
        """The timings of a setup; None where there are none that can be read."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            held = json.loads((self._directory / setup.name).read_text(encoding="utf-8"))
            if held["format"] == _FORMAT and held["setup"] == asdict(setup) and held["sum"] == _sum(held["timings"]):
                return tuple(RowTiming(*each) for each in held["timings"])
        return None

    def keep(self, setup: Setup, timings: Sequence[RowTiming]) -> None:
        """Write the timings of a setup, whole or not at all. Raises OSError."""
        rows = [list(astuple(timing)) for timing in timings]
        held = {"format": _FORMAT, "setup": asdict(setup), "sum": _sum(rows), "timings": rows}
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = self._directory / setup.name
        made = target.with_name(f".{os.getpid()}.{target.name}")
        try:
            made.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
            made.replace(target)
        finally:
            made.unlink(missing_ok=True)


def _sum(timings: Any) -> str:
    return hashlib.sha256(json.dumps(timings).encode()).hexdigest()
