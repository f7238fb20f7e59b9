"""What is simulated over the measured steps of a run of the bench of elastic decoding: behind them, or afterwards, on
any machine, from its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.bench import elastic_simulated, elastic_trace
from ramet.bench.block_shapes import BLOCK
from ramet.bench.commit_curves import DATASETS, Dataset
from ramet.bench.elastic_found import Found
from ramet.bench.elastic_simulated import NEXT, WHOLE, Costs, Floats
from ramet.bench.samples import JsonObject
from ramet.bench.step_times import StepFloor, StepTimes, Timed
from ramet.bench.watch import Watch
from ramet.errors import InvalidRequest

SIZES = (2, 4, 8, 16, 32)  # of chunks, whose steps are measured
BY_NAME = {dataset.name: dataset for dataset in DATASETS}


@dataclass(frozen=True, slots=True)
class Simulation:
    """datasets: of commit curves; requests at random are the first one's. n_steps: of each load; trace_s: in which
    the requests of a trace come; workers: processes."""

    datasets: Sequence[Dataset] = DATASETS
    n_steps: int = 360
    trace_s: float = 60.0
    workers: int = 1

    def run(self, found: Found, watch: Watch) -> None:
        """Fill in cells, their summary, capacities, and what is expected of the traces that the engine ran, in place of
        what there was. Raises InvalidRequest where steps are missing."""
        costs, batches = costs_of(found)
        found.cells.clear()
        found.summary = {}
        found.capacities.clear()
        found.settings |= {"n_steps": self.n_steps, "simulated_trace_s": self.trace_s}
        watch.step("simulating the traces of the engine")
        for row in found.traces:
            row |= expected(row, costs)
        watch.save(found)
        watch.step("simulating loads")
        rows = elastic_simulated.cells(
            self.datasets, batches, costs, workers=self.workers, n_steps=self.n_steps
        )  # fmt: skip
        for n, row in enumerate(rows, 1):
            watch.step(f"simulated {n} of {len(self.datasets) * len(batches)} loads")
            found.cells.append(row)
        found.summary = elastic_simulated.summary(found.cells)
        watch.save(found)
        watch.step("simulating requests that come at random")
        found.capacities = elastic_trace.capacities(
            self.datasets[0], costs, seconds=self.trace_s, workers=self.workers, n_most=max(batches)
        )  # fmt: skip
        watch.save(found)


def costs_of(found: Found) -> tuple[Costs, list[int]]:
    """What the steps of a run took, and the numbers of replies at which it timed every mode."""
    steps = [Timed.from_json(row) for row in found.steps]
    modes = {*map(str, SIZES), WHOLE, NEXT}
    timed = {batch: {step.mode for step in steps if step.batch == batch} for batch in {step.batch for step in steps}}
    batches = sorted(batch for batch, own in timed.items() if own >= modes)
    if not batches:
        raise InvalidRequest(
            "nothing to simulate over: at no number of replies were steps timed in every mode (run the part 'steps')",
            field="from",
        )
    if "flop" not in found.rates:
        raise InvalidRequest(
            "written by an earlier version, which did not tell what steps take at least (run it again)", field="from"
        )
    n_context = _number(found.settings["n_prompt"]) + BLOCK // 2
    times = StepTimes.of([step for step in steps if step.mode != NEXT and step.batch in batches], n_context)
    following = [step for step in steps if step.mode == NEXT and step.batch in batches]
    floor = StepFloor.from_json(found.rates, n_context)
    peer: dict[int, Any] = {_number(row["batch"]): row["peer_ms"] for row in found.whole if "peer_ms" in row}
    costs = Costs(
        chunks=times, next=StepTimes.of(following, n_context, times.fit), told=times.fit.seconds, n_context=n_context,
        floor=_Floor(floor), peer={batch: ms / 1e3 for batch, ms in peer.items()},
    )  # fmt: skip
    return costs, batches


def expected(row: JsonObject, costs: Costs) -> JsonObject:
    """Of a trace that the engine ran, what a simulation of it finds."""
    told: dict[str, Any] = row
    rate, seconds = told["requests_s"], told["seconds"]
    dataset = BY_NAME[told["dataset"]]
    trace = elastic_trace.simulated(
        dataset, told["mode"], costs, rate=rate, until=seconds, seed=told["seed"],
        n_requests=elastic_trace.most_requests(rate, seconds), n_begun=told["begun"], max_running=told["most"],
    )  # fmt: skip
    return {
        f"{name}_simulated": value for name, value in elastic_trace.figures(trace, dataset).items() if name != "met"
    }


@dataclass(frozen=True, slots=True)
class _Floor:
    """By the part of the rows that is read."""

    floor: StepFloor

    def __call__(self, rows: Floats, n_replies: int, read: float) -> Floats:
        return self.floor.seconds(rows, n_replies, rows * read)


def _number(value: Any) -> int:
    return int(value)
