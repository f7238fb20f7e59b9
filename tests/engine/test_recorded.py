"""Whole passes of the Triton kernels, padded as recorded ones are, against transformers in float32.

On a GPU the passes are recorded; elsewhere the kernels are interpreted, at the same fixed places.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import torch
from fixtures.random_trees import first_path, random_tree
from fixtures.triton_device import DEVICE
from oracles import decoders
from oracles.staging import fill, holds, loose, parted, places

from ramet.cache.pages import Pages
from ramet.cache.store import Store
from ramet.engine.batch import Batch
from ramet.engine.graphs import Graphs
from ramet.engine.host import host_for
from ramet.engine.job import Job
from ramet.engine.runner import Runner
from ramet.engine.scheduler import Scheduler
from ramet.engine.staging import Layout, outside
from ramet.layers.decoder import Decoder
from ramet.ops import choose
from ramet.round import Capacity, pack
from ramet.tree import Reads
from ramet.units import Units
from tests.families.test_exactness import assert_equal, drawn

OPS = ("attention", "norm", "linear", "head", "conv", "gated_delta", "experts")
CASES = [(name, max_rows) for name in sorted(decoders.CONFIGS) for max_rows in (50, 600)]
if DEVICE.type == "cpu":  # all ops; interpreted, a pass takes seconds
    CASES = [("qwen3_5-delta-last", 50), ("gemma4-moe", 50), ("llada2_moe", 50)]
N_TREES = 2 if DEVICE.type == "cpu" else None
PAGE, N_PAGES, N_STATES = 16, 120, 40


@cache
def decoder(name: str, *, invariant: bool = False) -> Decoder:
    model = decoders.build(name, choose(DEVICE, dict.fromkeys(OPS, "triton"), invariant=invariant), DEVICE)
    assert model.ops.recordable
    return model


def padded(model: Decoder, store: Store) -> Callable[[Batch], list[Reads]]:
    """Runs batches at the places of a capacity that is larger than needed, its padding and old contents left as the
    round before had them."""
    held = np.full(1 << 20, 1 << 28, np.int32)
    planners = model.planners()

    @np.errstate(all="ignore")  # the rows of padding hold anything
    def run(batch: Batch) -> list[Reads]:
        for source, target in batch.copies:
            store.copy_page(source, target)
        packed = pack(Units.of(batch.units))
        work, lists = parted(planners, packed)
        needs = packed.needs
        capacity = Capacity(needs.rows + 13, needs.reads + 5, needs.forks + 2)
        rooms = {name: n for p in planners if p.inside for name, n in p.room(capacity).items()}
        layout = Layout(capacity, rooms, [name for p in planners if p.inside for name in p.by_row])
        assert holds(layout, needs, work)
        spans, _ = places(layout, behind := loose(packed, lists))
        fill(layout, held, packed, work, behind, spans)
        data = torch.from_numpy(held).to(DEVICE)
        hidden = model.hidden(layout.stream(data, torch.arange(capacity.rows, dtype=torch.int32, device=DEVICE)), store)
        assert len(hidden) == capacity.reads
        return packed.results(*model.read(hidden, outside(data, spans)))[: len(batch.units)]

    return run


def runs(model: Decoder, store: Store, max_rows: int) -> Callable[[Batch], list[Reads]]:
    """As a recorded pass where there is a GPU, as a padded one elsewhere."""
    if DEVICE.type == "cpu":
        return padded(model, store)
    host = host_for(DEVICE)
    graphs = Graphs(model, store, host, max_rows)
    graphs.record()
    runner = Runner(model, store, host, graphs)

    def run(batch: Batch) -> list[Reads]:
        flight = runner.launch(batch)
        assert flight.recorded
        return flight.wait().reads

    return run


@pytest.mark.slow
@pytest.mark.parametrize(("name", "max_round_tokens"), CASES)
def test_random_trees_in_chunks_and_together(name: str, max_round_tokens: int) -> None:
    trees, expected = drawn(name, 0)
    model = decoder(name)
    recurrent = model.shape.recurrent
    pages = Pages(N_PAGES, PAGE, N_STATES if recurrent else 0)
    store = decoders.poisoned_store(name, N_PAGES, PAGE, N_STATES if recurrent else 0, DEVICE)
    scheduler, run = Scheduler(pages, max_round_tokens, PAGE if recurrent else 1), runs(model, store, max_round_tokens)
    jobs = []
    for tree in trees[:N_TREES]:
        n_keep = int(tree.lengths[0]) // PAGE * PAGE if recurrent else first_path(tree)
        marks = tuple(range(PAGE, n_keep + 1, PAGE)) if recurrent else ()
        jobs.append(Job(tree, Future(), n_keep=n_keep, marks=marks))
        scheduler.add(jobs[-1])
    while len(scheduler):
        batch = scheduler.next()
        scheduler.commit(batch, run(batch))
    for job, wanted in zip(jobs, expected, strict=False):
        assert_equal(job.reads, wanted, name)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="records passes")
@pytest.mark.parametrize("name", ["gemma4", "qwen3_5"])
def test_a_pass_recorded_late_leaves_what_is_kept_alone(name: str) -> None:
    model = decoder(name)
    store = decoders.poisoned_store(name, 2, PAGE, 2, DEVICE)
    Graphs(model, store, host_for(DEVICE), 64).warm(Capacity(64, 64, 32))
    for layer in filter(None, store.layers):
        for field in fields(layer):
            assert bool(getattr(layer, field.name).isnan().all())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen3_5-delta-last"] if DEVICE.type == "cpu" else ["qwen3_5", "gemma4"])
def test_the_bits_of_an_answer_do_not_depend_on_its_round(name: str) -> None:
    model, rng = decoder(name, invariant=True), np.random.default_rng(3)
    trees = [random_tree(rng, vocab_size=decoders.VOCAB_SIZE, max_length=40) for _ in range(2)]
    store = decoders.poisoned_store(name, 1, PAGE, 1, DEVICE)
    run = runs(model, store, 1024)

    def read(*jobs: Job) -> list[list[float]]:
        scheduler = Scheduler(Pages(1, PAGE, 0), 1024)
        for job in jobs:
            scheduler.add(job)
        batch = scheduler.next()
        scheduler.commit(batch, run(batch))
        assert not len(scheduler)
        return [job.reads.logits.tolist() for job in jobs]

    together = read(*(Job(tree, Future()) for tree in trees))
    assert together == [read(Job(tree, Future()))[0] for tree in trees]
