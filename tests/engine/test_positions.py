"""Rows of blocks that are run out of order, with the positions that they have, are those of one pass in order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fixtures.triton_device import DEVICE  # before anything that imports triton
from oracles import block_models, decoders

from ramet.cache.store import Store
from ramet.engine.host import host_for
from ramet.layers.decoder import Decoder
from ramet.ops import choose
from ramet.round import pack
from ramet.tree import WHOLE, IntArray, Read, Segment, Tree
from ramet.units import Unit, Units

BLOCK, PAGE, N_BEFORE = 8, 4, 16
PAGES = np.array([5, 2, 7, 1, 4, 3], np.int32)
NONE = np.zeros(0, np.int32)
CASES = [(name, attention) for name in sorted(block_models.RAW) for attention in ("cpu", "reference")]


def model_of(name: str, attention: str) -> tuple[Decoder, Store]:
    device = DEVICE if attention == "triton" else decoders.CPU
    model = decoders.build(name, choose(device, {"attention": attention}), device)
    return model, decoders.poisoned_store(name, 9, PAGE, device=device)


def hidden(model: Decoder, store: Store, units: Units) -> torch.Tensor:
    """[N, C] of the rows that are read."""
    packed = pack(units)
    work = host_for(model.device).lists(model.planners())(packed)
    return model.hidden((packed.with_work(work) if work else packed).on(model.device), store).cpu()


def read_segment(tokens: IntArray, parent: int = -1, block: int = WHOLE) -> Segment:
    return Segment(tokens, parent, block, [Read(NONE, row, normalize=False) for row in range(len(tokens))])


def slots(first: int, n: int) -> IntArray:
    """Of `n` rows of the path, from one on."""
    rows = np.arange(first, first + n)
    return (PAGES[rows // PAGE] * PAGE + rows % PAGE).astype(np.int32)


def placed(unit: Unit, positions: IntArray) -> Units:
    return replace(Units.of([unit]), positions=positions.astype(np.int32))


@pytest.mark.parametrize(("name", "attention"), [*CASES, pytest.param("sdar", "triton", marks=pytest.mark.slow)])
def test_a_chain_of_whole_segments_is_the_rows_of_its_blocks(name: str, attention: str) -> None:
    """Three rows of a block are in pages, in the order in which they were committed; then the others, and below them
    the block behind, both shuffled; beside units without positions."""
    rng = np.random.default_rng(len(name))
    model, store = model_of(name, attention)
    ids = rng.integers(0, decoders.VOCAB_SIZE, N_BEFORE + 2 * BLOCK).astype(np.int32)
    first, second = (N_BEFORE + i * BLOCK + rng.permutation(BLOCK) for i in range(2))
    other = Unit(Tree.of([read_segment(ids[3:9], block=BLOCK)]))
    expected = hidden(model, store, Units.of([Unit(Tree.of([read_segment(ids, block=BLOCK)]))]))
    alone = hidden(model, store, Units.of([other]))

    prefix = Unit(Tree.of([Segment(ids[:N_BEFORE], block=BLOCK, reads=[Read(NONE)])]), slots=slots(0, N_BEFORE))
    hidden(model, store, Units.of([prefix]))
    block = Unit(Tree.of([read_segment(ids[first])]), PAGES[: N_BEFORE // PAGE], N_BEFORE, slots(N_BEFORE, 3))
    found = hidden(model, store, placed(block, first))
    torch.testing.assert_close(found, expected[first], rtol=1e-4, atol=1e-4)

    tree = Tree.of([read_segment(ids[first[3:]]), read_segment(ids[second], 0)])
    chain = placed(Unit(tree, PAGES[:5], N_BEFORE + 3), np.concatenate((first[3:], second)))
    found = hidden(model, store, Units.joined([Units.of([other]), chain, Units.of([other])]))
    wanted = torch.cat((alone, expected[first[3:]], expected[second], alone))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    by_place = hidden(model, store, Units.of([Unit(tree, PAGES[:5], N_BEFORE + 3)]))
    assert not torch.allclose(by_place, wanted[6:19], rtol=1e-2, atol=1e-2)
