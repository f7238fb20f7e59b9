"""Every answer equals that of its question asked alone through transformers, whatever shares the round."""

from __future__ import annotations

from concurrent.futures import Future
from functools import cache

import numpy as np
import pytest
from fixtures.random_trees import first_path, random_tree
from oracles import decoders
from oracles.trees import evaluate

from ramet.cache.pages import Pages
from ramet.engine.host import host_for
from ramet.engine.job import Job
from ramet.engine.runner import Runner
from ramet.engine.scheduler import Scheduler
from ramet.families import FAMILIES
from ramet.tree import Read, Reads, Segment, Tree

MODELS = sorted(decoders.CONFIGS)
SEEDS = {"llama": 4}  # two for the others, whose passes are mostly the same code
CASES = [(name, seed) for name in MODELS for seed in range(SEEDS.get(name, 2))]
TOLERANCE = {True: 1e-4, False: 1e-5}  # on probabilities, with recurrent layers and without


def run(
    model_type: str, trees: list[Tree], *, max_round_tokens: int, n_pages: int = 200, page_size: int = 8,
    n_states: int = 40, spacing: int = 16,
) -> list[Job]:  # fmt: skip
    """All trees through scheduler, pages and pass; checks that every page and state comes back."""
    model = decoders.decoder(model_type)
    n_states = n_states if model.shape.recurrent else 0
    pages = Pages(n_pages, page_size, n_states)
    scheduler = Scheduler(pages, max_round_tokens, page_size if n_states else 1)
    runner = Runner(model, decoders.poisoned_store(model_type, n_pages, page_size, n_states), host_for(model.device))
    jobs = []
    for tree in trees:
        n_keep = int(tree.lengths[0]) if n_states else first_path(tree)
        marks = sorted({*range(spacing, n_keep, spacing), n_keep // page_size * page_size} - {0}) if n_states else []
        jobs.append(Job(tree, Future(), n_keep=max(marks, default=0) if n_states else n_keep, marks=tuple(marks)))
        scheduler.add(jobs[-1])
    while len(scheduler):
        batch = scheduler.next()
        assert batch.units
        assert batch.n_tokens <= max_round_tokens
        scheduler.commit(batch, runner.run(batch))
    assert pages.n_free + pages.n_indexed == n_pages
    assert pages.n_free_states + pages.n_checkpoints == n_states
    pages.index.clear()
    assert (pages.n_free, pages.n_free_states) == (n_pages, n_states)
    return jobs


def assert_equal(found: Reads, expected: Reads, model_type: str) -> None:
    atol = TOLERANCE[decoders.decoder(model_type).shape.recurrent]
    for i in range(len(expected.logsumexp)):
        np.testing.assert_allclose(np.exp(found.logprobs(i)), np.exp(expected.logprobs(i)), atol=atol, rtol=0)


@cache
def drawn(model_type: str, seed: int) -> tuple[list[Tree], list[Reads]]:
    """Random trees, and what transformers makes of each."""
    rng = np.random.default_rng(seed)
    blocks = (4, 16, 1) if FAMILIES[decoders.CONFIGS[model_type].model_type].blocks else (1,)
    trees = [random_tree(rng, vocab_size=decoders.VOCAB_SIZE, blocks=blocks) for _ in range(6)]
    return trees, [evaluate(decoders.oracle(model_type), tree) for tree in trees]


@pytest.mark.parametrize(("model_type", "seed"), CASES)
@pytest.mark.parametrize("max_round_tokens", [16, 50, 4096])
def test_random_trees_together_in_chunks_and_alone(model_type: str, max_round_tokens: int, seed: int) -> None:
    trees, expected = drawn(model_type, seed)
    jobs = run(model_type, trees, max_round_tokens=max_round_tokens)
    for job, wanted in zip(jobs, expected, strict=True):
        assert_equal(job.reads, wanted, model_type)


@pytest.mark.parametrize("model_type", MODELS)
def test_a_state_resumed_from_pages(model_type: str) -> None:
    rng = np.random.default_rng(7)
    state = rng.integers(0, decoders.VOCAB_SIZE, 70).astype(np.int32)

    def tree(n: int) -> Tree:
        questions = [Segment(rng.integers(0, 199, 9), 0, reads=[Read([3, 5, 7])]) for _ in range(3)]
        return Tree.of([Segment(state[:n]), *questions])

    trees = [tree(n) for n in (64, 64, 65, 70, 63, 40)]
    jobs = run(model_type, trees, max_round_tokens=100)
    # the last row that is read is computed again also when every page is there (D9)
    at_checkpoints = decoders.decoder(model_type).shape.recurrent  # which lie at 16, 32, 48 and 64
    assert [job.n_cached for job in jobs] == ([0, 64, 64, 64, 48, 32] if at_checkpoints else [0, 64, 64, 64, 56, 40])
    for t, job in zip(trees, jobs, strict=True):
        assert_equal(job.reads, evaluate(decoders.oracle(model_type), t), model_type)


def test_four_ancestors_with_shared_heads_resume_on_their_own_path() -> None:
    """The state's pages must never stand in for a sibling's: as an empty state's prior hangs beside it."""
    rng = np.random.default_rng(3)
    draw = lambda n: rng.integers(0, decoders.VOCAB_SIZE, n).astype(np.int32)  # noqa: E731
    head, state, question, option = draw(17), draw(40), draw(12), draw(5)

    def tree() -> Tree:
        return Tree.of([
            Segment(head),
            Segment(state, 0), Segment(draw(3), 0),
            Segment(question, 1, reads=[Read([1, 2])]), Segment(question, 2, reads=[Read([1, 2])]),
            Segment(option, 3, reads=[Read([4], row=0), Read([5])]), Segment(option, 4, reads=[Read([4], row=0)]),
        ])  # fmt: skip

    for budget in (20, 4096):
        trees = [tree() for _ in range(3)]
        for t, job in zip(trees, run("llama", trees, max_round_tokens=budget), strict=True):
            assert_equal(job.reads, evaluate(decoders.oracle("llama"), t), "llama")


def test_a_pool_too_small_to_keep_states_changes_no_answer() -> None:
    rng = np.random.default_rng(11)
    trees = [random_tree(rng, vocab_size=decoders.VOCAB_SIZE, max_length=60) for _ in range(8)]
    need = max(-(-t.max_position // 8) for t in trees) + 4
    jobs = run("llama", trees, max_round_tokens=48, n_pages=need)
    for tree, job in zip(trees, jobs, strict=True):
        assert_equal(job.reads, evaluate(decoders.oracle("llama"), tree), "llama")


@pytest.mark.parametrize("model_type", ["llama", "qwen3_5"])
@pytest.mark.parametrize("max_round_tokens", [40, 4096])
def test_equal_trunks_are_computed_once(model_type: str, max_round_tokens: int) -> None:
    rng = np.random.default_rng(5)
    draw = lambda n: rng.integers(0, decoders.VOCAB_SIZE, n).astype(np.int32)  # noqa: E731
    state, empty = draw(70), draw(5)

    def tree(n: int) -> Tree:
        trunks = [Segment(state[:n]), Segment(empty)]
        return Tree.of([*trunks, *(Segment(draw(6), i % 2, reads=[Read([1, 2, 3])]) for i in range(4))])

    trees = [tree(70), tree(70), tree(69), tree(70)]
    jobs = run(model_type, trees, max_round_tokens=max_round_tokens)
    for t, job in zip(trees, jobs, strict=True):
        assert_equal(job.reads, evaluate(decoders.oracle(model_type), t), model_type)


@pytest.mark.parametrize("n_states", [6, 7, 12])
def test_states_that_run_out_change_no_answer(n_states: int) -> None:
    rng = np.random.default_rng(12)
    trees = [random_tree(rng, vocab_size=decoders.VOCAB_SIZE, max_length=60) for _ in range(8)]
    jobs = run("qwen3_5", trees, max_round_tokens=40, n_states=n_states)
    for t, job in zip(trees, jobs, strict=True):
        assert_equal(job.reads, evaluate(decoders.oracle("qwen3_5"), t), "qwen3_5")
