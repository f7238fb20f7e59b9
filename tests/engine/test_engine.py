"""The engine's thread: every request gets a reply, and none harms another."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Iterator
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.random_trees import first_path, random_tree
from fixtures.waiting import GUARD_S, wait_until
from oracles import decoders
from oracles.trees import evaluate

from ramet.decide.budget import Budget
from ramet.engine.batch import Batch
from ramet.engine.decisions import PLANNERS
from ramet.engine.engine import Engine
from ramet.engine.loop import MAX_FAILURES
from ramet.engine.runner import InFlight
from ramet.engine.settings import EngineSettings
from ramet.errors import Cancelled, EngineFault, InvalidRequest, Overloaded, RequestTooLong
from ramet.request import DecisionRequest
from ramet.tree import WHOLE, Read, Reads, Segment, Tree
from ramet.turns import LARGE
from ramet.values import as_json


def make(**settings: Any) -> Engine:
    chosen = EngineSettings(
        device="cpu", dtype="float32", **{"cache_bytes": 1 << 22, "max_round_tokens": 256, **settings}
    )
    return Engine("tiny", decoders.decoder("llama"), None, chosen.resolved())  # type: ignore[arg-type]


@pytest.fixture
def engine() -> Iterator[Engine]:
    with make() as made:
        yield made


def tree(n: int = 20, seed: int = 0) -> Tree:
    ids = np.random.default_rng(seed).integers(0, decoders.VOCAB_SIZE, n).astype(np.int32)
    return Tree.of([Segment(ids, reads=[Read([1, 2, 3])])])


def hold(engine: Engine) -> threading.Event:
    """Keep the engine's thread in its next round until the event is set."""
    free, launch = threading.Event(), engine.runner.launch

    def waiting(batch: Batch) -> InFlight:
        free.wait(GUARD_S)
        return launch(batch)

    engine.runner.launch = waiting  # type: ignore[method-assign]
    return free


def drained(engine: Engine) -> bool:
    wait_until(lambda: not len(engine._loop.scheduler))
    pages = engine._loop.scheduler.pages
    return pages.n_free + pages.n_indexed == pages.n_pages


def test_many_threads_get_the_answers_of_their_trees_alone(engine: Engine) -> None:
    rng = np.random.default_rng(5)
    trees = [random_tree(rng, vocab_size=decoders.VOCAB_SIZE, max_length=60) for _ in range(24)]
    futures: dict[int, Future[Reads]] = {}

    def submit(i: int) -> None:
        futures[i] = engine.submit(trees[i], n_keep=first_path(trees[i]))

    threads = [threading.Thread(target=submit, args=(i,)) for i in range(len(trees))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, t in enumerate(trees):
        found, expected = futures[i].result(), evaluate(decoders.oracle("llama"), t)
        for r in range(len(expected.logsumexp)):
            np.testing.assert_allclose(np.exp(found.logprobs(r)), np.exp(expected.logprobs(r)), atol=1e-5)
    assert drained(engine)


def test_the_same_state_again_is_cached_and_bit_equal(engine: Engine) -> None:
    """D9: a state that is wholly in pages still has its last row computed."""
    first = engine.submit(tree(64), n_keep=64).result()
    for _ in range(3):
        again = engine.submit(tree(64), n_keep=64).result()
        np.testing.assert_allclose(again.logits, first.logits, rtol=1e-5)
        assert np.isfinite(again.logits).all()
    assert engine.stats()["prefix_hit_tokens_total"] > 0


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (Tree.of([Segment([decoders.VOCAB_SIZE])]), InvalidRequest),
        (Tree.of([Segment([-1])]), InvalidRequest),
        (Tree.of([Segment([1], reads=[Read([decoders.VOCAB_SIZE])])]), InvalidRequest),
        (Tree.of([Segment([1] * 2049)]), RequestTooLong),
    ],
)
def test_a_bad_tree_is_refused_before_any_work(engine: Engine, bad: Tree, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"; -?\d+ is none|2049 tokens"):
        engine.submit(bad)
    assert engine.stats()["open_requests"] == 0


def test_more_tokens_than_a_request_may_have() -> None:
    with make(max_request_tokens=50) as engine, pytest.raises(RequestTooLong, match="max_request_tokens"):
        engine.submit(tree(51))


def test_a_long_prompt_needs_pages_and_says_which_setting_gives_them() -> None:
    with make(cache_bytes=1 << 17, max_round_tokens=64) as engine, pytest.raises(RequestTooLong, match="cache_bytes"):
        engine.submit(tree(2000))


@pytest.mark.parametrize("block", [200, 400, WHOLE])
def test_a_block_larger_than_a_round_can_take_is_refused_and_breaks_nothing(engine: Engine, block: int) -> None:
    with pytest.raises(RequestTooLong, match="max_round_tokens"):
        engine.submit(Tree.of([Segment(np.arange(500) % 7, block=block, reads=[Read([1])])]))
    assert len(engine.submit(tree()).result().logits) == 3


def test_a_full_queue_refuses_before_it_plans() -> None:
    class Unasked:
        def plan(self, request: Any) -> Any:
            raise AssertionError("planned in vain")

    question = {"q": {"type": "noul", "instructions": "x"}}
    with make(max_queue=1) as engine:
        engine._decisions.decider = Unasked()  # type: ignore[assignment]
        free = hold(engine)
        waiting = engine.submit(tree())
        with pytest.raises(Overloaded):
            engine.decide(state="x", questions=question)
        with pytest.raises(Overloaded):
            asyncio.run(engine.decide_async(state="x", questions=question))
        free.set()
        waiting.result()


def test_a_full_queue_refuses_at_once_and_recovers() -> None:
    with make(max_queue=3) as engine:
        free = hold(engine)
        futures = [engine.submit(tree(seed=i)) for i in range(3)]
        assert [int(refused(engine) // n) for n in range(1, 6)] == [1] * 5  # n seconds, and what is drawn
        free.set()
        wait(futures)
        assert len(engine.submit(tree()).result().logits) == 3
        free = hold(engine)
        futures = [engine.submit(tree(seed=i)) for i in range(3)]
        assert 1 <= refused(engine) <= 1.5  # the row has ended
        free.set()
        wait(futures)


def refused(engine: Engine) -> float:
    """How long a request that is refused is asked to wait, in seconds."""
    with pytest.raises(Overloaded) as caught:
        engine.submit(tree())
    return caught.value.retry_after_s


def test_a_cancelled_request_leaves_the_queue_and_the_others_run(engine: Engine) -> None:
    free = hold(engine)
    futures = [engine.submit(tree(200, seed=i), n_keep=200) for i in range(5)]
    assert futures[3].cancel()
    free.set()
    done = [f.result() for i, f in enumerate(futures) if i != 3]
    assert len(done) == 4
    assert engine.stats()["cancelled_total"] == 1
    assert drained(engine)


def test_whoever_waits_for_a_cancelled_future_learns_it(engine: Engine) -> None:
    """Also where its round is under way, or over, as it is cancelled."""
    futures = [engine.submit(tree(seed=i)) for i in range(20)]
    for future in futures:
        future.cancel()
    done, waiting = wait(futures)
    assert len(done) == len(futures)
    assert not waiting


def test_cancelling_the_awaiting_task_cancels_the_work(engine: Engine) -> None:
    free = hold(engine)
    engine.submit(tree())

    async def go_away() -> None:
        task = asyncio.create_task(engine.submit_async(tree(seed=1)))
        await asyncio.sleep(0)  # in which the task begins
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(go_away())
    free.set()
    assert drained(engine)
    assert engine.stats()["cancelled_total"] == 1


POISONED = RuntimeError("poisoned")


def poison(engine: Engine, token: int, error: Exception = POISONED) -> None:
    """A pass with this token in it raises."""
    launch = engine.runner.launch

    def failing(batch: Batch) -> InFlight:
        if any(token in unit.tree.tokens for unit in batch.units):
            raise error
        return launch(batch)

    engine.runner.launch = failing  # type: ignore[method-assign]


def test_a_request_that_fails_harms_no_other_of_its_round(engine: Engine) -> None:
    poison(engine, 7)
    free = hold(engine)
    first = engine.submit(tree(10, seed=2))
    good = [engine.submit(Tree.of([Segment([1, 2, i], reads=[Read([1])])])) for i in (3, 4, 5)]
    bad = engine.submit(Tree.of([Segment([1, 7, 2], reads=[Read([1])])]))
    free.set()
    assert all(np.isfinite(f.result().logits).all() for f in (first, *good))
    with pytest.raises(EngineFault, match="poisoned"):
        bad.result()
    assert engine.fault is None
    assert drained(engine)


def test_an_engine_whose_rounds_keep_failing_is_broken_and_hangs_nobody(engine: Engine) -> None:
    poison(engine, 7)
    bad = Tree.of([Segment([7], reads=[Read([1])])])
    for _ in range(MAX_FAILURES):
        with pytest.raises(EngineFault):
            engine.submit(bad).result()
    assert engine.fault is not None
    with pytest.raises(EngineFault):
        engine.submit(tree())


def test_whoever_is_told_of_the_fault_that_breaks_an_engine_finds_it_broken(engine: Engine) -> None:
    """A run of rows asks the engine whether the others would fail too."""
    poison(engine, 7, torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    found: list[EngineFault | None] = []
    future = engine.submit(Tree.of([Segment([7], reads=[Read([1])])]))
    future.add_done_callback(lambda _: found.append(engine.fault))
    with pytest.raises(EngineFault):
        future.result()
    assert found == [engine.fault]
    assert found[0] is not None


def test_a_request_for_which_memory_is_lacking_fails_alone(engine: Engine) -> None:
    poison(engine, 7, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB"))
    bad = Tree.of([Segment([7, 8], reads=[Read([1])])])
    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(EngineFault, match=r"2 tokens needs more .* allocate 3 GiB; a smaller cache_bytes or max_r"):
            engine.submit(bad).result()
    assert engine.fault is None
    assert np.isfinite(engine.submit(tree()).result().logits).all()


def test_a_fault_of_the_device_breaks_the_engine_at_once_and_hangs_nobody(engine: Engine) -> None:
    poison(engine, 7, torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    free = hold(engine)
    futures = [engine.submit(Tree.of([Segment([1, 7, i], reads=[Read([1])])])) for i in (3, 5, 4)]
    free.set()
    for future in futures:
        with pytest.raises(EngineFault, match="started anew: CUDA error"):
            future.result()
    assert isinstance(engine.fault, EngineFault)
    with pytest.raises(EngineFault, match="started anew"):
        engine.submit(tree())


def test_of_a_device_that_failed_nothing_is_freed() -> None:
    """torch ends the process where memory of a lost context is freed."""
    engine = make()
    poison(engine, 7, torch.AcceleratorError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(EngineFault, match="started anew"):
        engine.submit(Tree.of([Segment([1, 7], reads=[Read([1])])])).result()
    kept = [weakref.ref(x) for x in (engine.runner, engine.cache.pages, engine.model.embedding)]
    engine.close()
    del engine
    gc.collect()
    assert all(x() is not None for x in kept)


def test_long_states_hold_up_nobody_elses_planning() -> None:
    """As many as there are planners, whose plans are made only when another's is there."""
    begun, answered = threading.Event(), threading.Event()

    class Slow:
        def plan(self, request: DecisionRequest, budget: Budget) -> Any:
            if len(as_json(request.state)) > LARGE:
                begun.set()
                assert answered.wait(GUARD_S)
            raise InvalidRequest("planned")

    async def ask(engine: Engine, state: Any) -> None:
        with pytest.raises(InvalidRequest, match="planned"):
            await engine.decide_async(state=state, questions={"q": {"type": "noul", "instructions": "x"}})

    async def all_of(engine: Engine) -> None:
        long = [asyncio.create_task(ask(engine, [{"text": "7" * LARGE}])) for _ in range(PLANNERS)]
        await asyncio.to_thread(begun.wait, GUARD_S)
        await asyncio.wait_for(ask(engine, "short"), GUARD_S)
        answered.set()
        await asyncio.gather(*long)

    with make() as engine:
        engine._decisions.decider = Slow()  # type: ignore[assignment]
        asyncio.run(all_of(engine))


def test_a_plan_that_nobody_waits_for_ends(engine: Engine) -> None:
    begun, ended = threading.Event(), threading.Event()

    class Slow:
        def plan(self, request: DecisionRequest, budget: Budget) -> Any:
            begun.set()
            try:
                while True:
                    budget.spend(0)
                    time.sleep(0.001)
            except Cancelled:
                ended.set()
                raise

    async def cancel() -> None:
        asked = asyncio.create_task(
            engine.decide_async(state="s", questions={"q": {"type": "noul", "instructions": "x"}})
        )
        await asyncio.to_thread(begun.wait, GUARD_S)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    engine._decisions.decider = Slow()  # type: ignore[assignment]
    asyncio.run(cancel())
    assert ended.wait(GUARD_S)


def test_a_fault_outside_the_pass_hangs_nobody(engine: Engine) -> None:
    def broken() -> Batch:
        raise KeyError("a mistake of ours")

    engine._loop.scheduler.next = broken  # type: ignore[method-assign]
    with pytest.raises(EngineFault, match="a mistake of ours"):
        engine.submit(tree()).result()
    assert engine.fault is not None


def test_closing_ends_what_is_open() -> None:
    engine = make()
    free = hold(engine)
    futures = [engine.submit(tree(seed=i)) for i in range(2)]
    closing = threading.Thread(target=engine.close)
    closing.start()
    time.sleep(0.05)
    free.set()
    closing.join()
    for future in futures:
        assert future.done()
    with pytest.raises(Cancelled):
        engine.submit(tree())


def test_unknown_settings_and_values_out_of_range_are_refused() -> None:
    with pytest.raises(TypeError):
        EngineSettings(max_rounds=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidRequest, match="max_queue"):
        EngineSettings(max_queue=0)
    with pytest.raises(InvalidRequest, match="dtype"):
        EngineSettings(dtype="int3").resolved()
    with pytest.raises(InvalidRequest, match="device"):
        EngineSettings(device="abacus").resolved()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"chunk_size": "1"}, "chunk_size"),
        ({"chunk_size": "-4"}, "chunk_size"),
        ({"chunk_size": "all"}, "chunk_size"),
        ({"chunk_tiers": "4"}, "chunk_tiers"),
        ({"chunk_tiers": "4:1"}, "chunk_tiers"),
        ({"chunk_tiers": "8:4,4:8"}, "chunk_tiers"),
        ({"chunk_tiers": "4:8", "chunk_size": "8"}, "chunk_tiers"),
        ({"mode": "canvas"}, "mode"),
        ({"mode": "block", "chunk_size": "8"}, "chunk_size"),
        ({"mode": "block", "chunk_tiers": "4:8"}, "chunk_tiers"),
        ({"mode": "block", "ahead": True}, "ahead"),
        ({"unmasking_strategy": "random"}, "unmasking_strategy"),
        ({"confidence_threshold": 1.5}, "confidence_threshold"),
        ({"confidence_threshold": float("nan")}, "confidence_threshold"),
        ({"denoising_steps": 0}, "denoising_steps"),
        ({"denoising_steps": 2, "unmasking_strategy": "entropy_bounded"}, "denoising_steps"),
        *(
            ({"confidence_threshold": 0.5, "unmasking_strategy": strategy}, "confidence_threshold")
            for strategy in ("low_confidence_static", "sequential", "entropy_bounded")
        ),
        ({"latency_cache": "x", "mode": "block"}, "latency_cache"),
        ({"latency_cache": "x", "chunk_size": "8"}, "latency_cache"),
        ({"latency_cache": "x", "chunk_tiers": "4:8"}, "latency_cache"),
        ({"latency_cache": "x", "batch_invariant": True}, "latency_cache"),
        ({"memory_cache_bytes": 1, "prefix_caching": False}, "memory_cache_bytes"),
        ({"disk_cache": "x", "prefix_caching": False}, "disk_cache"),
        ({"disk_cache_bytes": 1}, "disk_cache_bytes"),
    ],
)
def test_settings_of_blocks_that_are_refused(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        EngineSettings(**settings)
    assert caught.value.field == field


def test_settings_of_blocks() -> None:
    EngineSettings(chunk_size="2", ahead=True, confidence_threshold=0, denoising_steps=1)
    EngineSettings(chunk_tiers="4:32,32:16,256:8", unmasking_strategy="entropy_bounded")
    EngineSettings(latency_cache="x", ahead=True)
