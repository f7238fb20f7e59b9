"""Elastic decoding: chunks whose size is chosen, beside fixed ones, whole blocks and a token a step.

Weights are random and of a true shape. The engine runs whole steps, and by which step a token is known comes from a
commit curve. In two layers: steps are measured at each batch in each mode, and some decoding and some requests at
random; decoding is then simulated over the times of steps on every data set and batch, also what the engine ran, so
that both can be compared. Every row says which of it is simulated.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ramet.bench.core import machine
from ramet.bench.core.document import Watch
from ramet.bench.core.named_shapes import BLOCK, BLOCK_SHAPES
from ramet.bench.core.random_model import RandomModel
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.timing import timed
from ramet.bench.elastic.commit_curves import DATASETS, Dataset
from ramet.bench.elastic.judge import CurveJudge
from ramet.bench.elastic.report import AUTO, NEXT, WHOLE, ElasticReport, Rows
from ramet.bench.elastic.side import Side, measured
from ramet.bench.elastic.simulation import SIZES, Simulation
from ramet.bench.elastic.step_times import StepFloor, StepTimes, StepTiming
from ramet.bench.elastic.traces import LIMIT_S
from ramet.bench.peers import sdar_checkpoint
from ramet.bench.peers.lmdeploy import LMDeployPeer, python_with_lmdeploy
from ramet.engine.latency import describe
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest

LOADED = (AUTO, "8", "32", WHOLE)  # modes that the engine decodes loads in, and a token a step
TRACED = (AUTO, WHOLE, "4", "8")  # and requests at random, likewise
PARTS = ("steps", "loads", "traces", "simulation")  # in every mode, and three that need them
_TYPICAL = DATASETS[3]  # by which rows become known while steps are measured
_GRID_STEPS, _WARM = 24, 3
_LOAD_STEPS, _LOAD_WARM = 80, 12
_LOADS = 0.6  # of the budget, where there are loads
_MORE = 2.0  # requests a second of the first trace, over those that are expected to be served
_LESS = 0.93  # of the second, over those that were
_PEERS_MASK = 151669  # the id of the mask, which LMDeploy takes for granted
_MEASURED = {"commits": "simulated", "steps": "measured"}


@dataclass(frozen=True, slots=True)
class ElasticWork:
    """batches: replies at once. n_prompt: tokens of a prompt, at least. parts: what is done besides steps of whole
    blocks. budget_s: of steps and loads. trace_s: of each trace that the engine runs. loaded: data sets decoded there,
    of loaded_batches replies; traced: whose requests come at random."""

    batches: Sequence[int]
    n_prompt: int = 256
    parts: Collection[str] = PARTS
    budget_s: float = 300.0
    trace_s: float = 10.0
    loaded: Sequence[Dataset] = (DATASETS[0], DATASETS[3])
    loaded_batches: Sequence[int] = (1, 8, 32, 128, 256)
    traced: Dataset = DATASETS[0]
    simulation: Simulation = field(default_factory=Simulation)
    seed: int = 0

    @property
    def n_context(self) -> int:
        """Rows in pages of a reply, while steps are timed."""
        return self.n_prompt + BLOCK // 2

    def judge(self, mode: str, dataset: Dataset) -> CurveJudge | None:
        """Token by token nothing is unsure."""
        return None if mode == NEXT else CurveJudge(dataset.curve, BLOCK, np.random.default_rng(self.seed))

    def as_json(self) -> JsonObject:
        found: JsonObject = {name: getattr(self, name) for name in ("n_prompt", "budget_s", "trace_s", "seed")}
        found |= {name: list(getattr(self, name)) for name in ("batches", "parts", "loaded_batches")}
        return found | {"loaded": [each.name for each in self.loaded], "traced": self.traced.name, "block": BLOCK}


def run(
    shape: str, settings: EngineSettings, work: ElasticWork, *, peer: bool, python: Path | None, watch: Watch
) -> ElasticReport:
    """Settings are resolved ones. python: of the peer. Raises InvalidRequest for a shape that the peer does not take,
    RametError where it does not start."""
    if peer and BLOCK_SHAPES[shape]["mask_token_id"] != _PEERS_MASK:
        raise InvalidRequest("LMDeploy takes SDAR's true shapes alone: --shape sdar-8b or sdar-1.7b", field="peer")
    peer_python = python_with_lmdeploy(python) if peer else None
    assert settings.threads
    torch.set_num_threads(settings.threads)
    watch.step(f"making {shape}")
    model = RandomModel.of(shape, settings, even=True)
    about = {**work.as_json(), "device": settings.device, "dtype": settings.dtype}
    report = ElasticReport(model.describe(), machine.describe(settings.threads), about)
    if "routing" in model.decoder.ops.why:
        report.settings["experts"] = "chosen evenly, not by the random weights"
    gc.collect()
    gc.freeze()
    _Bench(model, settings, work, report, watch).run(peer_python)
    if "simulation" in work.parts:
        work.simulation.run(report, watch)
    return report


@dataclass(slots=True)
class _Bench:
    model: RandomModel
    settings: EngineSettings
    work: ElasticWork
    report: ElasticReport
    watch: Watch

    def run(self, peer_python: Path | None) -> None:
        """What the engine runs, token by token, then in chunks and whole blocks, whose traces are last: by then there
        is something to simulate over."""
        if "steps" in self.work.parts:
            with self._side(causal=True) as side:
                grid = [self._timed(side, NEXT, batch) for batch in self.work.batches]
                self._decode(side, (NEXT,), (NEXT,), grid, 0.0)
        with ExitStack() as stack:
            peer = None if peer_python is None else stack.enter_context(self._peer(peer_python))
            side = stack.enter_context(self._side(causal=False))
            grid = self._grid(side, self._floor(), peer)
            if "steps" in self.work.parts:
                fit = StepTimes.of(grid, self.work.n_context).fit
                self.report.latency = describe(fit)
                self._decode(side, LOADED, TRACED, grid, fit.slopes[2])

    def _add(self, rows: Rows, row: dict[str, Any]) -> dict[str, Any]:
        """A row into the report, which is written to disk at once."""
        rows.append(row)
        self.watch.save(self.report)
        return row

    def _floor(self) -> StepFloor:
        """With the kernels that the engine has compiled, all at once."""
        self.watch.step("measuring what the device does at most")
        rates = DeviceRates.of(self.model.decoder)
        rows = [1 << i for i in range((BLOCK * max(self.work.batches)).bit_length())]
        floor = StepFloor.of(self.model, rates, rows)
        self.report.rates = asdict(floor)
        return floor

    def _decode(
        self, side: Side, loaded: Sequence[str], traced: Sequence[str], grid: Sequence[StepTiming], row_s: float
    ) -> None:
        """Loads and requests at random. row_s: what a row of a prompt takes."""
        if "loads" in self.work.parts:
            self._loads(side, loaded)
        if "traces" in self.work.parts:
            for mode in traced:
                self._traces(side, mode, self._expected(mode, grid, row_s))

    def _expected(self, mode: str, grid: Sequence[StepTiming], row_s: float) -> float:
        """Requests a second: what a mode decodes of the most replies at once, and the rows of prompts besides."""
        batch = max(self.work.batches)
        dataset = self.work.traced
        tokens_s = max(each.tokens_s for each in grid if each.batch == batch and mode in (AUTO, each.mode))
        return 1 / (dataset.reply[0] / tokens_s + dataset.prompt[0] * row_s)

    @contextmanager
    def _side(self, *, causal: bool) -> Iterator[Side]:
        self.watch.step("starting the engine" + (", token by token" if causal else ""))
        # Requests name the sizes of chunks, but for those that are chosen.
        settings = replace(self.settings, chunk_size="auto", block_size=None if causal else BLOCK)
        batch = max(self.work.batches)
        with ExitStack() as stack:
            with timed(self.report.start_s, "engine, next" if causal else "engine"):
                opened = Side.opened(self.model, settings, n_prompt=self.work.n_prompt, batch=batch, causal=causal)
                side = stack.enter_context(opened)
            yield side

    @contextmanager
    def _peer(self, python: Path) -> Iterator[LMDeployPeer]:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            self.watch.step("writing a checkpoint for LMDeploy")
            sdar_checkpoint.write(self.model, directory)
            self.watch.step("starting LMDeploy")
            most = max(self.work.batches)
            with LMDeployPeer(python, directory, block=BLOCK, max_batch=most, n_prompt=self.work.n_prompt) as peer:
                self.report.peer = {"name": peer.name}
                self.report.start_s["peer"] = peer.start_s
                yield peer

    def _grid(self, side: Side, floor: StepFloor, peer: LMDeployPeer | None) -> list[StepTiming]:
        """Steps in every mode at every batch, or of whole blocks alone; these by turns with the peer's."""
        grid: list[StepTiming] = []
        for batch in self.work.batches:
            if "steps" in self.work.parts:
                grid += [self._timed(side, str(size), batch) for size in SIZES]
            whole = self._timed(side, WHOLE, batch)
            grid.append(whole)
            row = self._add(self.report.whole, _whole_row(whole, floor, self.work.n_context * batch))
            if peer is not None:
                self.watch.step(f"{batch} replies: LMDeploy")
                steps = peer.steps(batch, self.work.n_prompt)
                theirs = statistics.median(steps)
                row |= {"peer_ms": theirs * 1e3, "peer_over_ours": theirs / whole.seconds}
                row["peer_samples"] = [round(each, 7) for each in steps]
                self.watch.save(self.report)
        return grid

    def _timed(self, side: Side, mode: str, batch: int) -> StepTiming:
        """Steps of a typical curve."""
        self.watch.step(f"{batch} replies: steps of {mode}")
        n_modes = len(SIZES) + 2 if "steps" in self.work.parts else 1
        share = 1 - _LOADS if "loads" in self.work.parts else 1.0
        limit_s = share * self.work.budget_s / (len(self.work.batches) * n_modes)
        judge = self.work.judge(mode, _TYPICAL)
        seen = side.run(mode, batch, judge, n_steps=_GRID_STEPS, limit_s=limit_s, n_warm=_WARM)
        timing = StepTiming.of(mode, batch, seen)
        self._add(self.report.steps, {**_MEASURED, **asdict(timing)})
        return timing

    def _loads(self, side: Side, modes: Sequence[str]) -> None:
        """Decoding as the engine does it."""
        batches = [batch for batch in self.work.loaded_batches if batch in self.work.batches]
        n_runs = len(batches) * len(self.work.loaded) * (len(LOADED) + 1)
        limit_s = _LOADS * self.work.budget_s / max(1, n_runs)
        for dataset in self.work.loaded:
            side.forget()
            for batch, mode in itertools.product(batches, modes):
                self.watch.step(f"{dataset.name}, {batch} replies: {mode}")
                judge = self.work.judge(mode, dataset)
                seen = side.run(mode, batch, judge, n_steps=_LOAD_STEPS, limit_s=limit_s, n_warm=_LOAD_WARM)
                timing = StepTiming.of(mode, batch, seen)
                self._add(self.report.loads, {"dataset": dataset.name, **_MEASURED, **asdict(timing)})

    def _traces(self, side: Side, mode: str, expected: float) -> None:
        """More requests than are served, which shows how many are; then a few less than that, behind fewer replies
        where tokens took too long."""
        most = max(self.work.batches)
        row = self._trace(side, mode, _MORE * expected, most)
        if row["served_s"]:
            part = _LESS * min(1.0, LIMIT_S * 1e3 / row["p90_ms"])
            self._trace(side, mode, _LESS * row["served_s"], max(1, int(part * most)))

    def _trace(self, side: Side, mode: str, rate: float, n_begun: int) -> dict[str, Any]:
        """Behind n_begun replies that are under way."""
        dataset = self.work.traced
        asked: dict[str, Any] = {"seconds": self.work.trace_s, "seed": self.work.seed}
        self.watch.step(f"{rate:.3g} requests a second: {mode}")
        side.forget()
        trace = measured(side, mode, dataset, self.work.judge(mode, dataset), rate=rate, n_begun=n_begun, **asked)
        row = {"dataset": dataset.name, "mode": mode, **_MEASURED, **asked, "requests_s": rate, "begun": n_begun}
        row |= {"most": max(self.work.batches), "requests": len(trace.came) - n_begun, "limit_ms": LIMIT_S * 1e3}
        return self._add(self.report.traces, row | trace.figures(dataset) | {"over_time": trace.over_time()})


def _whole_row(whole: StepTiming, floor: StepFloor, n_keys: int) -> dict[str, Any]:
    """A step of whole blocks beside what it takes at least: with every row through the head, as other engines have it,
    and with those that are masked alone."""
    rows = np.array(whole.rows)
    least = float(floor.seconds(rows, rows, n_keys))
    own = float(floor.seconds(rows, np.array(whole.reads), n_keys))
    row = {"batch": whole.batch, "rows": whole.rows, "steps": "measured", "ms": whole.seconds * 1e3}
    row |= {"floor_ms": least * 1e3, "floor_read_ms": own * 1e3}
    return row | {"over_floor": whole.seconds / least, "over_floor_read": whole.seconds / own}
