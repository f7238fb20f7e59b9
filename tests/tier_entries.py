"""Keys and entries for the tests of the lower cache tiers: what a key's entry holds follows from its number."""

from __future__ import annotations

from pathlib import Path

import torch

from ramet.cache.tiers import Tiers

N_BYTES = 1200  # of one entry


def key(number: int) -> bytes:
    return number.to_bytes(20, "big")


def entry(number: int) -> dict[str, torch.Tensor]:
    """Entry of N_BYTES bytes: float32 and bfloat16."""
    draw = torch.Generator().manual_seed(number)
    keys = torch.randn(2, 100, generator=draw)
    return {"keys": keys, "values": torch.randn(200, generator=draw).bfloat16()}


def same(found: dict[str, torch.Tensor] | None, number: int) -> bool:
    """Whether an entry is this number's, bit for bit."""
    wanted = entry(number)
    return found is not None and found.keys() == wanted.keys() and all(torch.equal(found[n], wanted[n]) for n in wanted)


def put(tiers: Tiers, *numbers: int) -> None:
    """One entry after the other, each written or given up."""
    for number in numbers:
        tiers.put(key(number), entry(number))
        tiers.flush()


def file_of(states: Path, number: int) -> Path:
    """An entry's file in a directory of states."""
    (found,) = states.rglob(key(number).hex() + ".safetensors")
    return found
