"""The part of a GGUF file before the tensors' data, read without trust in the file.

Counts and lengths are compared with the bytes that are left before they are used.
"""

from __future__ import annotations

import itertools
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from ramet.errors import CheckpointError
from ramet.quoting import shown

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALARS = {  # of gguf.GGUFValueType
    gguf.GGUFValueType.UINT8: "B",
    gguf.GGUFValueType.INT8: "b",
    gguf.GGUFValueType.UINT16: "H",
    gguf.GGUFValueType.INT16: "h",
    gguf.GGUFValueType.UINT32: "I",
    gguf.GGUFValueType.INT32: "i",
    gguf.GGUFValueType.UINT64: "Q",
    gguf.GGUFValueType.INT64: "q",
    gguf.GGUFValueType.FLOAT32: "f",
    gguf.GGUFValueType.FLOAT64: "d",
    gguf.GGUFValueType.BOOL: "?",
}
_LENGTH = struct.Struct("<Q")  # of a text; there are hundreds of thousands
_STRING, _ARRAY = gguf.GGUFValueType.STRING, gguf.GGUFValueType.ARRAY
_ALIGNMENT = "general.alignment"
_MOST_DIMENSIONS = 4  # ggml's
_MOST_ENTRIES = 1 << 22  # of an array: vocabularies have up to some 300 thousand, and twice as many merges
_MOST_NESTED = 2  # arrays inside each other
_MOST_NAME = 512  # letters of a key's or a tensor's name


@dataclass(frozen=True)
class Entry:
    """A tensor's entry: its shape in torch's order, and the offset and the size of its data in the file, in bytes."""

    kind: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


class Header:
    """Reads the header in the bytes of the file at `path`."""

    def __init__(self, data: memoryview, path: Path) -> None:
        self._view = data
        self._path = path
        self._at = 0
        self._field = "the header"  # what is being read, for errors

    def read(self) -> tuple[dict[str, Any], dict[str, Entry]]:
        """The keys and values, and the tensors by name. Raises CheckpointError, which names what is wrong."""
        if bytes(self._view[:4]) != _MAGIC:
            raise CheckpointError(f"{self._path}: not a GGUF file")
        self._at = 4
        version, n_tensors, n_keys = self._unpack("IQQ")
        if version not in _VERSIONS:
            raise CheckpointError(f"{self._path}: GGUF version {version}; read are {_VERSIONS}, little-endian")
        metadata: dict[str, Any] = {}
        for i in range(n_keys):
            key = self._name(f"the name of key {i} of {n_keys}", metadata)
            self._field = key
            metadata[key] = self._value(*self._unpack("I"))
        found: dict[str, tuple[int, tuple[int, ...], int]] = {}
        for i in range(n_tensors):
            name = self._name(f"the name of tensor {i} of {n_tensors}", found)
            self._field = name
            found[name] = self._tensor()
        alignment = self._alignment(metadata)
        start = -(-self._at // alignment) * alignment
        entries = {name: self._entry(name, *found_at, start, alignment) for name, found_at in found.items()}
        self._check_apart(entries)
        return metadata, entries

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: damaged or cut short: {self._field} {what}; download it again")

    def _take(self, n_bytes: int) -> memoryview:
        """The next n_bytes bytes."""
        left = len(self._view) - self._at
        if n_bytes > left:
            raise self._wrong(f"takes {n_bytes} bytes, of which the file has {left}")
        self._at += n_bytes
        return self._view[self._at - n_bytes : self._at]

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{layout}", self._take(struct.calcsize(f"<{layout}")))

    def _string(self) -> str:
        try:
            return str(self._take(*_LENGTH.unpack(self._take(_LENGTH.size))), "utf-8")
        except UnicodeDecodeError as error:
            raise self._wrong(f"is not UTF-8 ({error})") from error

    def _name(self, field: str, known: dict[str, Any]) -> str:
        """The name of a key or a tensor, which must not be one of `known`."""
        self._field = field
        name = self._string()
        if not 0 < len(name) <= _MOST_NAME:
            raise self._wrong(f"has {len(name)} letters, and from 1 to {_MOST_NAME} are read")
        if name in known:
            raise self._wrong(f"is {shown(name)}, which is there twice")
        return name

    def _value(self, kind: int, nested: int = 0) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(nested + 1)
        return self._unpack(self._scalar(kind))[0]

    def _array(self, nested: int) -> list[Any]:
        if nested > _MOST_NESTED:
            raise self._wrong(f"has arrays inside each other more than {_MOST_NESTED} deep")
        kind, size = self._unpack("IQ")
        if size > _MOST_ENTRIES:
            raise self._wrong(f"is an array of {size} entries, and {_MOST_ENTRIES} at most are read")
        if kind in (_STRING, _ARRAY):
            return [self._string() if kind == _STRING else self._array(nested + 1) for _ in range(size)]
        return list(self._unpack(f"{size}{self._scalar(kind)}"))

    def _scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._wrong(f"has a value of type {kind}, and types from 0 to {max(_SCALARS)} are known")
        return _SCALARS[gguf.GGUFValueType(kind)]

    def _tensor(self) -> tuple[int, tuple[int, ...], int]:
        """A tensor's type, its shape, and where its data begin, counted from the first tensor's."""
        (n_dimensions,) = self._unpack("I")
        if not 0 < n_dimensions <= _MOST_DIMENSIONS:
            raise self._wrong(f"has {n_dimensions} dimensions, and tensors have from 1 to {_MOST_DIMENSIONS}")
        shape = self._unpack(f"{n_dimensions}Q")[::-1]  # GGUF counts the fastest dimension first
        return *self._unpack("I"), shape, *self._unpack("Q")

    def _alignment(self, metadata: dict[str, Any]) -> int:
        found = metadata.get(_ALIGNMENT, gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(found, int) or found < 1 or found & (found - 1):
            self._field = _ALIGNMENT
            raise self._wrong(f"is {shown(found)}, and must be a power of two")
        return found

    def _entry(self, name: str, kind: int, shape: tuple[int, ...], at: int, start: int, alignment: int) -> Entry:
        self._field = name
        try:
            stored = gguf.GGMLQuantizationType(kind)
        except ValueError:
            raise self._wrong(f"is stored as type {kind}, which the gguf package does not know") from None
        block, size = gguf.GGML_QUANT_SIZES[stored]
        if 0 in shape or shape[-1] % block:
            raise self._wrong(f"has the shape {shape}, and rows of {stored.name} are multiples of {block} numbers")
        if at % alignment:
            raise self._wrong(f"begins at {at}, which is no multiple of {_ALIGNMENT} {alignment}")
        n_bytes = math.prod(shape) // block * size
        if start + at + n_bytes > len(self._view):
            raise self._wrong("reaches behind the end of the file")
        return Entry(stored, shape, start + at, n_bytes)

    def _check_apart(self, entries: dict[str, Entry]) -> None:
        """Refuse tensors that share data: no converter writes such files."""
        placed = sorted(entries.items(), key=lambda item: item[1].offset)
        for (before, last), (name, entry) in itertools.pairwise(placed):
            if entry.offset < last.offset + last.n_bytes:
                self._field = name
                raise self._wrong(f"begins before {before} ends")
