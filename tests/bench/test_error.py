"""The bench of errors: what it compares, and what it says of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fixtures import tiny

from ramet.bench.core.document import nobody
from ramet.bench.core.random_weights import RandomWeights
from ramet.bench.error import run as error
from ramet.engine.settings import EngineSettings
from ramet.families.weight import Weight


def _settings(dtype: str) -> EngineSettings:
    return EngineSettings(device="cpu", dtype=dtype).resolved()


def test_float32_is_its_own_measure(tmp_path: Path) -> None:
    found = error.of_checkpoint(str(tiny.llama()), _settings("float32"), 9, 0, nobody())
    assert found.errors()["ours"].shape == (9,)
    assert found.summaries()["ours"]["largest"] < 1e-6
    found.write(tmp_path / "f.json")
    read = json.loads((tmp_path / "f.json").read_text())
    assert len(read["total_variation"]["ours"]) == len(read["float32"]) == 9


def test_what_bfloat16_rounds_is_seen() -> None:
    found = error.of_checkpoint(str(tiny.llama()), _settings("bfloat16"), 12, 0, nobody())
    assert 1e-5 < found.summaries()["ours"]["mean"] < 0.05


def test_slots_of_canvases_are_questions() -> None:
    found = error.of_shape("tiny", _settings("bfloat16"), 10, 0, nobody())
    assert found.errors()["ours"].shape == (10,)
    assert 0 < found.summaries()["ours"]["mean"] < 0.2


def test_a_summary() -> None:
    found = error.ErrorReport("m", {}, {}, None)
    assert found.summaries() == {}
    ours, exact = ([[0.5, 0.5, 0, 0], second] for second in ([0.2, 0.8, 0, 0], [0.6, 0.4, 0, 0]))
    found.probabilities = {"ours": np.array(ours), "float32": np.array(exact)}
    told = found.summaries()["ours"]
    assert (told["mean"], told["largest"], told["flips"]) == (pytest.approx(0.2), pytest.approx(0.4), 1)


def test_random_weights_in_float32_may_be_those_of_bfloat16() -> None:
    plan = {"a": Weight(("a",), (64, 64)), "q_norm": Weight(("q_norm",), (64,))}
    narrow, wide = (
        RandomWeights(plan, dtype, torch.device("cpu"), rounded=torch.bfloat16)
        for dtype in (torch.bfloat16, torch.float32)
    )
    for name in plan:
        assert torch.equal(narrow[name].float(), wide[name])


def test_the_command_prints_a_line_a_side_and_refuses_a_peer_of_canvases() -> None:
    from ramet.cli import main

    arguments = ["bench", "error", "--device", "cpu", "--questions", "4"]
    result = CliRunner().invoke(main, [*arguments, "--model", str(tiny.llama()), "--dtype", "bfloat16"])
    assert result.exit_code == 0, result.output
    assert "ours" in result.output
    refused = CliRunner().invoke(main, [*arguments, "--shape", "tiny", "--peer", "flide"])
    assert refused.exit_code == 2
    assert "--model alone" in refused.output
