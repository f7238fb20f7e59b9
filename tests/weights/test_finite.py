"""Weights that are no numbers: named at load, with how many there are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures import tiny
from fixtures.tiny_engine import MAKERS, tiny_engine
from safetensors.torch import load_file, save_file

from ramet.errors import CheckpointError
from ramet.weights.finite import check_finite
from ramet.weights.gguf_file import GgufFile
from tests.weights.test_checkpoint import copied

DOWN, NORM = "model.layers.1.mlp.down_proj.weight", "model.norm.weight"


def broken(source: Path, target: Path, name: str, *values: float) -> Path:
    directory = copied(source, target)
    weights = load_file(directory / "model.safetensors")
    weights[name].view(-1)[-len(values) :] = torch.tensor(values)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.parametrize(("name", "values"), [
    (NORM, [float("nan")]), (DOWN, [float("inf")]), (DOWN, [-float("inf"), 0.0, float("nan")]),
    ("model.embed_tokens.weight", [float("nan")] * 3),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_they_are_named(name: str, values: list[float], dtype: str, tmp_path: Path) -> None:
    directory, n = broken(tiny.llama(), tmp_path / "c", name, *values), int((~torch.tensor(values).isfinite()).sum())
    with pytest.raises(CheckpointError, match=rf": {n} of the \d+ numbers of {name} are not finite in {dtype}"):
        tiny_engine(source=directory, dtype=dtype)


@pytest.mark.parametrize("family", sorted(MAKERS))
def test_of_every_family(family: str, tmp_path: Path) -> None:
    directory = broken(MAKERS[family](), tmp_path / "c", NORM, float("nan"))
    with pytest.raises(CheckpointError, match=rf"1 of the 64 numbers of {NORM} are not finite"):
        tiny_engine(source=directory)


def test_what_is_too_large_for_the_type(tmp_path: Path) -> None:
    directory = broken(tiny.llama(), tmp_path / "c", DOWN, 3.4e38)
    tiny_engine(source=directory, dtype="float32").close()
    with pytest.raises(CheckpointError, match=rf"{DOWN} are not finite in bfloat16"):
        tiny_engine(source=directory, dtype="bfloat16")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("scale", [np.float16("nan"), np.float16("inf")])
def test_a_scale_of_a_quantised_block(kind: str, scale: np.float16, tmp_path: Path) -> None:
    """Which begins each block of both kinds."""
    path = Path(shutil.copy(tiny.gguf_of(tiny.llama(), kind), tmp_path / "broken.gguf"))
    at = GgufFile(path)._entries["blk.0.ffn_up.weight"].offset
    data = bytearray(path.read_bytes())
    data[at : at + 2] = scale.tobytes()
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"numbers of model\.layers\.0\.mlp\.up_proj\.weight are not finite"):
        tiny_engine(source=path)


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x * 1e30, lambda x: x * 0])
def test_finite_ones_pass(change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        check_finite(change(torch.randn(65, 3)).to(dtype), "x", "here")
