"""Elastic decoding: chunks whose size is chosen, beside fixed ones, whole blocks and a token a step.

Weights are random and of a true shape. The engine runs whole steps, and by which step a token is known comes from a
commit curve. In two layers: steps are measured at each batch in each mode, and some decoding and some requests at
random; decoding is then simulated over the times of steps on every data set and batch, also what the engine ran, so
that both can be compared. Every row says which of it is simulated.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from ramet.bench import elastic_trace, machine, sdar_checkpoint
from ramet.bench.block_shapes import BLOCK, RAW, config_of, names_of
from ramet.bench.commit_curves import DATASETS, Dataset
from ramet.bench.curve_judge import CurveJudge
from ramet.bench.elastic_found import Found
from ramet.bench.elastic_sides import Mode, Side
from ramet.bench.elastic_simulated import AUTO, NEXT, WHOLE
from ramet.bench.elastic_simulation import SIZES, Simulation
from ramet.bench.elastic_trace import LIMIT_S
from ramet.bench.lmdeploy_peer import LMDeployPeer, python_with_lmdeploy
from ramet.bench.random_model import RandomModel
from ramet.bench.rates import rates_of
from ramet.bench.samples import JsonObject
from ramet.bench.step_times import StepFloor, StepTimes, Timed
from ramet.bench.watch import Watch
from ramet.engine.latency import describe
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest

LOADED: tuple[Mode, ...] = ("auto", 8, 32, "block")  # modes that the engine decodes loads in, and a token a step
TRACED: tuple[Mode, ...] = ("auto", "block", 4, 8)  # and requests at random, likewise
PARTS = ("steps", "loads", "traces", "simulation")  # in every mode, and three that need them
_TYPICAL = DATASETS[3].curve()  # by which rows become known while steps are measured
_GRID_STEPS, _LOAD_STEPS = 24, 80
_WARM, _LOAD_WARM = 3, 12
_LOADS = 0.6  # of the budget, where there are loads
_MORE, _LESS = 2.0, 0.93  # requests a second of a trace, of those that are expected to be served, and that then were
_PEERS_MASK = 151669  # the id of the mask, which LMDeploy takes for granted


@dataclass(frozen=True, slots=True)
class Work:
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

    def as_json(self) -> JsonObject:
        return {
            "batches": list(self.batches), "n_prompt": self.n_prompt, "parts": list(self.parts),
            "budget_s": self.budget_s, "trace_s": self.trace_s, "loaded": [each.name for each in self.loaded],
            "loaded_batches": list(self.loaded_batches), "traced": self.traced.name, "seed": self.seed, "block": BLOCK,
        }  # fmt: skip


def run(shape: str, settings: EngineSettings, work: Work, *, peer: bool, python: Path | None, watch: Watch) -> Found:
    """Settings are resolved ones. python: of the peer. Raises InvalidRequest for a shape that the peer does not take,
    RametError where it does not start."""
    if peer and RAW[shape]["mask_token_id"] != _PEERS_MASK:
        raise InvalidRequest("LMDeploy takes SDAR's true shapes alone: --shape sdar-8b or sdar-1.7b", field="peer")
    peer_python = python_with_lmdeploy(python) if peer else None
    assert settings.threads
    torch.set_num_threads(settings.threads)
    watch.step(f"making {shape}")
    model = RandomModel.made(shape, config_of(shape), names_of(shape), settings, even=True)
    found = Found(
        model=model.describe(), machine=machine.describe(settings.threads),
        settings={**work.as_json(), "device": settings.device, "dtype": settings.dtype},
    )  # fmt: skip
    if "routing" in model.decoder.ops.why:
        found.settings["experts"] = "chosen evenly, not by the random weights"
    gc.collect()
    gc.freeze()
    _Bench(model, settings, work, found, watch).run(peer_python)
    if "simulation" in work.parts:
        work.simulation.run(found, watch)
    return found


@dataclass(slots=True)
class _Bench:
    model: RandomModel
    settings: EngineSettings
    work: Work
    found: Found
    watch: Watch

    def run(self, peer_python: Path | None) -> None:
        """What the engine runs, token by token, then in chunks and whole blocks, whose traces are last: by then there
        is something to simulate over."""
        if "steps" in self.work.parts:
            with self._side(causal=True) as side:
                grid = [self._timed(side, "next", batch) for batch in self.work.batches]
                self._decode(side, ("next",), ("next",), grid, 0.0)
        with ExitStack() as stack:
            peer = None if peer_python is None else stack.enter_context(self._peer(peer_python))
            side = stack.enter_context(self._side(causal=False))
            grid = self._grid(side, self._floor(), peer)
            if "steps" in self.work.parts:
                fit = StepTimes.of(grid, self.work.n_context).fit
                self.found.latency = describe(fit)
                self._decode(side, LOADED, TRACED, grid, fit.slopes[2])

    def _floor(self) -> StepFloor:
        """With the kernels that the engine has compiled, all at once."""
        self.watch.step("measuring what the device does at most")
        rates = rates_of(self.model.decoder)
        rows = sorted({1 << i for i in range((BLOCK * max(self.work.batches)).bit_length())})
        floor = StepFloor.of(self.model, rates, rows, self.work.n_context)
        self.found.rates = floor.as_json()
        self.watch.save(self.found)
        return floor

    def _decode(
        self, side: Side, loaded: Sequence[Mode], traced: Sequence[Mode], grid: Sequence[Timed], row_s: float
    ) -> None:
        """Loads and requests at random. row_s: what a row of a prompt takes."""
        if "loads" in self.work.parts:
            self._loads(side, loaded)
        if "traces" in self.work.parts:
            for mode in traced:
                self._traces(side, mode, self._expected(mode, grid, row_s))

    def _expected(self, mode: Mode, grid: Sequence[Timed], row_s: float) -> float:
        """Requests a second: what a mode decodes of the most replies at once, and the rows of prompts besides."""
        batch, name, dataset = max(self.work.batches), _name(mode), self.work.traced
        tokens_s = max(each.tokens_s for each in grid if each.batch == batch and name in (AUTO, each.mode))
        return 1 / (dataset.reply[0] / tokens_s + dataset.prompt[0] * row_s)

    @contextmanager
    def _side(self, *, causal: bool) -> Iterator[Side]:
        self.watch.step("starting the engine" + (", token by token" if causal else ""))
        began, work = time.perf_counter(), self.work
        # Sizes of chunks are told by requests, but for those that are chosen.
        settings = replace(self.settings, chunk_size="auto", block_size=None if causal else BLOCK)
        with Side.opened(self.model, settings, n_prompt=work.n_prompt, batch=max(work.batches), causal=causal) as side:
            self.found.start_s["engine, next" if causal else "engine"] = time.perf_counter() - began
            yield side

    @contextmanager
    def _peer(self, python: Path) -> Iterator[LMDeployPeer]:
        with tempfile.TemporaryDirectory() as directory:
            self.watch.step("writing a checkpoint for LMDeploy")
            sdar_checkpoint.write(self.model, Path(directory))
            self.watch.step("starting LMDeploy")
            work = self.work
            with LMDeployPeer(
                python, Path(directory), block=BLOCK, max_batch=max(work.batches), n_prompt=work.n_prompt
            ) as peer:
                self.found.peer = {"name": peer.name}
                self.found.start_s["peer"] = peer.start_s
                yield peer

    def _grid(self, side: Side, floor: StepFloor, peer: LMDeployPeer | None) -> list[Timed]:
        """Steps in every mode at every batch, or of whole blocks alone; these by turns with the peer's."""
        grid = list[Timed]()
        for batch in self.work.batches:
            if "steps" in self.work.parts:
                grid += [self._timed(side, size, batch) for size in SIZES]
            grid.append(whole := self._timed(side, "block", batch))
            row = _whole_row(whole, floor)
            self.found.whole.append(row)
            self.watch.save(self.found)
            if peer is not None:
                self.watch.step(f"{batch} replies: LMDeploy")
                steps = peer.steps(batch, self.work.n_prompt)
                theirs = statistics.median(steps)
                row |= {"peer_ms": theirs * 1e3, "peer_over_ours": theirs / whole.seconds}
                row["peer_samples"] = [round(each, 7) for each in steps]
                self.watch.save(self.found)
        return grid

    def _timed(self, side: Side, mode: Mode, batch: int) -> Timed:
        """Steps of a typical curve."""
        self.watch.step(f"{batch} replies: steps of {_name(mode)}")
        judge = None if mode == "next" else CurveJudge(_TYPICAL, BLOCK, np.random.default_rng(self.work.seed))
        n_modes = len(SIZES) + 2 if "steps" in self.work.parts else 1
        share = 1 - _LOADS if "loads" in self.work.parts else 1.0
        limit_s = share * self.work.budget_s / (len(self.work.batches) * n_modes)
        seen = side.run(mode, batch, judge, n_steps=_GRID_STEPS, limit_s=limit_s, n_warm=_WARM)
        timed = Timed.of(_name(mode), batch, seen)
        self.found.steps.append({"commits": "simulated", "steps": "measured", **timed.as_json()})
        self.watch.save(self.found)
        return timed

    def _loads(self, side: Side, modes: Sequence[Mode]) -> None:
        """Decoding as the engine does it."""
        batches = [batch for batch in self.work.loaded_batches if batch in self.work.batches]
        n_runs = len(batches) * len(self.work.loaded) * (len(LOADED) + 1)
        limit_s = _LOADS * self.work.budget_s / max(1, n_runs)
        for dataset in self.work.loaded:
            side.forget()
            for batch in batches:
                for mode in modes:
                    self.watch.step(f"{dataset.name}, {batch} replies: {_name(mode)}")
                    judge = None
                    if mode != "next":
                        judge = CurveJudge(dataset.curve(), BLOCK, np.random.default_rng(self.work.seed))
                    seen = side.run(mode, batch, judge, n_steps=_LOAD_STEPS, limit_s=limit_s, n_warm=_LOAD_WARM)
                    timed = Timed.of(_name(mode), batch, seen)
                    row = {"dataset": dataset.name, "commits": "simulated", "steps": "measured", **timed.as_json()}
                    self.found.loads.append(row)
                    self.watch.save(self.found)

    def _traces(self, side: Side, mode: Mode, expected: float) -> None:
        """More requests than are served, which tells how many are; then a few less than that, behind fewer replies
        where tokens took too long."""
        most = max(self.work.batches)
        row = self._trace(side, mode, _MORE * expected, most)
        if row["served_s"]:
            part = _LESS * min(1.0, LIMIT_S * 1e3 / row["p90_ms"])
            self._trace(side, mode, _LESS * row["served_s"], max(1, int(part * most)))

    def _trace(self, side: Side, mode: Mode, rate: float, n_begun: int) -> dict[str, float]:
        """Behind n_begun replies that are under way."""
        work = self.work
        self.watch.step(f"{rate:.3g} requests a second: {_name(mode)}")
        side.forget()
        judge = None
        if mode != "next":
            judge = CurveJudge(work.traced.curve(), BLOCK, np.random.default_rng(work.seed))
        number = elastic_trace.FIRST * (1 + len(self.found.traces))
        trace = elastic_trace.measured(
            side, mode, work.traced, judge, rate=rate, seconds=work.trace_s, n_begun=n_begun, seed=work.seed,
            number=number,
        )  # fmt: skip
        figures = elastic_trace.figures(trace, work.traced)
        self.found.traces.append({
            "dataset": work.traced.name, "mode": _name(mode), "commits": "simulated", "steps": "measured",
            "requests_s": rate, "seconds": work.trace_s, "begun": n_begun, "most": max(work.batches),
            "seed": work.seed, "requests": len(trace.came) - n_begun, "limit_ms": LIMIT_S * 1e3, **figures,
            "over_time": elastic_trace.over_time(trace),
        })  # fmt: skip
        self.watch.save(self.found)
        return figures


def _whole_row(whole: Timed, floor: StepFloor) -> JsonObject:
    """A step of whole blocks beside what it takes at least: with every row through the head, as other engines have it,
    and with those that are masked alone."""
    rows = np.array(whole.rows)
    least = float(floor.seconds(rows, whole.batch))
    own = float(floor.seconds(rows, whole.batch, np.array(whole.reads)))
    return {
        "batch": whole.batch, "rows": whole.rows, "steps": "measured", "ms": whole.seconds * 1e3,
        "floor_ms": least * 1e3, "floor_read_ms": own * 1e3, "over_floor": whole.seconds / least,
        "over_floor_read": whole.seconds / own,
    }  # fmt: skip


def _name(mode: Mode) -> str:
    return {"block": WHOLE, "next": NEXT, "auto": AUTO}.get(str(mode), str(mode))
