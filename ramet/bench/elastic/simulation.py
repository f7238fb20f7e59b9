"""What is simulated over the measured steps of a run of the bench of elastic decoding: behind them, or afterwards, on
any machine, from its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ramet.bench.core.document import Watch, from_row
from ramet.bench.core.named_shapes import BLOCK
from ramet.bench.elastic import cells, traces
from ramet.bench.elastic.cells import Costs
from ramet.bench.elastic.commit_curves import DATASETS, Dataset
from ramet.bench.elastic.report import NEXT, WHOLE, ElasticReport
from ramet.bench.elastic.step_times import StepFloor, StepTimes, StepTiming
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

    def run(self, report: ElasticReport, watch: Watch) -> None:
        """Fill in cells, their summary, capacities, and what is expected of the traces that the engine ran, in place of
        what there was. Raises InvalidRequest where steps are missing."""
        costs, batches = costs_of(report)
        report.cells, report.summary, report.capacities = [], {}, []
        report.settings |= {"n_steps": self.n_steps, "simulated_trace_s": self.trace_s}
        watch.step("simulating the traces of the engine")
        for row in report.traces:
            row |= expected(row, costs)
        watch.save(report)
        watch.step("simulating loads")
        rows = cells.cells(self.datasets, batches, costs, workers=self.workers, n_steps=self.n_steps)
        for n, row in enumerate(rows, 1):
            watch.step(f"simulated {n} of {len(self.datasets) * len(batches)} loads")
            report.cells.append(row)
        report.summary = cells.summary(report.cells)
        watch.save(report)
        watch.step("simulating requests that come at random")
        report.capacities = traces.capacities(
            self.datasets[0], costs, seconds=self.trace_s, workers=self.workers, n_most=max(batches)
        )
        watch.save(report)


def costs_of(report: ElasticReport) -> tuple[Costs, list[int]]:
    """What the steps of a run took, and the numbers of replies at which it timed every mode."""
    steps = [from_row(StepTiming, row) for row in report.steps]
    modes = {*map(str, SIZES), WHOLE, NEXT}
    batches = sorted(n for n in {step.batch for step in steps} if {s.mode for s in steps if s.batch == n} >= modes)
    if not batches:
        why = "at no number of replies were steps timed in every mode (run the part 'steps')"
        raise InvalidRequest(f"nothing to simulate over: {why}", field="from")
    if "flop" not in report.rates:
        why = "an earlier version, which did not say what steps take at least (run it again)"
        raise InvalidRequest(f"written by {why}", field="from")
    n_context = int(report.settings["n_prompt"]) + BLOCK // 2
    times = StepTimes.of([step for step in steps if step.mode != NEXT and step.batch in batches], n_context)
    following = [step for step in steps if step.mode == NEXT and step.batch in batches]
    costs = Costs(
        chunks=times,
        next=StepTimes.of(following, n_context, times.fit),
        fit=times.fit.seconds,
        n_context=n_context,
        floor=from_row(StepFloor, report.rates).seconds,
        peer={int(row["batch"]): row["peer_ms"] / 1e3 for row in report.whole if "peer_ms" in row},
    )
    return costs, batches


def expected(row: dict[str, Any], costs: Costs) -> dict[str, float]:
    """Of a trace that the engine ran, what a simulation of it finds."""
    dataset = BY_NAME[row["dataset"]]
    n_requests = traces.most_requests(row["requests_s"], row["seconds"])
    own = {"until": row["seconds"], "seed": row["seed"], "n_begun": row["begun"], "max_running": row["most"]}
    trace = traces.simulated(dataset, row["mode"], costs, rate=row["requests_s"], n_requests=n_requests, **own)
    return {f"{name}_simulated": value for name, value in trace.figures(dataset).items() if name != "met"}
