"""Foreign files: what strangers wrote, read up to a limit, and its fields by kind, typed and loud."""

from __future__ import annotations

import json
import math
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ramet.errors import CheckpointError
from ramet.quoting import cut, repeated, shown

MOST_JSON = 1 << 24  # bytes; published configurations take some kilobytes, and those of tokenizers a few megabytes
MOST_INT32 = 2**31 - 1  # ids, positions and rows are counted in 32 bits
_MOST_INT64 = 2**63 - 1
_MOST_DEPTH = 16  # of lists and objects inside each other


class Fields(Mapping[str, Any]):
    """What a file says, by its keys. Each reader gives a value of one kind, or None where the key is missing or null,
    and raises CheckpointError, which names the file and the key, for any other value. `where` names the file."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def wrong(self, key: str, due: str) -> CheckpointError:
        """The error for a value that is not what it must be."""
        return CheckpointError(
            f"{self.where}: {key} is {shown(self.get(key))}; it must be {due}: download the file again"
        )

    def text(self, key: str, most: int = 1 << 16) -> str | None:
        """Of `most` letters at most."""
        value = self.get(key)
        if value is not None and (not isinstance(value, str) or len(value) > most):
            raise self.wrong(key, f"a text of at most {most} letters")
        return value

    def flag(self, key: str) -> bool | None:
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def whole(self, key: str, *, least: int = 0, most: int = MOST_INT32) -> int | None:
        """A whole number from `least` to `most`."""
        value = self.get(key)
        if value is not None and not (is_whole(value) and least <= value <= most):
            raise self.wrong(key, f"a whole number from {least} to {most}")
        return value

    def real(self, key: str, *, zero: bool = False) -> float | None:
        """A finite number above 0, or from 0 on where that may be."""
        value = self.get(key)
        if value is not None and not (is_real(value) and (value > 0 or (zero and value == 0))):
            raise self.wrong(key, "a finite number from 0 on" if zero else "a finite number above 0")
        return value

    def ids(self, key: str, most: int = MOST_INT32) -> list[int]:
        """One id or several, from 0 to `most`; none where there is no such key."""
        value = self.get(key)
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if not all(is_whole(i) and 0 <= i <= most for i in listed):
            raise self.wrong(key, f"an id from 0 to {most}, or a list of such ids")
        return listed

    def texts(self, key: str) -> list[str]:
        return self._listed(key, str, "texts")

    def wholes(self, key: str) -> list[int]:
        return self._listed(key, int, "whole numbers")

    def reals(self, key: str) -> list[float]:
        found = self._listed(key, float, "numbers")
        if any(map(math.isnan, found)):
            raise self.wrong(key, "a list of numbers")
        return found

    def inner(self, key: str) -> Fields:
        """An object; an empty one where there is no such key."""
        value = self.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.wrong(key, "an object")
        return Fields(value or {}, f"{self.where}: {key}")

    def _listed(self, key: str, kind: type, what: str) -> list[Any]:
        value = self.get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            issubclass(each, kind) and each is not bool for each in set(map(type, value))
        ):
            raise self.wrong(key, f"a list of {what}")
        return value


def is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_real(value: object) -> bool:
    """Whether it is a number that floats hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _MOST_INT64 if isinstance(value, int) else math.isfinite(value)


def check_regular(path: Path) -> None:
    """Raise CheckpointError for what nobody can map or hash: directories, pipes, links to nothing."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing; download the checkpoint again, or finish the download") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; download it again") from error
    if not stat.S_ISREG(mode):
        raise CheckpointError(f"{path} is no regular file; download it again")


def read_bytes(path: Path, most: int) -> bytes:
    """All bytes of a file. Raises FileNotFoundError where there is nothing by that name, and CheckpointError for what
    is no regular file (nobody waits for a pipe), for more than `most` bytes, and where it cannot be read."""
    if path.is_symlink() and not path.exists():
        raise CheckpointError(f"{path} is a link to what is not there; download it again")
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # noqa: PTH123, from a descriptor
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise CheckpointError(f"{path} is no regular file; download it again")
            if os.fstat(file.fileno()).st_size <= most and len(data := file.read(most + 1)) <= most:
                return data
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; download it again") from error
    raise CheckpointError(f"{path} has more than {most} bytes, the most that is read of such a file")


def read_text(path: Path, most: int) -> str:
    """A whole text. Raises as `read_bytes`, and CheckpointError for what is not UTF-8."""
    try:
        return read_bytes(path, most).decode()
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 ({error}); download it again") from error


def read_json(path: Path, missing: str | None = None, most: int = MOST_JSON) -> dict[str, Any]:
    """A JSON object. A file that is not there gives {}, or raises CheckpointError with the text `missing`."""
    try:
        data = read_bytes(path, most)
    except FileNotFoundError:
        if missing is None:
            return {}
        raise CheckpointError(missing) from None
    return json_object(data, str(path))


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """The object that bytes spell. Raises CheckpointError for any other value, for keys that an object has twice, and
    for numbers that are infinite or none."""
    try:
        value = json.loads(
            data.decode(), parse_constant=_no_number, parse_float=_finite, object_pairs_hook=_unique
        )  # fmt: skip
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where} cannot be read as JSON ({error}); download it again") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{where} holds {type(value).__name__}, not an object")
    return value


def check_numbers(value: Mapping[str, Any] | list[Any], where: str, depth: int = 1) -> None:
    """Raise CheckpointError for whole numbers that no 64 bits hold, at any depth, and for values inside each other more
    deeply than any configuration has them."""
    if depth > _MOST_DEPTH:
        raise CheckpointError(f"{where} is nested more than {_MOST_DEPTH} deep; download it again")
    for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(inner, Mapping | list):
            check_numbers(inner, f"{where}: {cut(str(key))}", depth + 1)
        elif isinstance(inner, int) and abs(inner) > _MOST_INT64:
            raise CheckpointError(f"{where}: {cut(str(key))} is {shown(inner)}, which is too large; download it again")


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number")


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{cut(text)} is too large a number")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"{repeated(key for key, _ in pairs)} is there twice")
    return found
