"""States that grow: what a step of a long history costs when what came before it was kept.

Trajectories take one request at a time. On a sample of steps an engine that has kept nothing answers the same request,
and the answers are compared. Then all trajectories run once more, side by side, under a budget that they do not fit:
what had to leave is computed again, and no answer may move.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

import torch

from ramet.bench.core import machine
from ramet.bench.core.answers import probabilities_of
from ramet.bench.core.document import Watch
from ramet.bench.core.timing import clocked
from ramet.bench.states.history import Growth, Trajectory, questions
from ramet.bench.states.report import Squeezed, StatesReport, StateStep, TimedRequest
from ramet.decision import Answer, Decision
from ramet.engine.engine import Engine
from ramet.errors import RametError
from ramet.layers.storage import row_bytes, state_bytes
from ramet.request import DecisionRequest

TOLERANCE = 1e-4  # on a probability, in float32
_N_WARM = 3
_SMALL = 3  # the small budget, where none is given, is what the trajectories left divided by this


@dataclass(frozen=True, slots=True)
class StatesWork:
    """`n_trajectories` of `n_steps`, `n_questions` at each; every `fresh_every`-th step is answered fresh too.
    small_cache_bytes: the budget of the second part, None for one chosen by what the first part kept."""

    n_trajectories: int = 30
    n_steps: int = 20
    n_questions: int = 4
    growth: Growth = field(default_factory=Growth)
    fresh_every: int = 4
    small_cache_bytes: int | None = None
    seed: int = 0

    @property
    def n_requests(self) -> int:
        return self.n_trajectories * self.n_steps

    def trajectory(self, number: int) -> Trajectory:
        return Trajectory.draw(random.Random(f"{self.seed} {number}"), self.n_steps, self.growth)  # noqa: S311

    def request(self, trajectory: Trajectory, step: int, salt: str = "") -> DecisionRequest:
        fields = {"state": trajectory.state(step), "questions": questions(self.n_questions), "cache_salt": salt}
        return DecisionRequest.parse(fields)

    def is_compared(self, number: int, step: int) -> bool:
        """Over the trajectories every step has its turn."""
        return step > 0 and (step + number) % self.fresh_every == 0


def run(engine: Engine, work: StatesWork, watch: Watch) -> StatesReport:
    """Both parts. `check` raises where answers moved beyond rounding."""
    dtype = engine.model.dtype
    report = StatesReport(
        engine.name,
        machine.describe(engine.settings.threads or 1),
        {**asdict(work), **engine.describe()},
        row_bytes=row_bytes(engine.shape, dtype),
        state_bytes=state_bytes(engine.shape, dtype),
        capacity=engine.settings.cache_bytes or 0,
    )
    answers: list[dict[str, Answer]] = []
    with _beside(engine, report.capacity) as fresh:
        _warm(fresh, work, watch)
        for step, decision in _measured(engine, fresh, work, watch):
            report.steps.append(step)
            answers.append(decision.answers)
            watch.passed(report, len(report.steps) / (2 * work.n_requests))
    report.evicted = sum(_evicted(engine))
    report.squeezed = _squeezed(engine, work, answers, _small(report), watch)
    watch.save(report)
    return report


def check(report: StatesReport, dtype: torch.dtype, *, same_bits: bool) -> None:
    """Raises RametError where an answer moved: by more than rounding in float32, or at all where bits are to be the
    same. In bfloat16 what is kept and what is computed round differently, so that any difference passes."""
    limit = 0.0 if same_bits else TOLERANCE if dtype == torch.float32 else 1.0
    squeezed = report.squeezed.difference if report.squeezed else 0.0
    for what, difference in (("resumed", report.difference or 0.0), ("after eviction", squeezed)):
        if not difference <= limit:
            raise RametError(f"answers {what} differ from fresh ones by up to {difference:.2g}; {limit:g} is allowed")


def _measured(engine: Engine, fresh: Engine, work: StatesWork, watch: Watch) -> Iterator[tuple[StateStep, Decision]]:
    """Every step of one trajectory after the other."""
    n_before = n_asked = 0
    for number in range(work.n_trajectories):
        trajectory = work.trajectory(number)
        n_history = 0
        for step in range(work.n_steps):
            watch.step(f"trajectory {number + 1}, step {step + 1}")
            request = work.request(trajectory, step)
            resumed, decision = _timed(engine, request)
            n_history = engine.decider.plan(request).trunk
            n_asked += n_history
            n_bytes = int(engine.stats()["cache_device_bytes"])
            found = StateStep(number, step, n_history, resumed, n_before + n_history, n_asked, n_bytes)
            if work.is_compared(number, step):
                again, other = _timed(fresh, work.request(trajectory, step, salt=f"{number} {step}"))
                found = replace(found, fresh=again, difference=difference(decision.answers, other.answers))
            yield found, decision
        n_before += n_history


def _squeezed(
    engine: Engine, work: StatesWork, answers: list[dict[str, Answer]], n_bytes: int, watch: Watch
) -> Squeezed:
    """All steps again, those of one number together and shuffled, so that a trajectory comes back when others have
    taken some of its place."""
    trajectories = [(number, work.trajectory(number)) for number in range(work.n_trajectories)]
    rng = random.Random(work.seed)  # noqa: S311
    found = Squeezed(cache_bytes=n_bytes if work.small_cache_bytes is None else work.small_cache_bytes)
    n_tokens = n_cached = 0
    with _beside(engine, found.cache_bytes) as small:
        for step in range(work.n_steps):
            for number, trajectory in rng.sample(trajectories, len(trajectories)):
                watch.step(f"small budget: step {step + 1}, trajectory {number + 1}")
                timed, decision = _timed(small, work.request(trajectory, step))
                moved = difference(decision.answers, answers[number * work.n_steps + step])
                found.difference = max(found.difference, moved)
                n_tokens += timed.n_tokens
                n_cached += timed.n_cached
                found.n_steps += 1
                watch.done((work.n_requests + found.n_steps) / (2 * work.n_requests))
        found.evicted_pages, found.evicted_states = _evicted(small)
    found.cached = n_cached / n_tokens
    return found


def _evicted(engine: Engine) -> tuple[int, int]:
    """Pages and recurrent states that had to leave so far."""
    stats = engine.stats()
    return int(stats["pages_evicted_total"]), int(stats["checkpoints_evicted_total"])


def _small(report: StatesReport) -> int:
    """A budget that two states fit, but not all; of a model with recurrent layers half is for keys and values."""
    two = 2 * max(s.n_history for s in report.steps) * report.row_bytes
    return max(report.steps[-1].bytes // _SMALL, 2 * two if report.state_bytes else two)


def _warm(fresh: Engine, work: StatesWork, watch: Watch) -> None:
    """Kernels are compiled and buffers found before anything is timed."""
    watch.step("warm-up")
    trajectory = work.trajectory(-1)
    for step in range(min(_N_WARM, work.n_steps)):
        _timed(fresh, work.request(trajectory, step, salt="warm-up"))


def _beside(engine: Engine, cache_bytes: int) -> Engine:
    """Another engine on the same model."""
    return Engine(engine.name, engine.model, engine.decider, replace(engine.settings, cache_bytes=cache_bytes))


def _timed(engine: Engine, request: DecisionRequest) -> tuple[TimedRequest, Decision]:
    ms, decision = clocked(lambda: engine.decide(request))
    assert decision.x_timing is not None
    usage = decision.usage
    return TimedRequest(ms, decision.x_timing.pass_ms, usage.input_tokens, usage.x_cached_tokens), decision


def difference(a: dict[str, Answer], b: dict[str, Answer]) -> float:
    """The largest difference of a probability."""
    pairs = (zip(probabilities_of(a[name]), probabilities_of(b[name]), strict=True) for name in a)
    return max(abs(p - q) for own in pairs for p, q in own)
