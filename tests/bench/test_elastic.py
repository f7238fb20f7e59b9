"""The bench of elastic decoding: whose judgement draws get, what is timed, and what is made of times."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from io import StringIO
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fakes import lmdeploy as fake_lmdeploy
from oracles import block_models
from oracles.sequences import Sequences
from rich.console import Console
from safetensors import safe_open
from transformers import AutoConfig

from ramet.bench.core.document import nobody
from ramet.bench.core.named_shapes import BLOCK_SHAPES, block_config_of, config_of, names_of
from ramet.bench.core.random_model import EvenRoute, RandomModel
from ramet.bench.core.rates import DeviceRates
from ramet.bench.elastic import cells as elastic_simulated
from ramet.bench.elastic import judge as curve_judge
from ramet.bench.elastic import quick as elastic_quick
from ramet.bench.elastic import run as elastic
from ramet.bench.elastic import side as elastic_measured
from ramet.bench.elastic import traces as elastic_trace
from ramet.bench.elastic.cells import Costs, cells, summary
from ramet.bench.elastic.commit_curves import DATASETS, Curve
from ramet.bench.elastic.judge import CurveJudge, JudgedReplies, SeenStep, StepClock, n_known
from ramet.bench.elastic.report import ElasticReport
from ramet.bench.elastic.side import Side
from ramet.bench.elastic.simulation import Simulation, costs_of
from ramet.bench.elastic.step_times import StepFloor, StepTimes, StepTiming
from ramet.bench.elastic.traces import Trace
from ramet.bench.peers import lmdeploy_driver, sdar_checkpoint
from ramet.bench.peers.lmdeploy import LMDeployPeer, python_with_lmdeploy
from ramet.denoise.draws import Draws
from ramet.denoise.noise import Noise
from ramet.denoise.running import Beginning, Chunks
from ramet.denoise.running_blocks import RunningBlocks
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest, RametError
from ramet.families import FAMILIES
from ramet.tree import FloatArray, IntArray

BLOCK, MASK = 32, 2047
SETTINGS = EngineSettings(device="cpu", dtype="float32", max_round_tokens=1024, threads=1).resolved()
RATES = DeviceRates(1e12, 1e11)


def begun(n_prompt: int) -> Beginning:
    start = n_prompt // BLOCK * BLOCK
    n = n_prompt - start
    return Beginning(
        start=start, tokens=np.zeros(n, np.int32), known=np.ones(n, np.bool_), n_prompt=n_prompt, emitted=n_prompt,
        end=1 << 20, stop_ids=frozenset(), unmasking=UnmaskPolicy(block=BLOCK), draws=Draws(0.0, 0, 1.0, Noise(1)),
    )  # fmt: skip


def unsure(chunks: Chunks) -> tuple[IntArray, FloatArray, FloatArray]:
    """Tokens, confidence and entropy."""
    n = len(chunks.reads)
    return np.zeros(n, np.int32), np.full(n, 0.1, np.float32), np.ones(n, np.float32)


@pytest.mark.parametrize("size", [2, 6, 32])
@pytest.mark.parametrize("curve", [Curve(0.5, 0.0), Curve(0.14, 0.16), Curve(0.0, 0.1)])
def test_live_replies_gain_what_simulated_ones_do(size: int, curve: Curve) -> None:
    live = RunningBlocks(BLOCK, MASK)
    judged = JudgedReplies(live, CurveJudge(curve, BLOCK, np.random.default_rng(0)))
    places = np.array([live.add(begun(n)) for n in range(64, 124)], np.int32)
    sequences = Sequences(curve, BLOCK, np.random.default_rng(1))
    sequences.add(np.full(60, 1 << 40))
    n_emitted = n_gained = 0
    for step in range(300):
        chunks = live.chunks(places, np.full(60, size, np.int32))
        taken = judged.take(chunks, *unsure(chunks))
        gained = sequences.chunks(size).gained.sum()
        if step >= 40:
            n_emitted, n_gained = n_emitted + int(taken.n_emitted.sum()), n_gained + int(gained)
    assert n_emitted == pytest.approx(n_gained, rel=0.05)


def test_a_run_ends_with_its_block_and_with_its_reply() -> None:
    live, judge = RunningBlocks(BLOCK, MASK), CurveJudge(Curve(0.0, 0.0), BLOCK, np.random.default_rng(0))
    place = live.add(begun(64))

    def step(size: int = 8) -> list[float]:
        chunks = live.chunks(np.array([place], np.int32), np.array([size], np.int32))
        sure: list[float] = judge(chunks, unsure(chunks)[1]).tolist()
        live.take(chunks, np.zeros(len(sure), np.int32), np.array(sure, np.float32), np.ones(len(sure), np.float32))
        return sure

    step()
    judge._runs[place] = True
    sure = [each for each in (step() for _ in range(7)) if each]
    assert sure == [[1.0] * len(each) for each in sure]
    assert set(step()) == {0.0}, "the next block"
    judge._runs[place] = True
    live.drop(place)
    place = live.add(begun(64))
    assert set(step()) == {0.0}, "another reply at its place"


def test_nothing_but_how_sure_draws_are_is_changed() -> None:
    live, judge = RunningBlocks(BLOCK, MASK), CurveJudge(Curve(0.5, 0.2), BLOCK, np.random.default_rng(0))
    places = np.array([live.add(begun(n)) for n in (64, 70)], np.int32)
    seen: list[tuple[IntArray, FloatArray, FloatArray]] = []
    take = live.take

    def noted(chunks: Chunks, *drawn: Any) -> Any:
        seen.append(cast(Any, drawn))
        return take(chunks, *drawn)

    live.take = noted  # type: ignore[method-assign]
    judged = JudgedReplies(live, judge)
    chunks = judged.chunks(places, np.array([32, 32], np.int32))
    tokens = np.arange(len(chunks.reads), dtype=np.int32)
    told = judged.take(chunks, tokens, *unsure(chunks)[1:])
    ((same, confidence, entropy),) = seen
    assert same is tokens
    assert set(confidence.tolist()) <= {0.0, 1.0}
    assert entropy.tolist() == (1 - confidence).tolist()
    assert n_known(chunks, confidence) >= int(told.n_emitted.sum()) >= 0


def test_the_clock_waits_for_all_and_stops_in_time() -> None:
    live, stops = RunningBlocks(BLOCK, MASK), list[int]()
    places = [live.add(begun(n)) for n in (64, 70, 80)]
    clock = StepClock(None, batch=3, n_steps=4, limit_s=1e9, enough=lambda: stops.append(1), n_warm=2)
    for n in (1, 2, 3, *[3] * 8):
        chunks = live.chunks(np.array(places[:n], np.int32), np.full(n, 8, np.int32))
        tokens, confidence, entropy = unsure(chunks)
        live.take(chunks, tokens, clock(chunks, confidence), entropy)
    assert len(clock.seen) == 8 - 2  # the third step completes the batch
    assert len(stops) == 1
    assert {each.replies for each in clock.seen} == {3}
    assert all(each.tokens == 3 for each in clock.seen if each.reads)


def test_a_batch_in_parts_counts_as_one_step() -> None:
    halves = [SeenStep(0.1 * i, 2, 16, 8, 3) for i in range(5)]
    timed = StepTiming.of("8", 4, halves)
    assert (timed.seconds, timed.rows, timed.reads, timed.tokens) == pytest.approx((0.2, 32, 16, 6))
    assert timed.tokens_s == pytest.approx(30)


def seconds(rows: Any, n_replies: int) -> Any:
    return np.maximum(5e-3, 5e-3 + 20e-6 * (np.asarray(rows, float) - 256)) + 1e-5 * n_replies


def points() -> list[StepTiming]:
    shapes = [(batch, size) for batch in (1, 4, 16, 64, 256) for size in (2, 4, 8, 16, 32)]
    return [StepTiming(str(c), b, float(seconds(b * c, b)), b * c, b * c / 2, b, b, [0.0]) for b, c in shapes]


def test_step_times_go_through_what_was_measured() -> None:
    times = StepTimes.of(points(), 100)
    for point in points():
        assert float(times(np.array(point.rows), point.batch)) == pytest.approx(point.seconds)
    between = float(times(np.array(400.0), 40))
    assert float(seconds(400, 16)) < between < 1.1 * float(seconds(400, 64))
    beyond = float(times(np.array(2000.0), 1))
    assert beyond == pytest.approx(float(seconds(2000, 1)), rel=0.15)
    assert float(times(np.array(1e4), 1000)) > float(times(np.array(1e4), 1)), "more replies than were measured"


@pytest.mark.parametrize("name", ["sdar-tiny", "llada2-tiny"])
def test_the_floor_counts_rows_weights_and_keys(name: str) -> None:
    model = RandomModel.of(name, SETTINGS)
    floor = StepFloor.of(model, RATES, (1, 4, 16))
    assert floor.flop[2] == pytest.approx(16 * floor.flop[0])
    n_in_all = model.weights.n_parameters - 2048 * 64  # but for the embedding
    if name == "sdar-tiny":
        assert floor.flop[0] + floor.head_flop == pytest.approx(2 * n_in_all, rel=0.01)
    assert floor.n_bytes[0] + floor.head_bytes <= 4 * n_in_all
    one, million, none = np.array(1.0), np.array(1e6), np.array(0.0)
    few, many = (float(floor.seconds(one, one, 100 * n)) for n in (1, 1000))
    assert many - few == pytest.approx(999 * 100 * floor.key_bytes / RATES.bytes_per_s)
    assert float(floor.seconds(million, none, 100)) < float(floor.seconds(million, million, 100))


def costs() -> Costs:
    return Costs(
        chunks=seconds, next=seconds, fit=seconds, n_context=1,
        floor=lambda rows, reads, n_keys: 0.8 * seconds(rows, n_keys), peer={32: 0.03},
    )  # fmt: skip


def test_cells_compare_auto_with_everybody() -> None:
    rows = cast(list[dict[str, Any]], list(cells(DATASETS[:1], (1, 32), costs(), workers=1, n_steps=90)))
    assert [(row["dataset"], row["batch"]) for row in rows] == [("ShareGPT", 1), ("ShareGPT", 32)]
    for row in rows:
        rates = row["tokens_s"]
        assert {"auto", "block", "next", "2", "32"} <= set(rates)
        assert row["commits"] == "simulated"
        assert row["auto_over_best_fixed"] > 0.95
        assert rates[str(row["best_fixed"])] == max(rates[str(size)] for size in elastic_simulated.SIZES)
        assert row["bound_tokens_s"] > rates["auto"]
    assert "peer_tokens_s" not in rows[0]
    assert rows[1]["auto_over_peer"] > 1
    found = cast(dict[str, Any], summary(cast(Any, rows)))
    assert found["auto_over_block"]["least"] == min(row["auto_over_block"] for row in rows)
    assert set(found["auto_over_peer"]["by_batch"]) == {"32"}


def slower(rows: Any, n_replies: int) -> Any:
    return 4 * seconds(rows, n_replies)


def test_fixed_sizes_are_worse_served_than_a_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_trace, "_LEAST", 40)
    monkeypatch.setattr(elastic_trace, "_LOWEST", 1.0)
    monkeypatch.setattr(elastic_trace, "_HIGHEST", 60.0)
    monkeypatch.setattr(elastic_trace, "_PARTS", (0.5, 1.0))
    slow = replace(costs(), chunks=slower, fit=slower)
    found = elastic_trace.capacities(DATASETS[0], slow, seconds=4, workers=1, modes=("auto", "block"))
    auto, block = cast(list[dict[str, Any]], found)
    assert auto["requests_s"] > 1.3 * block["requests_s"] > 0
    assert len(auto["rates"]) == len(auto["p90_ms"])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Little of everything."""
    monkeypatch.setattr(elastic.DeviceRates, "of", lambda decoder: RATES)
    monkeypatch.setattr(elastic, "_GRID_STEPS", 6)
    monkeypatch.setattr(elastic, "_LOAD_STEPS", 8)
    row = {"dataset": "x", "mode": "auto", "requests_s": 20.0, "rates": [1.0], "p90_ms": [1.0], "limit_ms": 50.0}
    monkeypatch.setattr(elastic_trace, "capacities", lambda *_, **__: [row, row | {"mode": "block"}])


SIMULATION = Simulation(datasets=DATASETS[5:6], n_steps=30)
WORK = elastic.ElasticWork(
    batches=(1, 3), loaded=DATASETS[5:6], loaded_batches=(3,), n_prompt=40, budget_s=2, traced=DATASETS[5], trace_s=0.5,
    simulation=SIMULATION,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_run(tmp_path: Path) -> None:
    """Of the engine: every mode at every batch, and what is made of it."""
    pytest.importorskip("matplotlib")
    from ramet.bench.elastic import plot as elastic_plot

    settings = replace(SETTINGS, latency_cache=str(tmp_path / "profiles"))
    found = elastic.run("sdar-tiny", settings, WORK, peer=False, python=None, watch=nobody())
    found.write(tmp_path / "found.json")
    told = json.loads((tmp_path / "found.json").read_text())
    modes = [(row["mode"], row["batch"]) for row in told["steps"]]
    assert sorted(modes) == sorted((m, b) for m in ("2", "4", "8", "16", "32", "block", "next") for b in (1, 3))
    by_mode = {(row["mode"], row["batch"]): row for row in told["steps"]}
    assert by_mode["block", 3]["rows"] == 96
    assert by_mode["2", 3]["rows"] <= 6
    assert by_mode["next", 3]["rows"] == by_mode["next", 3]["tokens"] == 3
    assert [row["mode"] for row in told["loads"]] == ["next", "auto", "8", "32", "block"]
    assert {row["hardware"] for name in ("steps", "whole", "loads", "cells", "traces") for row in told[name]} == {
        told["machine"]["cpu"]
    }
    assert [(row["batch"], row["rows"]) for row in told["whole"]] == [(1, 32), (3, 96)]
    assert list(dict.fromkeys(row["mode"] for row in told["traces"])) == ["next", "auto", "block", "4", "8"]
    assert all(row["served_s"] > 0 and row["p90_ms_simulated"] > 0 for row in told["traces"])
    assert len(told["cells"]) == 2
    again = ElasticReport.from_json(told)
    again.cells, again.summary, again.capacities = [], {}, []
    SIMULATION.run(again, nobody())
    assert again.as_json() == found.as_json(), "afterwards, from the file"
    elastic_plot.draw(found, tmp_path / "plots")
    names = {path.name for path in (tmp_path / "plots").iterdir()}
    assert names == {"p90.svg", "throughput.svg", "over_time.svg"}
    printed = Console(file=(out := StringIO()), width=140)
    printed.print(*found.tables())
    assert "simulated commits" in out.getvalue()


def test_there_is_nothing_to_simulate_before_steps_are_timed() -> None:
    found = ElasticReport("m", {"cpu": "p"}, {"n_prompt": 40}, rates={"flop": [1.0]})
    found.steps = [cast(Any, {"commits": "simulated", **asdict(each)}) for each in points()]
    with pytest.raises(InvalidRequest, match="nothing to simulate"):
        costs_of(found)  # whole blocks, and a token a step, are missing


def test_a_file_that_is_written_again_is_whole_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "found.json", ElasticReport("m", {"cpu": "p"}, {})
    found.write(path)
    before = path.read_text()

    def killed(self: Path, text: str) -> None:
        with self.open("w") as file:
            file.write(text[:5])
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        found.write(path)
    assert path.read_text() == before


@pytest.mark.parametrize(("name", "told"), [("llada2-tiny", True), ("sdar-tiny", False)])
def test_shapes_with_experts_are_told_to_be_even(name: str, told: bool) -> None:
    model = RandomModel.of(name, SETTINGS, even=True)
    assert ("routing" in model.decoder.ops.why) == told
    assert isinstance(model.decoder.ops.route_grouped, EvenRoute) == told


def test_a_trace_that_is_cut_off_tells_what_is_served() -> None:
    slow = replace(costs(), chunks=slower, fit=slower)
    served, rest = [], {"n_begun": 16, "max_running": 16, "until": 5.0}
    for rate in (60.0, 90.0):
        trace = elastic_trace.simulated(DATASETS[4], "8", slow, rate=rate, n_requests=600, **rest)
        assert trace.came.max() < 5
        assert 4.5 < np.nanmax(trace.last) == trace.ended[-1] <= 5, "no step that ends behind it"
        assert len(trace.sizes) == len(trace.batches) == len(trace.ended)
        assert trace.tokens_s() == trace.n_tokens.sum() / 5
        assert (trace.came[:16] == 0).all()
        figures = trace.figures(DATASETS[4])
        assert not figures["met"]
        served.append(figures["served_s"])
    assert served[0] == pytest.approx(served[1], rel=0.1), "as many as can be, however many come"
    fewer = elastic_trace.simulated(DATASETS[4], "8", slow, rate=0.7 * served[0], n_requests=200, **rest)
    assert fewer.figures(DATASETS[4])["met"]


def test_of_requests_under_way_none_waits_for_its_first_tokens() -> None:
    """They would hide how long those wait that came."""
    came, first = np.array([*[0.0] * 90, 1.0, 2.0, 3.0]), np.array([*[0.1] * 90, 4.0, np.nan, np.nan])
    tokens, none = np.full(93, 40), np.zeros(0)
    trace = Trace(came, first, first + 1, tokens, none, none.astype(int), none.astype(int), 6.0)
    assert trace.delay() == 3.0, "to the end, of the last that could wait for two seconds"
    alone = Trace(came[:90], first[:90], first[:90] + 1, tokens[:90], none, none.astype(int), none.astype(int), 6.0)
    assert alone.delay() == 6.0, "nobody came, so nothing is known"


def test_a_trace_without_a_token_has_figures() -> None:
    never, none = np.full(3, np.nan), np.zeros(0)
    trace = Trace(np.zeros(3), never, never, np.zeros(3, int), none, none.astype(int), none.astype(int), 4.0)
    figures = trace.figures(DATASETS[0])
    assert figures == {"p90_ms": 4000, "delay_ms": 4000, "served_s": 0, "met": False}


def test_of_a_trace_only_what_comes_between_its_begin_and_its_end_counts() -> None:
    heard = [(0, at, 3) for at in (0.0, 2.0, 4.0, 5.0, 6.0)]
    seen = [SeenStep(at, 2, 8, 4, 1) for at in (0.5, 1.5, 4.5, 5.5)]
    trace = elastic_measured.traced(heard, seen, np.zeros(2), 1.0, 4.0)
    assert (trace.first[0], trace.last[0], trace.n_tokens.tolist()) == (1.0, 3.0, [6, 0])
    assert np.isnan(trace.first[1])
    assert (trace.ended.tolist(), trace.sizes.tolist()) == ([0.5, 3.5], [4, 4])


@pytest.mark.parametrize(("stands", "took"), [(True, 1.0), (False, 3.0)])
def test_the_clock_stands_while_it_judges_unless_it_is_not_to(
    monkeypatch: pytest.MonkeyPatch, stands: bool, took: float
) -> None:
    now = [0.0]
    monkeypatch.setattr(curve_judge.time, "perf_counter", lambda: now[0])

    def slow(chunks: Chunks, confidence: FloatArray) -> FloatArray:
        now[0] += 2
        return confidence

    live = RunningBlocks(BLOCK, MASK)
    place = live.add(begun(64))
    clock = StepClock(slow, batch=0, n_steps=9, limit_s=9, enough=lambda: None, stands=stands)
    for _ in range(3):
        now[0] += 1
        chunks = live.chunks(np.array([place], np.int32), np.array([8], np.int32))
        clock(chunks, unsure(chunks)[1])
    assert np.diff([each.at for each in clock.seen]).tolist() == [took] * 2


def test_both_modes_are_asked_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = dict[str, list[list[int]]]()

    def answered(engine: Any, prompts: Any, *_: Any) -> elastic_quick.Answered:
        asked.setdefault(engine, []).append(list(prompts))
        return elastic_quick.Answered([], 10, 1e-3, 5, 50)

    monkeypatch.setattr(elastic_quick, "answer", answered)
    work = elastic_quick.QuickWork(repeats=4)
    elastic_quick.clients(cast(Any, {"auto": "a", "block": "b"}), cast(Any, range(99)), 8, work, nobody())
    assert asked["a"] == asked["b"]
    assert len({tuple(each) for each in asked["a"]}) == 5, "each run, and the one that warms up, other ones"


def test_replies_that_end_too_soon_have_no_figures() -> None:
    model = RandomModel.of("sdar-tiny", SETTINGS)
    settings = replace(SETTINGS, chunk_size="8", block_size=BLOCK)
    with Side.opened(model, settings, n_prompt=40, batch=1) as side:
        request = side.request

        def short(number: int, mode: str) -> Any:
            return request(number, mode, 40, 5)

        side_type = cast(Any, type(side))
        original, side_type.request = side_type.request, lambda _, number, mode: short(number, mode)
        try:
            with pytest.raises(RametError, match="no figures"):
                side.run("8", 1, CurveJudge(Curve(0.5, 0.0), BLOCK, np.random.default_rng(0)), n_steps=99, limit_s=9)
        finally:
            side_type.request = original


_DRIVER = """
import json, sys
print(json.dumps({"name": "it 1.0", "start_s": 2.5}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["batch"] > 2:
        sys.exit("too many")
    print(json.dumps({"seconds": [asked["batch"] / 100] * 3}), flush=True)
"""


def test_a_peers_process_is_asked_and_says_why_it_ends(tmp_path: Path) -> None:
    program = tmp_path / "driver.py"
    program.write_text(_DRIVER)
    with LMDeployPeer(Path(sys.executable), tmp_path, block=BLOCK, max_batch=4, n_prompt=100, program=program) as peer:
        assert (peer.name, peer.start_s) == ("it 1.0", 2.5)
        assert peer.steps(2, 100) == [0.02] * 3
        with pytest.raises(RametError, match="too many"):
            peer.steps(3, 100)
    assert peer._process.returncode is not None


def test_a_python_without_the_peer_is_refused() -> None:
    with pytest.raises(RametError, match="--lmdeploy-python"):
        python_with_lmdeploy(Path(sys.executable))


def test_the_peers_python_may_be_a_script_beside_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/lmdeploy.py").touch()
    script = tmp_path / "python-with-it"
    script.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/site exec {sys.executable} "$@"\n')
    script.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    assert python_with_lmdeploy(Path("./python-with-it")) == script


def test_steps_of_the_peer_are_those_in_which_all_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdeploy_driver, "_N_WARM", 1)
    clock = lmdeploy_driver.PassClock(BLOCK)
    seen = [(0, 2, False), (1, 2, True), (1.5, 2, True), (2.5, 1, True), (3, 2, True), (3.25, 2, True), (4, 2, True)]
    for at, n, decodes in seen:
        event = fake_lmdeploy.Event(enable_timing=True)
        event.at = at
        clock.noted.append((event, n, decodes))
    assert clock.steps(2) == [0.25, 0.75], "0.5 is before those that are timed"


_BESIDE = """
import runpy, sys
sys.path.insert(0, {tests!r})
from fakes import lmdeploy as fake_lmdeploy
fake_lmdeploy.install()
runpy.run_path({driver!r}, run_name="__main__")
"""


@pytest.fixture
def lmdeploy(tmp_path: Path) -> Iterator[LMDeployPeer]:
    """Its driver, in a process with all that LMDeploy has of what the driver uses."""
    program = tmp_path / "beside.py"
    program.write_text(_BESIDE.format(tests=str(Path(__file__).parents[1]), driver=lmdeploy_driver.__file__))
    with LMDeployPeer(Path(sys.executable), tmp_path, block=BLOCK, max_batch=64, n_prompt=300, program=program) as peer:
        yield peer


def test_the_driver_times_lmdeploys_steps(lmdeploy: LMDeployPeer) -> None:
    assert lmdeploy.name == "lmdeploy 0.18.0"
    assert lmdeploy.steps(3, 40) == pytest.approx([3e-3] * (65 - 1 - 3)), "two blocks, the first of them stored"
    many = lmdeploy.steps(64, 300)  # more than a prefill holds
    assert many == pytest.approx([64e-3] * (32 - 1 - 3))
    assert lmdeploy.steps(1, 300) == pytest.approx([1e-3] * 61), "another batch goes on as if nothing had been"


def test_a_refusal_of_lmdeploys_is_told(lmdeploy: LMDeployPeer) -> None:
    with pytest.raises(RametError, match=r"3000 tokens ended with ResponseType\.INPUT_LENGTH_ERROR"):
        lmdeploy.steps(1, 3000)


def test_a_batch_that_never_decodes_at_once_has_no_figures(tmp_path: Path) -> None:
    program = tmp_path / "driver.py"
    program.write_text(_DRIVER.replace("* 3", "* 0"))
    with (
        LMDeployPeer(Path(sys.executable), tmp_path, block=BLOCK, max_batch=4, n_prompt=9, program=program) as peer,
        pytest.raises(RametError, match="all of 2 replies"),
    ):
        peer.steps(2, 9)


def test_a_checkpoint_for_others_has_every_weight(tmp_path: Path) -> None:
    model = RandomModel.of("sdar-tiny", SETTINGS)
    sdar_checkpoint.write(model, tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert set(file.keys()) == set(model.weights.parts)
        assert torch.equal(file.get_tensor("lm_head.weight"), model.weights.part("lm_head.weight"))
    told = json.loads((tmp_path / "config.json").read_text())
    assert told["auto_map"] == {"AutoConfig": "configuration_sdar.SDARConfig"}
    read = AutoConfig.from_pretrained(tmp_path, trust_remote_code=True)
    asked = ("pad_token_id", "sliding_window", "attention_bias", "head_dim", "rms_norm_eps", "max_position_embeddings")
    assert [getattr(read, name) for name in asked] == [1, None, False, 16, 1e-6, 32768], "what LMDeploy asks it"


def test_a_checkpoint_may_be_in_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdar_checkpoint, "_SHARD_BYTES", 100_000)
    model = RandomModel.of("sdar-tiny", SETTINGS)
    sdar_checkpoint.write(model, tmp_path)
    told = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert sorted(set(told["weight_map"].values())) == files
    assert len(files) > 3
    written = {}
    for name in files:
        with safe_open(tmp_path / name, "pt") as file:
            written |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert set(written) == set(model.weights.parts)
    assert all(torch.equal(tensor, model.weights.part(name)) for name, tensor in written.items())
    assert told["metadata"]["total_size"] == sum(tensor.nbytes for tensor in written.values())


@pytest.mark.parametrize("shape", ["llada2-tiny", "sdar-tiny"])
def test_only_shapes_that_the_peer_has(shape: str) -> None:
    with pytest.raises(InvalidRequest, match=r"peer: .*--shape sdar-8b"):
        elastic.run(shape, SETTINGS, WORK, peer=True, python=None, watch=nobody())


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_whole_blocks_by_turns_with_the_peers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else is timed, and what was measured is on disk as soon as it is known."""
    program = tmp_path / "driver.py"
    program.write_text(_DRIVER)
    monkeypatch.setattr(elastic, "_PEERS_MASK", MASK)
    monkeypatch.setattr(elastic, "python_with_lmdeploy", lambda python: python)
    monkeypatch.setattr(elastic, "LMDeployPeer", partial(LMDeployPeer, program=program))
    saved = list[list[bool]]()
    watch = replace(nobody(), save=lambda document: saved.append(["peer_ms" in row for row in document.whole]))
    settings = replace(SETTINGS, latency_cache=str(tmp_path / "profiles"))
    work = replace(WORK, batches=(1, 2), parts=())
    found = elastic.run("sdar-tiny", settings, work, peer=True, python=Path(sys.executable), watch=watch)
    assert [each for each, _ in groupby(saved)] == [[], [False], [True], [True, False], [True, True]]
    rows = cast(list[dict[str, Any]], found.whole)
    assert [(row["batch"], row["peer_ms"], row["peer_samples"]) for row in rows] == [
        (1, 10.0, [0.01] * 3), (2, 20.0, [0.02] * 3),
    ]  # fmt: skip
    assert [row["peer_over_ours"] for row in rows] == pytest.approx([row["peer_ms"] / row["ms"] for row in rows])
    assert {row["mode"] for row in cast(list[dict[str, Any]], found.steps)} == {"block"}
    assert not found.loads
    assert not found.cells
    assert not found.traces
    printed = Console(file=(out := StringIO()), width=140)
    printed.print(*found.tables())
    assert "peer" in out.getvalue()
    assert found.about()["peer"] == {"name": "it 1.0"}


def test_the_command_names_what_there_is() -> None:
    """Without an import of it, which takes seconds."""
    from ramet.cli import bench_elastic

    assert bench_elastic.PARTS == elastic.PARTS
    assert set(bench_elastic.SHAPES) == set(BLOCK_SHAPES)


def test_shapes_are_those_of_their_names() -> None:
    for name, size in {"sdar-8b": 8.19e9, "sdar-1.7b": 2.03e9, "llada2-mini": 16.26e9}.items():
        config = config_of(name)
        plan = FAMILIES[config.model_type].plan(FAMILIES[config.model_type].shape(config), names_of(name))
        parts = {weight.parts: int(np.prod(weight.shape)) for weight in plan.values()}
        assert sum(parts.values()) == pytest.approx(size, rel=0.01)
        assert block_config_of(name).size == BLOCK
    assert set(BLOCK_SHAPES) > {"sdar-tiny"}


@pytest.mark.slow
def test_a_small_models_answers_and_clients(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(elastic_quick, "_LEAST", 2)
    saved, _ = block_models.saved("sdar")
    directory = shutil.copytree(saved, tmp_path / "model")
    examples = [{"task": "t", "prompt": f"{i} plus one?", "answer": "x"} for i in range(4)]
    (directory / elastic_quick.HELD_OUT).write_text(json.dumps(examples))
    work = elastic_quick.QuickWork(examples=3, clients=(2,), repeats=2, sizes=(2, 4, 32), max_tokens=12)
    settings = {"device": "cpu", "dtype": "float32", "threads": 1, "block_size": 8, "latency_cache": str(tmp_path)}
    found = elastic_quick.run(str(directory), settings, work, watch=nobody())
    rows = cast(list[dict[str, Any]], found.quality)
    assert [row["mode"] for row in rows] == ["block", "auto", "2", "4"], "no size above the block"
    assert all(row["n"] == 3 and 0 <= row["exact"] <= 1 for row in rows)
    assert "ms" in found.latency
    by_mode = {row["mode"]: row for row in rows}
    assert by_mode["block"]["rows_step"] == 8
    assert by_mode["2"]["rows_step"] < by_mode["4"]["rows_step"] < 8
    assert by_mode["block"]["same_as_block"] == 1
    (clients,) = cast(list[dict[str, Any]], found.clients)
    assert clients["clients"] == 2
    assert {mode: len(each["samples"]) for mode, each in clients["tokens_s"].items()} == {"auto": 2, "block": 2}
    printed = Console(file=StringIO(), width=140)
    printed.print(*found.tables())
    json.dumps(found.as_json(), allow_nan=False)


def test_examples_are_those_beside_the_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidRequest, match=r"model: .* has no held_out\.json"):
        elastic_quick.QuickWork(2).drawn(str(tmp_path))
    found = [{"task": "t", "prompt": str(i), "answer": ""} for i in range(5)]
    (tmp_path / elastic_quick.HELD_OUT).write_text(json.dumps(found))
    seeds = [elastic_quick.QuickWork(2, seed=seed).drawn(str(tmp_path)) for seed in range(3)]
    assert [[each["prompt"] for each in own] for own in seeds] == [["0", "1"], ["2", "3"], ["4", "0"]]
    with pytest.raises(InvalidRequest, match=r"examples: .* has 5"):
        elastic_quick.QuickWork(6).drawn(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "loads,other"], "some of"),
        (["--shape", "other"], "sdar-8b"),
        (["--batches", "0"], "list of whole numbers"),
        (["--peer", "x"], "lmdeploy"),
        (["--peer", "lmdeploy", "--device", "cpu"], "--peer: LMDeploy runs on a GPU"),
        (["--quick", "--shape", "sdar-tiny"], "--shape does nothing with --quick"),
        (["--quick", "--parts", "none"], "--parts does nothing with --quick"),
        (["--quick", "--plot", "x"], "--plot does nothing with --quick"),
        (["--examples", "3"], "--examples does nothing without --quick"),
        (["--model", "x"], "--model does nothing without --quick"),
        (["--lmdeploy-python", __file__], "--lmdeploy-python does nothing without --peer lmdeploy"),
        (["--parts", "loads", "--trace", "5"], "--trace does nothing with these --parts"),
        (["--parts", "loads", "--plot", "x"], "--plot does nothing with these --parts"),
        (["--from", __file__, "--shape", "sdar-8b"], "--shape does nothing with --from"),
        (["--from", __file__, "--peer", "lmdeploy"], "--peer does nothing with --from"),
        (["--from", __file__, "--quick"], "--quick does nothing with --from"),
        (["--from", __file__, "--seed", "1"], "--seed does nothing with --from"),
        (["--from", __file__, "--device", "cpu"], "--device does nothing with --from"),
        (["--from", __file__, "--parts", "none", "--workers", "1"], "--workers does nothing with --parts none"),
        (["--from", __file__, "--parts", "traces"], "--parts: with --from"),
        (["--from", __file__], "no JSON"),
    ],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    from ramet.cli import main

    result = CliRunner().invoke(main, ["bench", "elastic", *arguments])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"bench": "states"}, "not the JSON of a run of this bench"),
        ([], "not the JSON of a run of this bench"),
        ({}, "run the part 'steps'"),
        ({"rates": {"flop_per_s": 1.0}}, "earlier version"),
        ({"steps": [{"mode": "2"}]}, "another version"),
    ],
)
def test_a_file_that_cannot_be_simulated_over_is_refused(tmp_path: Path, told: Any, message: str) -> None:
    from ramet.cli import main

    if isinstance(told, dict):
        shapes = [(mode, 3) for mode in ("2", "4", "8", "16", "32", "block", "next")]
        steps = [asdict(StepTiming(mode, batch, 0.1, 3.0, 3.0, 3.0, 30.0, [0.1])) for mode, batch in shapes]
        rest = {"steps": steps} if "rates" in told else {}
        told = {"bench": "elastic", "model": "m", "machine": {"cpu": "p"}, "settings": {"n_prompt": 40}, **rest, **told}
    path = tmp_path / "told.json"
    path.write_text(json.dumps(told))
    result = CliRunner().invoke(main, ["bench", "elastic", "--from", str(path), "--workers", "1"])
    assert result.exit_code == 2
    assert "--from" in result.output
    assert message in " ".join(result.output.split())


def test_a_run_that_was_ended_early_is_shown_as_it_is(tmp_path: Path) -> None:
    """Before the peer's turn, with a note; an empty one has no tables."""
    from ramet.cli import main

    row = {"batch": 1, "rows": 32, "ms": 8.0, "floor_ms": 4.0, "floor_read_ms": 4.0, "over_floor": 2.0}
    whole = [row | {"over_floor_read": 2.0, "peer_ms": 12.0, "peer_over_ours": 1.5}, row | {"over_floor_read": 2.0}]
    found = ElasticReport("m", {"cpu": "p"}, {}, peer={"name": "it 1.0"}, whole=cast(Any, whole), note="By hand.")
    found.write(tmp_path / "told.json")
    asked = ["bench", "elastic", "--from", str(tmp_path / "told.json"), "--parts", "none"]
    result = CliRunner().invoke(main, [*asked, "--json", str(tmp_path / "again.json")])
    assert result.exit_code == 0, result.output
    rows = [line.split() for line in result.output.splitlines()]
    assert [row[-2:] for row in rows if row[:2] == ["1", "32"]] == [["12.0", "1.50"], ["-", "-"]]
    assert ["note", "By", "hand."] in rows


def test_rows_name_their_hardware() -> None:
    machine = {"cpu": "A Processor", "gpu": "A Card"}
    rows = [{"mode": "auto"}]
    for device, hardware in (("cuda", "A Card"), ("cpu", "A Processor")):
        found = ElasticReport(model="m", machine=machine, settings={"device": device}, steps=list(rows))
        assert cast(Any, found.as_json())["steps"] == [{"hardware": hardware, "mode": "auto"}]


def test_the_same_number_has_the_same_prompt() -> None:
    engine = cast(Any, type("E", (), {"writer": type("W", (), {"max_length": 500})}))
    side = Side(engine, None, 40, 2048)
    first, again, other = (side.request(number, "next") for number in (3, 3, 4))
    assert first.prompt == again.prompt != other.prompt
    assert (len(first.prompt), len(other.prompt)) == (43, 44)
    assert first.max_tokens == 500 - 43
    assert first.confidence_threshold is None
