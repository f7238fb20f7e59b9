"""The bench of reads: random weights of a true shape, what is asked, and a run whose every figure can be checked."""

from __future__ import annotations

import json
import math
import random
import threading
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from ramet.bench.core.canvases import N_COLUMNS, CanvasForm, CanvasRead
from ramet.bench.core.document import nobody
from ramet.bench.core.named_shapes import CANVAS_SHAPES, config_of
from ramet.bench.core.products import Product
from ramet.bench.core.random_model import RandomModel
from ramet.bench.core.random_weights import RandomWeights
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import Effort, Row, interleave
from ramet.bench.core.timing import closed_loop
from ramet.bench.reads import run as reads
from ramet.bench.reads.report import AGAIN, ISOLATED, JOINT, ONE, PEER, TWO, ReadLoad, ReadsReport, saved
from ramet.bench.reads.sides import Sides
from ramet.engine.settings import EngineSettings
from ramet.errors import RametError
from ramet.families import FAMILIES
from ramet.families.weight import Plan, Weight
from ramet.ops.linear.reference import pack
from ramet.tree import WHOLE

CPU = torch.device("cpu")
SETTINGS = EngineSettings(device="cpu", dtype="float32", max_round_tokens=512, threads=1).resolved()
PLAN: Plan = {
    "0.q_proj": Weight(("a.q",), (8, 6)),
    "0.kv_proj": Weight(("a.k", "a.v"), (8, 6)),
    "0.q_norm": Weight(("a.q_norm",), (16,)),
    "0.input_norm": Weight(("a.norm",), (6,)),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow machine takes seconds to say how fast it is."""
    monkeypatch.setattr(reads.DeviceRates, "of", lambda decoder: DeviceRates(1e12, 1e11))
    monkeypatch.setattr(reads, "_LEAST_BLOCK_S", 0.05)


def test_weights_are_looked_at_as_views_and_taken_out_as_copies() -> None:
    weights = RandomWeights(PLAN, torch.float32, CPU)
    seen = weights["0.q_proj"]
    assert weights["0.q_proj"].data_ptr() == seen.data_ptr()
    taken = weights.pop("0.q_proj")
    assert taken.data_ptr() != seen.data_ptr()
    assert torch.equal(taken, seen)
    assert "0.q_proj" not in weights
    assert weights.pop("0.q_bias", None) is None
    with pytest.raises(KeyError):
        weights.pop("0.q_proj")
    assert (weights.n_parameters, weights.n_bytes) == (118, 472)


def test_two_weights_of_one_shape_differ() -> None:
    weights = RandomWeights(PLAN, torch.float32, CPU)
    assert not torch.equal(weights["0.q_proj"], weights["0.kv_proj"])
    assert 0.01 < float(weights["0.q_proj"].std()) < 0.03


def test_the_parts_of_a_weight_are_what_a_checkpoint_has() -> None:
    weights = RandomWeights(PLAN, torch.float32, CPU)
    assert weights.parts == {"a.q", "a.k", "a.v", "a.q_norm", "a.norm"}
    assert torch.equal(torch.cat([weights.part("a.k"), weights.part("a.v")]), weights["0.kv_proj"])


def test_vectors_are_ones_but_for_the_norms_of_queries_and_keys() -> None:
    weights = RandomWeights(PLAN, torch.float32, CPU)
    assert torch.equal(weights["0.input_norm"], torch.ones(6))
    assert torch.equal(weights["0.q_norm"], torch.full((16,), 0.5))


@pytest.mark.parametrize(("name", "least", "most"), [("26b-a4b", 25.2e9, 25.3e9), ("100m", 95e6, 105e6)])
def test_named_shapes_have_the_size_that_they_are_named_for(name: str, least: float, most: float) -> None:
    family = FAMILIES["diffusion_gemma"]
    shape = family.shape(config_of(name).get_text_config())
    plan = family.plan(shape, ["model.decoder.embed_tokens.weight"])
    assert least < sum(math.prod(weight.shape) for weight in plan.values()) < most
    kinds = config_of(name).get_text_config().layer_types
    assert kinds == (["sliding_attention"] * 5 + ["full_attention"]) * (len(kinds) // 6)


def test_every_shape_has_experts_and_keys_that_are_values() -> None:
    for name in CANVAS_SHAPES:
        shape = FAMILIES["diffusion_gemma"].shape(config_of(name).get_text_config())
        assert cast(Any, shape.layers[5].mixer).keys_are_values
        assert not cast(Any, shape.layers[4].mixer).keys_are_values


def test_a_joint_canvas_has_a_slot_for_each_question_behind_its_number() -> None:
    form = CanvasForm.joint(100, 11)
    assert form.slots == (2, 6, 10, 14, 18, 22, 26, 30, 34, 39, 44)
    assert form.width == 48
    assert (form.n_rows, str(form)) == (148, "100+48")


def test_isolated_canvases_have_a_slot_each() -> None:
    form = CanvasForm.isolated(100, 11)
    asked = CanvasRead.draw(form, np.random.default_rng(0), 1000)
    assert (form.n_rows, str(form)) == (276, "100+11x16")
    assert asked.tree.lengths.tolist() == [100] + [16] * 11
    assert asked.tree.blocks.tolist() == [1] + [WHOLE] * 11
    assert asked.tree.parents.tolist() == [-1] + [0] * 11
    assert len(asked.tree.columns) == 11 * N_COLUMNS


def test_every_read_has_ids_of_its_own() -> None:
    rng = np.random.default_rng(0)
    first, second = (CanvasRead.draw(CanvasForm.of(20, 8), rng, 1000) for _ in range(2))
    assert first.prompt.tolist() != second.prompt.tolist()


def test_turns_change_their_order_and_are_drawn_again_alike() -> None:
    counts = dict.fromkeys("abc", 20)
    order = interleave(counts, random.Random(0))
    assert order == interleave(counts, random.Random(0))
    turns = [tuple(order[i : i + 3]) for i in range(0, 60, 3)]
    assert {tuple(sorted(turn)) for turn in turns} == {("a", "b", "c")}
    assert len(set(turns)) > 1


def test_clients_ask_again_once_they_are_answered() -> None:
    """Three at a time: a fourth begins where one has its answer."""
    together, most = threading.Barrier(3), list[int]()

    def send(number: int) -> int:
        most.append(together.n_waiting + 1)
        together.wait()
        return -number

    rate, ms, answers = closed_loop(send, range(9), 3)
    assert answers == [-number for number in range(9)]
    assert (max(most), len(ms)) == (3, 9)
    assert rate > 0


@pytest.fixture(scope="module")
def model() -> RandomModel:
    return RandomModel.of("tiny", SETTINGS)


def test_a_run(tmp_path: Path) -> None:
    work = reads.ReadsWork((40, 70), 8, (1, 2), 3, 4, Effort(repeats=2, budget_s=0.1))
    found = reads.run("tiny", SETTINGS, work, with_peer=True, price=100.0, watch=nobody())
    assert set(found.difference) == {TWO, PEER}
    assert max(found.difference.values()) < 1e-5
    assert [row.shape for row in found.latency] == ["40+8", "70+8"]
    assert [row.notes["steps"] for row in found.latency] == [{ONE: n, TWO: 2 * n, AGAIN: 2 * n} for n in (4, 2)]
    assert [len(row.samples[AGAIN]) for row in found.latency] == [4, 2]
    assert cast(dict[str, float], found.latency[0].notes["difference"]).keys() == {TWO, PEER}
    assert [(load.form, load.n_clients) for load in found.loads] == [(f, n) for f in ("40+8", "70+8") for n in (1, 2)]
    alone, together = found.loads[:2]
    assert (alone.steps_a_read(ONE), alone.steps_a_read(TWO)) == (1.0, 2.0)
    assert 0.5 <= together.steps_a_read(ONE) <= 1.0
    assert [row.notes["rows"] for row in found.questions] == [{JOINT: n + 16, ISOLATED: n + 48} for n in (40, 70)]
    found.write(tmp_path / "found.json")
    written = json.loads((tmp_path / "found.json").read_text())
    assert written["peer"]["weights"] == "its own"
    assert written["settings"]["op routing"] == "even"
    assert written["latency"][0]["p95"].keys() == {ONE, TWO, AGAIN, PEER}


def test_a_peer_with_views_for_weights_says_the_same(model: RandomModel, monkeypatch: pytest.MonkeyPatch) -> None:
    from ramet.bench.peers import diffusion as diffusion_peer

    monkeypatch.setattr(diffusion_peer, "free_bytes", lambda device: 0)
    with Sides.opened(model, SETTINGS, with_peer=True) as sides:
        assert sides.peer is not None
        assert sides.peer.shared
        asked = sides.draw(CanvasForm.of(30, 8))
        np.testing.assert_allclose(sides.turns[PEER](asked), sides.turns[ONE](asked), rtol=0, atol=1e-5)


def test_a_wrong_answer_has_no_figures(model: RandomModel, monkeypatch: pytest.MonkeyPatch) -> None:
    right = RandomWeights.part
    spoiled = "model.decoder.layers.3.self_attn.o_proj.weight"
    monkeypatch.setattr(RandomWeights, "part", lambda w, name: right(w, name) * (-1 if name == spoiled else 1))
    with pytest.raises(RametError, match="transformers answers otherwise"):
        reads.twin_difference(SETTINGS, with_peer=True)


def test_floors_are_arithmetic_and_bytes() -> None:
    """Of the rows that are multiplied: in the last layer those that are read."""
    product = Product.linear(pack(torch.zeros(30, 20)), torch.zeros(3, 20, dtype=torch.bfloat16), 30)
    rates = DeviceRates(flop_per_s=1e6, bytes_per_s=1e5)
    assert rates.floors_ms([product]) == pytest.approx((2 * 3 * 20 * 30 / 1e3, 2 * 20 * 30 / 1e2))
    assert rates.linear_ms([product], 100) == pytest.approx(120.0)


def test_rates_of_a_cpu_are_those_of_its_faster_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of which looking takes a millisecond, and a product as it is packed here five."""
    ticks = iter(range(10**6))
    monkeypatch.setattr("ramet.bench.core.timing.time", SimpleNamespace(perf_counter=lambda: next(ticks) / 1e3))

    def packed(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Any:
        def product(x: torch.Tensor) -> torch.Tensor:
            for _ in range(5):
                next(ticks)
            return x

        return product

    found = DeviceRates.measure(CPU, torch.float32, packed, size=64, n_bytes=1 << 16)
    assert found.flop_per_s == pytest.approx(2 * 64**3 / 1e-3)
    assert found.bytes_per_s == pytest.approx((1 << 16) / 1e-3)


def _load() -> ReadLoad:
    load = ReadLoad("40+8", 5)
    for name, rates in ((ONE, [9.0, 11.0, 10.0]), (TWO, [8.0]), (AGAIN, [8.2])):
        for rate in rates:
            load.add(name, rate, [1e3 / rate, 2e3 / rate], n_steps=1)
    return load


def test_a_load_says_gain_noise_and_cost() -> None:
    load = _load()
    assert load.gain(ONE, TWO) == pytest.approx(0.25)
    assert load.gain(AGAIN, TWO) == pytest.approx(0.025)
    assert load.gain(PEER, TWO) is None
    assert load.cost(ONE, 730 * 36.0) == pytest.approx(1.0)
    assert load.cost(ONE, None) is None
    assert load.steps_a_read(ONE) == 0.5


def _found() -> ReadsReport:
    row = Row("40+8", {ONE: [80.0, 80.0], TWO: [100.0, 100.0], AGAIN: [101.0], PEER: [240.0]})
    row.notes = {
        "reads": 2,
        "steps": {ONE: 2, TWO: 4},
        "bytes_ms": 20.0,
        "arithmetic_ms": 40.0,
        "difference": {TWO: 0.0},
    }
    several = Row("40, 3 questions", {JOINT: [10.0], ISOLATED: [14.0]}, {"rows": {JOINT: 56, ISOLATED: 88}})
    return ReadsReport(
        "m: 1 parameter; none", {}, {}, 996.0, {"name": "transformers 5"}, {"flop_per_s": 1e12, "bytes_per_s": 1e11},
        {TWO: 0.0}, {"model": 1.5}, [row], [_load()], [several],
    )  # fmt: skip


def test_tables_say_what_was_found() -> None:
    from rich.console import Console

    assert saved(_found().latency[0]) == pytest.approx(0.2)
    console = Console(width=120, record=True, file=StringIO())
    console.print(*_found().tables())
    text = console.export_text()
    for words in (
        "20.0%",
        "+1.0%",
        "3.00",
        "2.00",
        "+25.0%",
        "0.0379",
        "1.40",
        "0.50",
        "model 1.5",
    ):
        assert words in text


def test_plot_is_the_same_for_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from ramet.bench.reads.plot import draw

    found = _found()
    for name in ("a.svg", "b.svg"):
        draw(found, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    found.loads.append(ReadLoad("70+8", 1, {ONE: [1.0], TWO: [2.0]}, {ONE: [1.0], TWO: [2.0]}, {}))
    draw(found, tmp_path / "b.svg")
    assert (tmp_path / "a.svg").read_bytes() != (tmp_path / "b.svg").read_bytes()


def test_command(tmp_path: Path) -> None:
    from ramet.cli import main

    sizes = ["--prompts", "30", "--canvas", "8", "--questions", "2", "--reads", "2", "--clients", "1", "--threads", "1"]
    arguments = ["--shape", "tiny", "--quick", *sizes, "--price-per-month", "996", "--json", str(tmp_path / "f.json")]
    result = CliRunner().invoke(main, ["bench", "reads", "--dtype", "float32", "--device", "cpu", *arguments])
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "f.json").read_text())
    assert written["latency"][0]["steps"] == {ONE: 2, TWO: 4, AGAIN: 4}
    assert (written["settings"]["n_reads"], written["settings"]["effort"]["repeats"]) == (2, 3)
    assert written["loads"][0]["cost_per_1000"][ONE] > 0


@pytest.mark.parametrize("text", ["188,", "0", "many", "-1"])
def test_bad_numbers_are_named(text: str) -> None:
    from ramet.cli import main

    result = CliRunner().invoke(main, ["bench", "reads", "--prompts", text])
    assert result.exit_code == 2
    assert "--prompts" in result.output


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--canvas", "257", "a canvas of 257 rows"),
        ("--questions", "100", "a canvas of"),
        ("--prompts", "20,8190", "the model takes 8192"),
        ("--clients", "1,1025", "1024 may wait"),
    ],
)
def test_work_that_cannot_be_done_is_refused_before_any(
    option: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.cli import main

    monkeypatch.setattr(reads, "twin_difference", lambda *_, **__: pytest.fail("work was done"))
    result = CliRunner().invoke(main, ["bench", "reads", "--shape", "tiny", "--device", "cpu", option, value])
    assert result.exit_code == 2
    assert f"{option[2:]}: " in result.output
    assert words in result.output


@pytest.mark.parametrize(
    ("option", "name"), [("--json", "nowhere/f.json"), ("--plot", "nowhere/f.svg"), ("--plot", "f.gif")]
)
def test_files_that_cannot_be_written_are_refused_before_any(
    option: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ramet.cli import main

    monkeypatch.setattr(reads, "run", lambda *_, **__: pytest.fail("work was done"))
    result = CliRunner().invoke(main, ["bench", "reads", "--shape", "tiny", option, str(tmp_path / name)])
    assert result.exit_code == 2
    assert option in result.output
