"""Fingerprint: which model this is, from every byte of its files; and of weights that have none, of every number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from ramet.weights.digest import Hashing

N_DIGITS = 32


class Fingerprint:
    """Begun, so that files are hashed while they are loaded; a context manager, which ends that."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._names = [file.name for file in files] if len(files) > 1 else [""]  # a file by itself may have any name
        self._hashing = Hashing(files)

    def result(self) -> str:
        """32 hexadecimal digits, equal for equal files of equal names alone. Waits. Raises CheckpointError."""
        named = sorted(zip(self._names, self._hashing.results(), strict=True))
        return hashlib.sha256(repr(named).encode()).hexdigest()[:N_DIGITS]

    def __enter__(self) -> Self:
        self._hashing.__enter__()
        return self

    def __exit__(self, *raised: object) -> None:
        self._hashing.__exit__(*raised)
