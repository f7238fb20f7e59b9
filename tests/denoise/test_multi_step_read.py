"""Courses: several steps of denoising, each conditioned on the one before, against transformers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import numpy as np
import pytest
import torch
from fixtures.waiting import GUARD_S
from oracles import diffusion_gemma as oracle

from ramet.engine.batch import Batch
from ramet.engine.engine import Engine
from ramet.engine.runner import InFlight
from ramet.errors import EngineFault, RequestTooLong
from ramet.ops.head import reference as head
from ramet.tree import WHOLE, Limits, Read, Reads, Segment, Step, Stepped, Tree

TEMPERATURE, N_BEST = 0.7, 3


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 22, "batch_invariant": True}
    with Engine.load(oracle.saved("plain"), **settings) as made:
        yield made


class Walk:
    """n steps over a canvas, which becomes what was drawn; pinned rows take nothing of the step before."""

    def __init__(self, seed: int, n_prompt: int, width: int, n_steps: int, pinned: tuple[int, ...] = ()) -> None:
        rng = np.random.default_rng([seed, n_prompt, width])
        self.prompt, self.canvas = (rng.integers(0, 40, n).tolist() for n in (n_prompt, width))
        self.uniforms = rng.random((n_steps, width), np.float32)
        self.pinned, self.canvases, self.found = pinned, [self.canvas], list[Stepped]()
        self.reads = list[Reads]()
        self.limits = Limits(n_steps, n_prompt + width, n_prompt + width)

    def tree(self) -> Tree:
        n = len(self.found)
        step = Step(
            np.arange(len(self.canvas), dtype=np.int32), self.uniforms[n], TEMPERATURE, N_BEST,
            self.found[-1].soft if self.found else None, self.pinned, n + 1 < len(self.uniforms),
        )  # fmt: skip
        reads = [Read([3, 5], row=-1)]
        return Tree.of([Segment(self.prompt), Segment(self.canvases[-1], 0, WHOLE, reads, step)])

    def take(self, reads: Reads) -> bool:
        (stepped,) = reads.stepped
        self.reads.append(reads)
        self.found.append(stepped)
        self.canvases.append(stepped.tokens.tolist())
        return len(self.found) == len(self.uniforms)


def check(walk: Walk) -> None:
    """Against transformers, whose canvas is drawn here."""
    model, before = oracle.load(oracle.saved("plain")), None
    for canvas, u, stepped, reads in zip(walk.canvases, walk.uniforms, walk.found, walk.reads, strict=False):
        logits = oracle.canvas_logits(model, walk.prompt, canvas, before)
        logprobs, tempered = logits.log_softmax(-1), logits / TEMPERATURE
        p = tempered.softmax(-1)
        below = p.cumsum(-1).gather(1, torch.from_numpy(stepped.tokens).long()[:, None])[:, 0].numpy()
        assert (below >= u - 1e-3).all()
        assert (below - p.numpy()[np.arange(len(u)), stepped.tokens] <= u + 1e-3).all()
        np.testing.assert_allclose(stepped.entropy, -(p * p.log()).sum(-1), atol=1e-2)
        told = logprobs.gather(1, torch.from_numpy(stepped.best).long())  # of nearly equal ones either may come first
        np.testing.assert_allclose(stepped.logprobs, told, atol=1e-2)
        np.testing.assert_allclose(stepped.logprobs, logprobs.topk(N_BEST).values, atol=1e-2)
        np.testing.assert_allclose(reads.logprobs(0), logprobs[-1, [3, 5]], atol=1e-2)
        before = tempered


@pytest.mark.parametrize("n_prompt", [1, 10, 33])
def test_steps_equal_transformers(engine: Engine, n_prompt: int) -> None:
    walk = Walk(0, n_prompt, 7, 3)
    assert engine.follow(walk).result() == 0
    check(walk)


def test_pinned_rows_take_nothing_of_the_step_before(engine: Engine) -> None:
    pinned, free = Walk(0, 10, 7, 2, tuple(range(7))), Walk(0, 10, 7, 2)
    first = Walk(0, 10, 7, 1)
    for walk in (pinned, free):
        engine.follow(walk).result()
    first.canvas = first.canvases[0] = pinned.canvases[1]
    first.uniforms = pinned.uniforms[1:]
    engine.follow(first).result()
    np.testing.assert_allclose(pinned.found[1].logprobs, first.found[0].logprobs, atol=1e-5)
    assert np.abs(free.found[1].logprobs - first.found[0].logprobs).max() > 1e-2


def test_many_at_once_draw_what_each_draws_alone(engine: Engine) -> None:
    shapes = [
        (seed, n, width, steps) for seed, (n, width, steps) in enumerate([(5, 7, 3), (20, 16, 1), (33, 3, 4)] * 3)
    ]
    walks = [Walk(*shape) for shape in shapes]
    before = engine.stats()["rounds_total"]
    for future in [engine.follow(walk) for walk in walks]:
        future.result()
    assert engine.stats()["rounds_total"] - before < sum(steps for *_, steps in shapes)
    for walk, shape in zip(walks, shapes, strict=True):
        alone = Walk(*shape)
        engine.follow(alone).result()
        assert alone.canvases == walk.canvases
        check(walk)
    assert engine.stats()["pages_free"] + engine.stats()["pages_indexed"] == engine.stats()["pages"]


def test_the_prompt_is_computed_once(engine: Engine) -> None:
    walk, before = Walk(7, 64, 8, 3), engine.stats()["tokens_total"]
    assert engine.follow(walk).result() == 0
    assert engine.stats()["tokens_total"] - before == 64 + 3 * 8
    assert engine.follow(Walk(7, 64, 8, 1)).result() == 64


def test_a_course_may_be_cancelled(engine: Engine) -> None:
    endless, begun = Walk(1, 5, 7, 3), threading.Event()
    endless.take = lambda reads: begun.set() is not None  # type: ignore[method-assign]
    future = engine.follow(endless)
    assert begun.wait(GUARD_S)
    assert future.cancel()
    with pytest.raises(CancelledError):
        future.result()
    engine.follow(Walk(2, 5, 7, 1)).result()
    assert engine.stats()["open_requests"] == 0


def test_faults_of_a_course_are_its_own(engine: Engine) -> None:
    broken, long, fine = Walk(3, 5, 7, 3), Walk(4, 5, 7, 3), Walk(5, 5, 7, 3)
    broken.take = lambda reads: 1 // 0 > 0  # type: ignore[method-assign]

    def take(reads: Reads) -> bool:
        long.prompt = [0] * 3000
        return Walk.take(long, reads)

    long.take = take  # type: ignore[method-assign]
    futures = [engine.follow(walk) for walk in (broken, long, fine)]
    with pytest.raises(EngineFault, match="ZeroDivisionError"):
        futures[0].result()
    with pytest.raises(RequestTooLong):
        futures[1].result()
    futures[2].result()
    check(fine)


def test_after_a_failed_round_each_tree_runs_alone_and_what_follows_together() -> None:
    settings = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 22, "batch_invariant": True}
    with Engine.load(oracle.saved("plain"), **settings) as engine:
        launch, n_jobs, there = engine.runner.launch, list[int](), threading.Event()

        def failing(batch: Batch) -> InFlight:
            n_jobs.append(len(batch.jobs))
            there.wait(GUARD_S)
            if len(n_jobs) == 3:
                raise RuntimeError("a fault that does not come again")
            return launch(batch)

        engine.runner.launch = failing  # type: ignore[method-assign]
        walks = [Walk(seed, 10, 7, 5) for seed in range(3)]
        futures = [engine.follow(walk) for walk in walks]
        there.set()
        for future in futures:
            future.result()
        alone = Walk(1, 10, 7, 5)
        assert engine.follow(alone).result() == 0
        assert alone.canvases == walks[1].canvases
    assert n_jobs[:-5] in ([1, 3, 3, 1, 1, 1, 3, 3, 2], [3, 3, 3, 1, 1, 1, 3, 3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draw_goes_by_the_order_of_ids(dtype: torch.dtype) -> None:
    hidden = torch.randn(150, 24, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight = torch.randn(9000, 24, generator=torch.Generator().manual_seed(1)).to(dtype)
    u = torch.rand(150, generator=torch.Generator().manual_seed(2))
    u[:2] = torch.tensor([0.0, 1 - 2**-24])
    drawn = head.draw(hidden, head.prepare(weight), u, temperature=0.5, n_best=4, embedding=weight, softcap=9.0)
    logits = 9 * torch.tanh(hidden.double() @ weight.double().T / 9)
    p = (logits / 0.5).softmax(-1)
    below = p.cumsum(-1)
    at = drawn.tokens[:, None]
    assert (below.gather(1, at)[:, 0] >= u - 1e-5).all()
    assert ((below - p).gather(1, at)[:, 0] <= u + 1e-5).all()
    assert (p.gather(1, at) > 0).all()
    torch.testing.assert_close(drawn.entropy.double(), -(p * p.log()).sum(-1), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(drawn.logprobs.double(), logits.log_softmax(-1).topk(4).values, atol=1e-4, rtol=1e-4)
    assert drawn.soft is not None
    wanted = (p @ weight.double()).to(dtype)
    torch.testing.assert_close(drawn.soft, wanted, atol=0.05 if dtype == torch.bfloat16 else 1e-4, rtol=0.02)


def test_of_equal_logits_the_lower_id_comes_first() -> None:
    weight = torch.zeros(50, 4)
    weight[[7, 30, 41]] = 1.0
    for n in (1, 3):
        drawn = head.draw(torch.ones(2, 4), head.prepare(weight), torch.zeros(2), temperature=1.0, n_best=n)
        assert drawn.best.tolist() == [[7, 30, 41][:n]] * 2
