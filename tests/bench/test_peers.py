"""Peers in this process: the same ids to both, answers compared, and what the rows tell."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from fakes import flide as fake_flide
from fakes.cuda import Card
from fixtures import tiny

from ramet.bench.core.document import nobody
from ramet.bench.core.floor import attention_flop
from ramet.bench.core.memory import DeviceMemory
from ramet.bench.core.products import Product
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import Effort, JsonObject, Row
from ramet.bench.core.shapes import DecisionShape, Prompt, Trial
from ramet.bench.core.timing import on_device
from ramet.bench.decisions import run as decisions
from ramet.bench.decisions.in_process import SHAPES, Own, compare
from ramet.bench.peers import flide as flide_peer
from ramet.bench.peers.peer import Contestant, Prompts
from ramet.cli import main
from ramet.engine import Engine
from ramet.ops.linear.reference import pack
from ramet.round import Capacity, Round, Stream
from ramet.tree import FloatArray

CPU = torch.device("cpu")
EFFORT = Effort(repeats=2)


def _decisions(*words: str) -> Result:
    return CliRunner().invoke(main, ["bench", "decisions", "--repeats", "2", "--threads", "1", *words])


@pytest.fixture
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor multiplies: the fake answers in float32."""
    monkeypatch.setattr("ramet.engine.settings.has_bfloat16_units", lambda: False)


def test_named_shapes_are_those_of_the_names() -> None:
    trials = decisions.token_trials(None, list(decisions.NAMED))
    assert len(trials) == 8
    assert decisions.token_trials("race4x16, 20x2x3@2", SHAPES) == [
        Trial(DecisionShape(400, 4, 60), 16), Trial(DecisionShape(20, 2, 3), 2),
    ]  # fmt: skip


def test_several_requests_are_one_round_and_one_batch() -> None:
    report = decisions.Comparison(str(tiny.qwen3()), "20x3x4@3", EFFORT, 1, nobody()).run("transformers")
    (row,) = report.as_json()["rows"]  # type: ignore[misc]
    found: dict[str, Any] = dict(row)  # type: ignore[arg-type]
    assert (found["shape"], found["n_stream"], found["rounds"]) == ("20x3x4@3", 3 * 32, 1)
    assert set(found["difference"]) == {"round", "pass", "batch", "loop"}
    comparison = decisions.Comparison(str(tiny.qwen3()), "20x3x4", EFFORT, 1, nobody())
    alone = comparison.run("transformers").rows[0].notes
    for part in ("floor", "attention"):
        assert found[f"{part}_gflop"] == pytest.approx(3 * alone[f"{part}_gflop"])  # type: ignore[operator]


def test_beside_flide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, float32: None) -> None:
    fake_flide.install(monkeypatch)
    out = tmp_path / "flide.json"
    done = _decisions(
        "--peer", "flide", "--model", str(tiny.qwen3_5()), "--shapes", "20x3x4,40x2x9@6", "--json", str(out)
    )
    assert done.exit_code == 0, done.output
    read = json.loads(out.read_text())
    assert read["peer"] == "flide 0.1.4"
    assert set(read["settings"]["start_s"]) == {"ours", "peer"}
    assert read["settings"]["memory"] == {}  # of a GPU
    graph, packed = read["rows"]
    assert (graph["flide_paths"], packed["flide_paths"]) == (["graph"], ["packed"])
    assert set(graph["ms"]) == {"ours", "round", "pass", "floor", "flide", "flide replay"}
    assert packed["replay_over_pass"] is None
    assert graph["difference"]["flide"] < 1e-4
    assert packed["rounds"] == 1
    assert graph["flide_over_ours"] == graph["ms"]["flide"]["median"] / graph["ms"]["ours"]["median"]
    graphs = fake_flide.Engine.loaded.graphs
    assert graphs.staged == [(1, 32)] * graphs.n_replays
    assert "20x3x4" in done.output


def test_flide_that_answers_otherwise_gets_no_figures(monkeypatch: pytest.MonkeyPatch, float32: None) -> None:
    fake_flide.install(monkeypatch)
    monkeypatch.setattr(fake_flide.Engine, "shift", 1.0)
    done = _decisions("--peer", "flide", "--model", str(tiny.qwen3_5()), "--shapes", "20x3x4")
    assert done.exit_code == 1
    assert "no figures: flide answers otherwise" in done.output


def test_flide_that_is_absent_or_does_not_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    done = _decisions("--peer", "flide", "--model", str(tmp_path))
    assert done.exit_code == 1
    assert "pip install flide" in done.output
    fake_flide.install(monkeypatch)
    with pytest.raises(flide_peer.RametError, match=r"does not start: ValueError: .*/none is no directory"):
        flide_peer.FlidePeer(tmp_path / "none")


def test_flide_wants_a_directory() -> None:
    for peer in ("flide", "flide-server"):
        done = _decisions("--peer", peer, "--model", "smollm2")
        assert done.exit_code == 2
        assert "directory" in done.output


def test_flides_server_is_told_what_ours_is(tmp_path: Path) -> None:
    server = flide_peer.server(tmp_path / "model", tmp_path / "cache")
    assert server._env["TRITON_CACHE_DIR"] == str(tmp_path / "cache")
    assert server._command[server._command.index("--model") + 1] == str(tmp_path / "model")
    assert "{port}" in server._command


def _product(n_rows: int, n_in: int, n_out: int) -> Product:
    return Product.linear(lambda x: x, torch.zeros(n_rows, n_in, dtype=torch.bfloat16), n_out)  # type: ignore[arg-type]


def test_the_linear_limit_counts_every_row_or_every_weight() -> None:
    found = [_product(10, 4, 8), _product(2, 8, 4)]  # of the second, two rows alone are read
    assert DeviceRates(flop_per_s=1e3, bytes_per_s=1e9).linear_ms(found, 10) == 2 * 10 * 64
    assert DeviceRates(flop_per_s=1e9, bytes_per_s=1e3).linear_ms(found, 10) == 2 * 64


class _Nobody:
    """A peer without a contestant."""

    name, ratios = "nobody", (("pass", "floor", "pass_over_floor"),)

    def contestants(self, prompts: Prompts, columns: Sequence[int]) -> dict[str, Contestant]:
        return {}

    def notes(self) -> JsonObject:
        return {}


def test_limits_are_those_of_all_requests() -> None:
    rates = DeviceRates(flop_per_s=1e9, bytes_per_s=1e15)
    with Engine.load(tiny.llama(), dtype="float32", threads=1) as engine:
        trial = Trial(DecisionShape(20, 3, 4), 2)
        row = compare(Own(engine, rates), _Nobody(), trial, EFFORT, DeviceMemory(), lambda _: None)
        assert row.notes["attention_limit_ms"] == pytest.approx(2 * attention_flop(engine.shape, trial.shape) / 1e6)
        limits = float(row.notes["linear_limit_ms"]) + float(row.notes["attention_limit_ms"])  # type: ignore[arg-type]
        assert row.notes["pass_over_limits"] == pytest.approx(row.median("pass") / limits)  # type: ignore[operator]
        # Rows of the last layer that nobody reads are in the limit, and not in the floor.
        assert row.notes["linear_limit_ms"] > row.notes["floor_gflop"] * 1e3  # type: ignore[operator]


def test_a_recorded_pass_is_replayed_and_not_uploaded_again() -> None:
    with Engine.load(tiny.llama(), dtype="float32", threads=1) as engine:
        prompt, model = Prompt.draw(DecisionShape(20, 3, 4), random.Random(0), engine.shape.vocab_size), engine.model
        replays: list[None] = []
        outs: list[torch.Tensor] = []

        def launch(packed: Round) -> tuple[torch.Tensor, Stream]:
            stream = packed.on(CPU)
            outs.append(model.hidden(stream, None))
            return outs[-1], stream

        graph = SimpleNamespace(replay=lambda: replays.append(None))

        def recording(hidden: torch.Tensor) -> tuple[Capacity, Any]:
            assert hidden is outs[-1]
            return Capacity(64, 8, 2), graph

        engine.runner.graphs = SimpleNamespace(launch=launch, recording=recording)  # type: ignore[assignment]
        own = Own(engine)
        run = own.contestants([prompt], [1, 2])["pass"]([prompt])
        answers = [run()[1], run()[1]]
        assert own.notes(Trial(DecisionShape(20, 3, 4)), Row("20x3x4"))["pass_rows"] == 64
        assert (len(outs), len(replays)) == (1, 2)
        assert np.array_equal(answers[0], own.contestants([prompt], [1, 2])["ours"]([prompt])()[1])  # type: ignore[arg-type]
        assert np.array_equal(answers[0], answers[1])  # type: ignore[arg-type]


def test_rates_are_measured() -> None:
    rates = DeviceRates.measure(CPU, torch.float32, pack, size=64, n_bytes=1 << 16)
    assert rates.flop_per_s > 0
    assert rates.bytes_per_s > 0
    assert rates.flop_ms(0) == 0


def test_what_is_fetched_is_the_answer_of_the_call() -> None:
    found: list[int] = []
    run = on_device(lambda: found.append(1), CPU, lambda: torch.tensor(found).float().numpy())
    assert [run()[1].tolist(), run()[1].tolist()] == [[1.0], [1.0, 1.0]]  # type: ignore[union-attr]


def test_a_gpu_is_timed_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()
    card.install(monkeypatch)

    def fetch() -> FloatArray:
        card.work(ms=100.0)
        return np.zeros(1, np.float32)

    ms, answer = on_device(lambda: card.work(ms=2.5), torch.device("cuda"), fetch)()
    assert ms == 2.5
    assert answer is not None


def test_memory_of_two_on_one_gpu_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    card, memory = Card(), DeviceMemory()
    card.install(monkeypatch)
    with memory.of("ours", loading=True):
        card.work(keeps=100, touches=50)
    with memory.of("peer", loading=True):
        card.work(keeps=300, touches=20)
    with memory.of("ours"):
        card.work(touches=40)
    with memory.of("peer"):
        card.work(touches=500)
    assert memory.used == {"ours": {"at_rest": 100, "peak": 150}, "peer": {"at_rest": 300, "peak": 800}}


def test_no_memory_is_counted_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    memory = DeviceMemory()
    with memory.of("ours", loading=True):
        pass
    assert memory.used == {}
