"""The residual stream is float32, whatever dtype products take."""

from __future__ import annotations

import pytest
import torch
from fixtures import tiny

from ramet.engine.load import load_model
from ramet.engine.settings import EngineSettings
from ramet.layers.layer import Layer
from ramet.layers.run import LayerRun
from ramet.round import Queries, pack
from ramet.tree import Read, Segment, Tree
from ramet.units import Unit, Units
from ramet.weights import open_checkpoint

FAMILIES = [tiny.llama, tiny.qwen3_5, tiny.qwen3_5_moe, tiny.gemma4]


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_every_layer_takes_and_leaves_float32(make: object, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EngineSettings(device="cpu", dtype="bfloat16").resolved()
    model = load_model(open_checkpoint(make()), settings)  # type: ignore[operator]
    seen: list[torch.dtype] = []
    call = Layer.__call__

    def watched(self: Layer, x: torch.Tensor, run: LayerRun, given: Queries, queries: Queries) -> torch.Tensor:
        out = call(self, x, run, given, queries)
        seen.extend((x.dtype, out.dtype))
        return out

    monkeypatch.setattr(Layer, "__call__", watched)
    tree = Tree.of([Segment([1, 2, 3, 4]), Segment([5, 6], parent=0, reads=(Read([1, 2]),))])
    hidden = model.hidden(pack(Units.of([Unit(tree)])).on(model.device), None)
    assert set(seen) == {torch.float32}
    assert hidden.dtype == torch.bfloat16
