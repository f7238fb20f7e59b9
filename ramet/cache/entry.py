"""An entry of the lower cache tiers: a few named CPU tensors, and its file with a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save_file

Entry = dict[str, torch.Tensor]


class Damaged(Exception):
    """A file does not hold its entry; the message says why. Never leaves ramet.cache."""


def n_bytes(entry: Mapping[str, torch.Tensor]) -> int:
    """Bytes of an entry's tensors."""
    return sum(tensor.nbytes for tensor in entry.values())


def owned(entry: Mapping[str, torch.Tensor]) -> Entry:
    """The entry with each tensor contiguous in its own memory: a view would keep the whole tensor that it views."""
    return {name: _owned(tensor) for name, tensor in entry.items()}


def write_entry(file: Path, entry: Entry, label: str) -> None:
    """Write an entry as safetensors. The checksum covers `label`, too. Raises OSError or SafetensorError."""
    save_file(entry, file, metadata={"checksum": _checksum(entry, label)})


def read_entry(data: bytes, label: str) -> Entry:
    """The entry in a file's bytes, bit for bit as written under this label. Raises Damaged."""
    try:
        claimed = _metadata(data)["checksum"]
        entry = load(data)
        actual = _checksum(entry, label)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise Damaged(f"unreadable, {type(error).__name__}: {error}") from error
    if claimed != actual:
        raise Damaged("its checksum is wrong")
    return entry


def _owned(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.device.type == "cpu"
    alone = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if alone else tensor.clone(memory_format=torch.contiguous_format)


def _metadata(data: bytes) -> dict[str, str]:
    n_header = int.from_bytes(data[:8], "little")
    found: dict[str, str] = json.loads(data[8 : 8 + n_header])["__metadata__"]
    return found


def _checksum(entry: Entry, label: str) -> str:
    """SHA-256 (a few GB/s where the processor has it) over the label, names, dtypes, shapes and bytes."""
    names = sorted(entry)
    kinds = [(name, str(entry[name].dtype), list(entry[name].shape)) for name in names]
    digest = hashlib.sha256(json.dumps([label, kinds]).encode())
    for name in names:
        digest.update(entry[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
