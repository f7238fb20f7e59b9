"""Elastic decoding: chunks whose size is chosen, beside fixed ones, whole blocks and a token a step.

Weights are random and of a true shape. The engine runs whole steps, and by which step a token is known comes from a
commit curve. In two layers: steps are measured at each batch in each mode; decoding is then simulated over their times
on every data set and batch, and some of it is run by the engine too, so that both can be compared. Every row says which
of it is simulated.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ramet.bench import elastic_simulated, elastic_trace, machine, sdar_checkpoint
from ramet.bench.block_shapes import BLOCK, RAW, config_of, names_of
from ramet.bench.commit_curves import DATASETS, Dataset
from ramet.bench.curve_judge import CurveJudge
from ramet.bench.elastic_found import Found
from ramet.bench.elastic_sides import Mode, Side
from ramet.bench.elastic_simulated import AUTO, NEXT, WHOLE, Costs, Floats
from ramet.bench.elastic_trace import LIMIT_S
from ramet.bench.lmdeploy_peer import LMDeployPeer, python_with_lmdeploy
from ramet.bench.random_model import RandomModel
from ramet.bench.rates import rates_of
from ramet.bench.samples import JsonObject
from ramet.bench.step_times import StepFloor, StepTimes, Timed
from ramet.bench.watch import Watch
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest

GRID = (2, 4, 8, 16, 32)  # sizes of chunks whose steps are measured
SOME: tuple[Mode, ...] = ("auto", 8, 32, "block", "next")  # modes that the engine decodes in, too
_TYPICAL = DATASETS[3].curve()  # by which rows become known while steps are measured
_GRID_STEPS, _LOAD_STEPS = 24, 80
_WARM, _LOAD_WARM = 3, 12
_SHARES = {"grid": 0.3, "loads": 0.4, "trace": 0.2}  # of the budget
_PEERS_MASK = 151669  # the id of the mask, which LMDeploy takes for granted


@dataclass(frozen=True, slots=True)
class Work:
    """batches: replies at once. datasets: of commit curves, simulated; `some` of them at `some_batches` by the engine.
    n_prompt: tokens of a prompt, at least. budget_s: of what the engine runs. n_steps, trace_s: of what is simulated,
    by `workers` processes. whole_blocks: time their steps, and nothing else."""

    batches: Sequence[int]
    datasets: Sequence[Dataset] = DATASETS
    some: Sequence[Dataset] = (DATASETS[0], DATASETS[3])
    some_batches: Sequence[int] = (1, 8, 32, 128, 256)
    n_prompt: int = 256
    budget_s: float = 300.0
    n_steps: int = 360
    trace_s: float = 60.0
    workers: int = 1
    seed: int = 0
    whole_blocks: bool = False

    @property
    def n_context(self) -> int:
        """Rows in pages of a reply, while steps are timed."""
        return self.n_prompt + BLOCK // 2

    def as_json(self) -> JsonObject:
        return {
            **asdict(self), "batches": list(self.batches), "some_batches": list(self.some_batches), "block": BLOCK,
            "datasets": [each.name for each in self.datasets], "some": [each.name for each in self.some],
        }  # fmt: skip


def run(shape: str, settings: EngineSettings, work: Work, *, peer: bool, python: Path | None, watch: Watch) -> Found:
    """Settings are resolved ones. python: of the peer. Raises InvalidRequest for a shape that the peer does not take,
    RametError where it does not start."""
    if peer and RAW[shape]["mask_token_id"] != _PEERS_MASK:
        raise InvalidRequest("LMDeploy takes SDAR's true shapes alone", field="peer")
    peer_python = python_with_lmdeploy(python) if peer else None
    assert settings.threads
    torch.set_num_threads(settings.threads)
    watch.step(f"making {shape}")
    model = RandomModel.made(shape, config_of(shape), names_of(shape), settings)
    found = Found(
        model=model.describe(), machine=machine.describe(settings.threads),
        settings={**work.as_json(), "device": settings.device, "dtype": settings.dtype},
    )  # fmt: skip
    gc.collect()
    gc.freeze()
    _Bench(model, settings, work, found, watch).run(peer_python)
    return found


@dataclass(slots=True)
class _Bench:
    model: RandomModel
    settings: EngineSettings
    work: Work
    found: Found
    watch: Watch

    def run(self, peer_python: Path | None) -> None:
        floor = self._floor()
        following = None if self.work.whole_blocks else self._next()
        with ExitStack() as stack:
            peer = None if peer_python is None else stack.enter_context(self._peer(peer_python))
            side = stack.enter_context(self._side(causal=False))
            grid, theirs = self._grid(side, floor, peer)
            if following is not None:
                self._decoding(side, grid, following, floor, theirs)

    def _floor(self) -> StepFloor:
        self.watch.step("measuring what the device does at most")
        rates = rates_of(self.model.decoder)
        rows = sorted({1 << i for i in range((BLOCK * max(self.work.batches)).bit_length())})
        floor = StepFloor.of(self.model, rates, rows, self.work.n_context)
        self.found.rates = {**asdict(rates), "key_bytes": floor.key_bytes, "weights_bytes": float(floor.n_bytes[-1])}
        return floor

    def _decoding(
        self, side: Side, grid: list[Timed], following: list[Timed], floor: StepFloor, theirs: dict[int, float]
    ) -> None:
        """What is made of steps: decoding, by the engine and simulated."""
        times = StepTimes.of(grid, self.work.n_context)
        self.found.latency = _described(times)
        costs = Costs(
            chunks=times, next=StepTimes.of(following, self.work.n_context, times.fit), told=times.told,
            floor=_Floor(floor), peer=theirs,
        )  # fmt: skip
        self._loads(side, [mode for mode in SOME if mode != "next"])
        self._simulate(costs)
        self._traces(side, costs)

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

    def _next(self) -> list[Timed]:
        """Steps of a token each, and loads of it."""
        with self._side(causal=True) as side:
            timed = [self._timed(side, "next", batch) for batch in self.work.batches]
            self._loads(side, ["next"])
        return timed

    def _grid(self, side: Side, floor: StepFloor, peer: LMDeployPeer | None) -> tuple[list[Timed], dict[int, float]]:
        """Steps in every mode at every batch, or of whole blocks alone; whole blocks by turns with the peer's."""
        grid, theirs = list[Timed](), dict[int, float]()
        for batch in self.work.batches:
            if not self.work.whole_blocks:
                grid += [self._timed(side, size, batch) for size in GRID]
            grid.append(whole := self._timed(side, "block", batch))
            row = _whole_row(whole, floor)
            self.found.whole.append(row)
            self.watch.save(self.found)
            if peer is not None:
                self.watch.step(f"{batch} replies: LMDeploy")
                steps = peer.steps(batch, self.work.n_prompt)
                theirs[batch] = statistics.median(steps)
                row |= {"peer_ms": theirs[batch] * 1e3, "peer_over_ours": theirs[batch] / whole.seconds}
                row["peer_samples"] = [round(each, 7) for each in steps]
                self.watch.save(self.found)
        return grid, theirs

    def _timed(self, side: Side, mode: Mode, batch: int) -> Timed:
        """Steps of a typical curve."""
        self.watch.step(f"{batch} replies: steps of {_name(mode)}")
        judge = None if mode == "next" else CurveJudge(_TYPICAL, BLOCK, np.random.default_rng(self.work.seed))
        n_modes, share = (1, 1.0) if self.work.whole_blocks else (len(GRID) + 2, _SHARES["grid"])
        limit_s = share * self.work.budget_s / (len(self.work.batches) * n_modes)
        seen = side.run(mode, batch, judge, n_steps=_GRID_STEPS, limit_s=limit_s, n_warm=_WARM)
        timed = Timed.of(_name(mode), batch, seen)
        self.found.steps.append({"commits": "simulated", "steps": "measured", **timed.as_json()})
        self.watch.save(self.found)
        return timed

    def _loads(self, side: Side, modes: Sequence[Mode]) -> None:
        """Decoding as the engine does it."""
        batches = [batch for batch in self.work.some_batches if batch in self.work.batches]
        limit_s = _SHARES["loads"] * self.work.budget_s / (len(batches) * len(self.work.some) * len(SOME))
        for dataset in self.work.some:
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

    def _simulate(self, costs: Costs) -> None:
        work = self.work
        self.watch.step("simulating loads")
        found = elastic_simulated.cells(work.datasets, work.batches, costs, workers=work.workers, n_steps=work.n_steps)
        for n, row in enumerate(found, 1):
            self.watch.step(f"simulated {n} of {len(work.datasets) * len(work.batches)} loads")
            self.found.cells.append(row)
        self.found.summary = elastic_simulated.summary(self.found.cells)
        self.watch.save(self.found)

    def _traces(self, side: Side, costs: Costs) -> None:
        """Requests at random: the capacity of each mode, simulated; then the engine near that of the best ones."""
        work, dataset = self.work, self.work.datasets[0]
        self.watch.step("simulating requests that come at random")
        rows = elastic_trace.capacities(dataset, costs, seconds=work.trace_s, workers=work.workers)
        self.found.capacities = rows
        self.watch.save(self.found)
        rate = max(float(str(row["requests_s"])) for row in rows if row["mode"] == AUTO)
        if not rate:
            return
        for mode in ("auto", "block"):
            self._trace(side, mode, dataset, costs, rate)

    def _trace(self, side: Side, mode: Mode, dataset: Dataset, costs: Costs, rate: float) -> None:
        limit_s = _SHARES["trace"] * self.work.budget_s / 2
        n = max(8, int(rate * min(limit_s / 2, self.work.trace_s)))
        self.watch.step(f"{n} requests at {rate:.3g} a second: {_name(mode)}")
        side.forget()
        judge = CurveJudge(dataset.curve(), BLOCK, np.random.default_rng(self.work.seed))
        trace, took = elastic_trace.measured(side, mode, dataset, judge, rate=rate, n_requests=n, seed=self.work.seed)
        told = elastic_trace.simulated(dataset, _name(mode), costs, rate=rate, n_requests=n, seed=self.work.seed)
        self.found.traces.append({
            "dataset": dataset.name, "mode": _name(mode), "commits": "simulated", "steps": "measured",
            "requests_s": rate, "requests": n, "limit_ms": LIMIT_S * 1e3, "seconds": took,
            "p90_ms": trace.per_token() * 1e3, "p90_ms_simulated": told.per_token() * 1e3,
            "over_time": elastic_trace.over_time(trace),
        })  # fmt: skip
        self.watch.save(self.found)


@dataclass(frozen=True, slots=True)
class _Floor:
    """By the part of the rows that is read."""

    floor: StepFloor

    def __call__(self, rows: Floats, n_replies: int, read: float) -> Floats:
        return self.floor.seconds(rows, n_replies, rows * read)


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


def _described(times: StepTimes) -> str:
    from ramet.engine.latency import describe

    return describe(times.fit)


def _name(mode: Mode) -> str:
    return {"block": WHOLE, "next": NEXT, "auto": AUTO}.get(str(mode), str(mode))
