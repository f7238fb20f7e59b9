"""The products of a pass, found and replayed without knowing families, and the arithmetic between them."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from oracles import decoders

from ramet.bench.core.floor import Floor, attention_flop, delta_flop
from ramet.bench.core.products import products
from ramet.bench.core.shapes import DecisionShape, Prompt
from ramet.layers.attention import AttentionShape
from ramet.layers.gated_delta import DeltaShape
from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.shape import ModelShape
from ramet.round import pack
from ramet.tree import Tree
from ramet.units import Unit, Units

WORK = DecisionShape(20, 3, 5)


def _tree(work: DecisionShape = WORK) -> Tree:
    return Prompt.draw(work, random.Random(0), decoders.VOCAB_SIZE).tree([1, 2])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5", "qwen3_5_moe", "gemma4", "gemma4-moe"])
def test_products_are_those_of_the_pass(name: str) -> None:
    """What is found is what transformers' own linear layers would multiply, less the rows that nobody reads."""
    model = decoders.decoder(name)
    found = products(model, _tree())
    multiplied = sum(p.flop for p in products(model, _every_row_read()))
    # Every row a row of its own, all read: each weight of a product meets each row once.
    assert multiplied == 2 * WORK.n_stream * _weights_met_by_a_row(name)
    assert 0 < sum(p.flop for p in found) < multiplied


def _every_row_read() -> Tree:
    from ramet.tree import Read, Segment

    ids = random.Random(0).choices(range(decoders.VOCAB_SIZE), k=WORK.n_stream)
    return Tree.of([Segment(ids, reads=[Read([1], row=i) for i in range(len(ids))])])


def _weights_met_by_a_row(name: str) -> int:
    """Of transformers' model, its embeddings, head, convolutions and unused projections left out."""
    model, config = decoders.oracle(name), decoders.CONFIGS[name]
    linear = sum(
        module.weight.numel()
        for place, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and place != "lm_head" and not _idle(place, model, config)
    )
    routers = sum(p.numel() for place, p in model.named_parameters() if place.endswith(("mlp.gate.weight",)))
    stacked = sum(p.numel() for place, p in model.named_parameters() if ".experts." in place and p.dim() == 3)
    share = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None) or 0
    return linear + routers + (stacked * share // config.num_experts if stacked else 0)


def _idle(place: str, model: Any, config: Any) -> bool:
    """Keys and values of layers that read another's."""
    shared = getattr(config, "num_kv_shared_layers", 0) or 0
    parts = place.split(".")
    if not shared or parts[-1] not in ("k_proj", "v_proj"):
        return False
    return int(parts[parts.index("layers") + 1]) >= config.num_hidden_layers - shared


def test_rows_that_nobody_reads_are_not_counted() -> None:
    found = [p for p in products(decoders.decoder("qwen3"), _tree()) if p.chosen is None]
    assert [p.n_rows for p in found[:5]] == [WORK.n_stream] * 5
    assert sorted(p.n_rows for p in found[-5:]) == [WORK.n_questions] * 4 + [WORK.n_stream]  # its keys and values


def test_experts_are_called_with_the_choices_of_the_pass() -> None:
    config = decoders.CONFIGS["qwen3_5_moe"]
    found = [p for p in products(decoders.decoder("qwen3_5_moe"), _tree()) if p.chosen is not None]
    assert len(found) == config.num_hidden_layers
    first = found[0]
    assert first.chosen is not None
    assert tuple(first.chosen.shape) == (WORK.n_stream, config.num_experts_per_tok)
    assert first.flop == 2 * WORK.n_stream * config.num_experts_per_tok * 3 * 40 * 96


def test_the_model_stays_as_it_was() -> None:
    model = decoders.decoder("qwen3_5_moe")
    stream, layers = pack(Units.of([Unit(_tree())])).on(model.device), list(model.layers)
    before = model(stream, None)[0]
    found = products(model, _tree())
    n_found = len(found)
    assert model.layers == layers
    assert torch.equal(model(stream, None)[0], before)
    assert len(found) == n_found


@pytest.mark.parametrize("name", ["llama", "gemma4-moe", "qwen3_5_moe"])
def test_a_floor_runs_every_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoders.decoder(name)
    found = products(model, _tree())
    n_calls = 0

    def counted(call: Any) -> Any:
        def run(x: torch.Tensor) -> Any:
            nonlocal n_calls
            n_calls += 1
            return call(x)

        return run

    floor = Floor(found, model.device)
    monkeypatch.setattr(floor, "_calls", [(counted(call), x) for call, x in floor._calls])
    floor()
    assert n_calls == len(found)


def _shape(*mixers: AttentionShape | DeltaShape) -> ModelShape:
    layers = tuple(LayerShape(mixer, MLPShape(8)) for mixer in mixers)
    return ModelShape(vocab_size=9, hidden_size=8, layers=layers, eps=1e-6, max_positions=99)


def test_attention_is_counted_row_by_row() -> None:
    full, slid = (AttentionShape(n_heads=2, n_kv_heads=1, head_dim=3, scale=1.0, window=w) for w in (0, 4))
    work = DecisionShape(5, 2, 3)
    seen = [1, 2, 3, 4, 5, *[6, 7, 8] * 2]
    whole, last = sum(seen), 8 * 2
    a_key = 4 * 2 * 3
    assert attention_flop(_shape(full, full), work) == a_key * (whole + last)
    assert attention_flop(_shape(slid, full), work) == a_key * (sum(min(n, 4) for n in seen) + last)
    assert attention_flop(_shape(full, slid), work) == a_key * (whole + 4 * 2)


def test_the_delta_rule_is_counted_apart() -> None:
    delta = DeltaShape(n_key_heads=1, n_value_heads=2, key_dim=3, value_dim=5, conv_width=4)
    full = AttentionShape(n_heads=2, n_kv_heads=1, head_dim=3, scale=1.0)
    work = DecisionShape(5, 2, 3)
    assert delta_flop(_shape(delta, full), work) == 6 * 2 * 3 * 5 * 11
    assert delta_flop(_shape(full, delta), work) == 2 * 2 * 3 * 5 * (2 * 11 + 2)  # its answers to two rows alone
    assert attention_flop(_shape(delta), work) == delta_flop(_shape(full), work) == 0
