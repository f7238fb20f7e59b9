"""The header of a *.safetensors file, checked before the library maps the file: no count or length is trusted."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ramet.errors import CheckpointError
from ramet.foreign import Fields, check_regular, is_whole, json_object
from ramet.quoting import shown

_MOST = 1 << 25  # bytes; a file with a hundred thousand tensors has a third of it
_LENGTH = 8  # bytes of the header's length, at the file's start
_MOST_NAME = 512  # letters
_BITS = {  # of a number of each kind
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
}  # fmt: skip


def check_header(path: Path) -> None:
    """Raise CheckpointError, which names the tensor and the field, for a malformed header, or where tensors do not lie
    in the file. The library checks whether they overlap."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            n_bytes = int.from_bytes(file.read(_LENGTH), "little")
            left = path.stat().st_size - _LENGTH - n_bytes
            if n_bytes > _MOST or left < 0:
                reason = f"its header takes {n_bytes} bytes, more than " + ("the file has" if left < 0 else f"{_MOST}")
                raise CheckpointError(f"{path} is damaged or cut short ({reason}); download it again")
            text = file.read(n_bytes)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}; download it again") from error
    header = json_object(text, f"{path}: the header")
    for name, entry in header.items():
        if name != "__metadata__":
            _check_entry(name, entry, left, str(path))


def _check_entry(name: str, entry: Any, n_data: int, where: str) -> None:
    if not 0 < len(name) <= _MOST_NAME:
        raise CheckpointError(f"{where}: {shown(name)} is no tensor's name: from 1 to {_MOST_NAME} letters are read")
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where}: {name} is {shown(entry)}, no tensor's entry; download it again")
    fields = Fields(entry, f"{where}: {name}")
    kind, shape, offsets = fields.text("dtype"), fields.get("shape"), fields.get("data_offsets")
    if kind is None or kind not in _BITS:
        raise fields.wrong("dtype", f"one of {', '.join(_BITS)}")
    if not isinstance(shape, list) or not all(is_whole(size) and size > 0 for size in shape):
        raise fields.wrong("shape", "a list of whole numbers above 0")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(is_whole, offsets)):
        raise fields.wrong("data_offsets", "two whole numbers")
    begin, end = offsets
    if not 0 <= begin <= end <= n_data:
        reason = f"{name}: data_offsets are {shown(offsets)}, and the file has {n_data} bytes of data"
        raise CheckpointError(f"{where} is damaged or cut short ({reason}); download it again")
    if math.prod(shape) * _BITS[kind] != 8 * (end - begin):
        raise fields.wrong("data_offsets", f"{math.prod(shape) * _BITS[kind] // 8} bytes apart for its shape and dtype")
