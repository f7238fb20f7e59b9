"""Decisions: from questions to a job, and from what it read to answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Protocol

from ramet.decide.budget import Budget
from ramet.decide.decider import Decider
from ramet.decide.plan import Plan
from ramet.decision import Decision, Timing, Usage
from ramet.engine.faults import as_fault
from ramet.engine.inbox import Inbox
from ramet.engine.job import Job
from ramet.engine.multi_step_read import MultiStepRead
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest
from ramet.request import DecisionRequest, extent
from ramet.tree import Tree
from ramet.turns import LARGE, HasGone, Turns

PLANNERS = 2  # threads that plan for tasks; with more of them the engine's own waits long for the interpreter


class Enqueue(Protocol):
    """Checks a tree, and those that may follow it, and hands it to the engine's thread."""

    def __call__(self, tree: Tree, n_keep: int, mark: int, salt: str, read: MultiStepRead | None = None) -> Job: ...


class Decisions:
    """Answers requests by the engine's thread, which `enqueue` hands a plan to. name: of the model."""

    def __init__(self, name: str, decider: Decider, settings: EngineSettings, inbox: Inbox, enqueue: Enqueue) -> None:
        self._name, self.decider, self._settings = name, decider, settings
        self._inbox, self._enqueue = inbox, enqueue
        self._planners = Turns(PLANNERS, "ramet-plan")

    def decide(self, request: DecisionRequest) -> Decision:
        """Wait for the answer. Raises as `Engine.decide`."""
        started = time.perf_counter()
        self._inbox.check_open()
        plan = self._plan(request)
        job = self._begin(plan, request.cache_salt)
        return self._decision(plan, job, job.future.result(), started)

    async def decide_async(self, request: DecisionRequest) -> Decision:
        """As `decide`, for tasks; cancelling the awaiting task cancels the work."""
        started = time.perf_counter()
        self._inbox.check_open()
        size, make = extent(request, LARGE), partial(self._plan, request)
        plan = await self._planners.run(make, size=size, who=request.cache_salt)
        job = self._begin(plan, request.cache_salt)
        return self._decision(plan, job, await asyncio.wrap_future(job.future), started)

    def _plan(self, request: DecisionRequest, has_gone: HasGone = lambda: False) -> Plan:
        budget = Budget(self._settings.max_request_tokens, lambda: self._inbox.is_closed or has_gone())
        with as_fault("a plan"):
            return self.decider.plan(request, budget)

    def _begin(self, plan: Plan, salt: str) -> Job:
        tree = plan.tree if plan.read is None else plan.read.tree()
        return self._enqueue(tree, plan.trunk, plan.mark, salt, plan.read)

    def _decision(self, plan: Plan, job: Job, outcome: Any, started: float) -> Decision:
        """outcome: what `Engine.submit` or, of a plan with several steps, `Engine.follow` gives."""
        now = time.perf_counter()
        reads, n_cached = (outcome, job.n_cached) if plan.read is None else (plan.read.reads, outcome)
        n_kept = plan.priors.n_kept_tokens
        usage = Usage(
            input_tokens=plan.tree.n_tokens + n_kept,
            output_tokens=plan.n_questions,
            x_cached_tokens=n_cached + n_kept,
        )
        if job.has_canvas:
            usage.x_engine_steps = job.n_rounds
            usage.x_fell_back = job.is_split and self._settings.single_pass_reads
        timing = Timing(
            plan_ms=(job.queued_at - started) * 1e3,
            queue_ms=(job.started_at - job.queued_at) * 1e3,
            pass_ms=job.pass_s * 1e3,
            total_ms=(now - started) * 1e3,
        )
        with as_fault("an answer"):
            return Decision(
                model=self._name,
                answers=plan.answers(reads),
                usage=usage,
                joint=plan.joint,
                x_calibration=plan.calibration,
                x_timing=timing,
            )


def request_of(
    request: DecisionRequest | None, state: Any, questions: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> DecisionRequest:
    """The request that a caller gave, or that its fields make, of which `x_` may be left off. Raises InvalidRequest."""
    if request is not None:
        if state is not None or questions is not None or options:
            raise InvalidRequest("give a request or its fields, not both", field="request")
        if not isinstance(request, DecisionRequest):
            raise InvalidRequest(f"is a DecisionRequest, not {type(request).__name__}", field="request")
        return request
    fields = {"state": state, "questions": questions}
    for key, value in options.items():
        fields[f"x_{key}" if f"x_{key}" in DecisionRequest.model_fields else key] = value
    made = DecisionRequest.parse(fields)
    for key in DecisionRequest.ignored(fields):
        known = ", ".join(name.removeprefix("x_") for name in DecisionRequest.model_fields if name != "seed")
        raise InvalidRequest(f"unknown keyword; known: {known}", field=key)
    return made
