"""DiffusionGemma by the Triton kernels, in passes recorded where there is a GPU and padded as these elsewhere."""

from __future__ import annotations

import pytest
from fixtures.triton_device import DEVICE
from oracles import decoders
from oracles import diffusion_gemma as oracle

from ramet.ops import choose
from tests.engine.test_recorded import OPS, runs
from tests.families.test_diffusion_gemma import (
    N_PAGES,
    assert_close,
    expected,
    ids,
    probabilities,
    through_rounds,
    tree_of,
)

PAGE, ROWS = 16, 64


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain"] if DEVICE.type == "cpu" else ["plain", "wide"])
def test_in_one_pass_and_resumed(name: str) -> None:
    prompt, *canvases = ids(9, 18, 3, 12)
    model = decoders.made_of(oracle.model(name), choose(DEVICE, dict.fromkeys(OPS, "triton")), DEVICE)
    run = runs(model, decoders.poisoned(model.shape, N_PAGES, PAGE, device=DEVICE), ROWS)
    tree, wanted = tree_of(prompt, *canvases), expected(oracle.model(name), prompt, *canvases)
    jobs, n_rounds = through_rounds(run, [tree, tree], ROWS, PAGE)
    assert (n_rounds, jobs[-1].n_cached) == (2, 16)
    for job in jobs:
        assert_close(probabilities(job.reads), wanted)
