"""The evaluator that other tests trust, against passes written out by hand."""

from __future__ import annotations

import pytest
import torch
from oracles.trees import evaluate, path_tokens, visible
from transformers import LlamaConfig, LlamaForCausalLM

from ramet.tree import WHOLE, Read, Segment, Tree


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.5,
    )
    return LlamaForCausalLM(config).float().eval()


@torch.no_grad()
def test_every_read_is_that_of_its_path_alone(model: LlamaForCausalLM) -> None:
    tree = Tree.of(
        [
            Segment([1, 2, 3], reads=(Read([5, 6], row=0),)),
            Segment([4, 5], 0, reads=(Read([7], normalize=False), Read([8, 9, 10], row=0))),
            Segment([6], 1, reads=(Read([11]),)),
            Segment([7, 8], 0, reads=(Read([12, 12]),)),
        ]
    )
    reads = evaluate(model, tree)
    expected = [
        ([1], [5, 6]),
        ([1, 2, 3, 4, 5], [7]),
        ([1, 2, 3, 4], [8, 9, 10]),
        ([1, 2, 3, 4, 5, 6], [11]),
        ([1, 2, 3, 7, 8], [12, 12]),
    ]
    for read, (ids, columns) in enumerate(expected):
        logits = model(torch.tensor([ids])).logits[0, -1]
        torch.testing.assert_close(torch.from_numpy(reads.columns(read)), logits[columns])
        if tree.normalize[read]:
            assert reads.logsumexp[read] == pytest.approx(float(logits.logsumexp(-1)), abs=1e-5)
        else:
            assert reads.logsumexp[read] != reads.logsumexp[read]


@torch.no_grad()
def test_a_canvas_sees_all_of_itself(model: LlamaForCausalLM) -> None:
    def first_row(canvas: list[int], block: int) -> torch.Tensor:
        tree = Tree.of([Segment([1, 2, 3]), Segment(canvas, 0, block, reads=(Read(list(range(64)), row=0),))])
        return torch.from_numpy(evaluate(model, tree).columns(0))

    torch.testing.assert_close(first_row([4, 5], 1), first_row([4, 6], 1))
    assert (first_row([4, 5], WHOLE) - first_row([4, 6], WHOLE)).abs().max() > 1e-3


def test_blocks_lie_on_the_grid_of_absolute_positions() -> None:
    tree = Tree.of([Segment([1, 2, 3]), Segment([4, 5, 6], 0, block=4)])
    rows = visible(tree, [0, 1])[3:].int().tolist()
    assert rows == [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]]
    assert path_tokens(tree, 1) == [1, 2, 3, 4, 5, 6]
