"""An entry's file: the same bits, or Damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ramet.cache.entry import Damaged, Entry, n_bytes, owned, read_entry, write_entry


def written(path: Path, entry: Entry, label: str = "label") -> bytes:
    write_entry(path / "entry", entry, label)
    return (path / "entry").read_bytes()


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def equal(a: Entry, b: Entry) -> bool:
    return a.keys() == b.keys() and all(
        (a[n].dtype, a[n].shape, bits(a[n])) == (b[n].dtype, b[n].shape, bits(b[n])) for n in a
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.uint8])
def test_any_bits_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    raw = torch.randint(0, 256, (6, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    raw[0] = 255  # NaNs with a payload
    entry = {"a": raw.view(dtype), "scalar": raw.view(dtype)[1, 0].clone(), "none": torch.empty(0, 3, dtype=dtype)}
    assert equal(read_entry(written(tmp_path, entry), "label"), entry)


def test_an_entry_without_tensors(tmp_path: Path) -> None:
    assert read_entry(written(tmp_path, {}), "label") == {}


def test_tensors_made_in_inference_mode(tmp_path: Path) -> None:
    with torch.inference_mode():
        made = owned({"a": torch.arange(6.0), "b": torch.arange(12.0)[::2]})
    assert equal(read_entry(written(tmp_path, made), "label"), made)


def test_owned_copies_views_alone() -> None:
    base = torch.arange(100.0)
    made = owned({"whole": base, "part": base[:10], "transposed": base.view(10, 10).T})
    assert made["whole"] is base
    for name in ("part", "transposed"):
        assert made[name].is_contiguous()
        assert made[name].untyped_storage().nbytes() == made[name].nbytes
    assert n_bytes(made) == 400 + 40 + 400
    base += 1
    assert made["part"].tolist() == list(range(10))


def test_another_label_is_damage(tmp_path: Path) -> None:
    with pytest.raises(Damaged, match="checksum"):
        read_entry(written(tmp_path, {"a": torch.ones(3)}), "another")


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    data = written(tmp_path, {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)})
    for at in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(Damaged):
            read_entry(bytes(flipped), "label")


def test_every_shorter_file_is_noticed(tmp_path: Path) -> None:
    data = written(tmp_path, {"a": torch.arange(6.0).view(2, 3)})
    for n in range(len(data)):
        with pytest.raises(Damaged):
            read_entry(data[:n], "label")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"BF16"', b'"F16" '),
        (b"[2,3]", b"[3,2]"),
        (b"[2,3]", b"[6]  "),
        (b'"keys"', b'"kex" '),
        (b"__metadata__", b"__metadatb__"),
        (b'"checksum"', b'"checksun"'),
    ],
)
def test_a_header_that_says_something_else_is_damage(tmp_path: Path, old: bytes, new: bytes) -> None:
    data = written(tmp_path, {"keys": torch.ones(2, 3, dtype=torch.bfloat16)})
    assert old in data
    with pytest.raises(Damaged):
        read_entry(data.replace(old, new), "label")


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 8, b"\xff" * 200, b"\x02" + b"\0" * 7 + b"[]", b"\x04" + b"\0" * 7 + b"null"]
)
def test_what_is_no_safetensors_file_is_damage(data: bytes) -> None:
    with pytest.raises(Damaged, match="unreadable"):
        read_entry(data, "label")
