"""Experts that are chosen evenly: by the op, in our pass and in transformers' alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from ramet.bench.core.canvases import CanvasForm
from ramet.bench.core.products import products
from ramet.bench.core.random_model import EvenRoute, RandomModel, scrambled
from ramet.bench.peers.diffusion import DiffusionPeer
from ramet.bench.reads.sides import Sides
from ramet.engine.settings import EngineSettings
from ramet.ops.route.reference import route, route_grouped

Route = Callable[[torch.Tensor, int, torch.Tensor | None], tuple[torch.Tensor, torch.Tensor]]
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
N_ROWS, N_EXPERTS, N_CHOSEN = 512, 64, 4


def alike(dtype: torch.dtype, spread: float) -> torch.Tensor:
    """Logits [N_ROWS, N_EXPERTS] of rows that are alike; the last twelve are the same."""
    generator = torch.Generator().manual_seed(0)
    common, own = (torch.randn(n, N_EXPERTS, generator=generator) for n in (1, N_ROWS))
    logits = spread * (common + 0.05 * own).to(dtype)
    logits[500:] = logits[500]
    return logits


def grouped(logits: torch.Tensor, n_chosen: int, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return route_grouped(logits.float(), torch.ones(N_EXPERTS), n_chosen, 8, 4, 1.0)


def even_grouped(logits: torch.Tensor, n_chosen: int, scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    return EvenRoute(route_grouped)(logits, torch.ones(N_EXPERTS), n_chosen, 8, 4, 1.0)


@BOTH
@pytest.mark.parametrize("spread", [1.0, 0.02])
@pytest.mark.parametrize(("plain", "even"), [(route, EvenRoute(route)), (grouped, even_grouped)])
def test_rows_that_are_alike_choose_other_experts_and_rows_that_are_the_same_the_same(
    plain: Route, even: Route, spread: float, dtype: torch.dtype
) -> None:
    logits, most = alike(dtype, spread), []
    for each in (plain, even):
        chosen, weights = each(logits, N_CHOSEN, torch.ones(N_EXPERTS))
        assert all(len(set(row)) == N_CHOSEN for row in chosen.tolist())
        assert torch.allclose(weights.float().sum(1), torch.tensor(1.0), atol=0.02)
        assert len(chosen[500:].unique()) == N_CHOSEN
        most.append(int(torch.bincount(chosen[:500].flatten(), minlength=N_EXPERTS).max()))
    assert most[0] > 400
    assert most[1] < 3 * 500 * N_CHOSEN / N_EXPERTS


@BOTH
def test_scrambled_logits_fill_their_range(dtype: torch.dtype) -> None:
    found = scrambled(alike(dtype, 1.0)[:500])
    assert found.dtype == torch.float32
    assert -1 <= float(found.min()) < -0.99
    assert 0.99 < float(found.max()) <= 1
    assert abs(float(found.mean())) < 0.05


def settings(dtype: str) -> EngineSettings:
    return EngineSettings(device="cpu", dtype=dtype, max_round_tokens=512, threads=1).resolved()


def choices(model: RandomModel, sides: Sides) -> Iterator[torch.Tensor]:
    """The experts that the rows of each layer choose, in our pass and then in the peer's."""
    asked, found = sides.draw(CanvasForm.of(188, 32)), []
    yield from (each.chosen for each in products(model.decoder, asked.tree) if each.chosen is not None)
    assert isinstance(sides.peer, DiffusionPeer)
    for place, module in sides.peer.model.named_modules():
        if place.endswith(".router"):
            module.register_forward_hook(lambda _module, _inputs, made: found.append(made[2]))
    sides.peer([asked])
    yield from found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_sides_of_a_read_choose_evenly(dtype: str) -> None:
    model = RandomModel.of("tiny", settings(dtype), even=True)
    with Sides.opened(model, settings(dtype), with_peer=True) as sides:
        found = list(choices(model, sides))
    text = model.config.get_text_config()
    n_layers, n_experts = text.num_hidden_layers, text.num_experts
    assert len(found) == 3 * n_layers  # the peer's prompts and canvases have a pass each
    for chosen in found[: n_layers - 1] + found[n_layers : 2 * n_layers]:  # where there are all rows, or a prompt's
        counts = torch.bincount(chosen.flatten().long(), minlength=n_experts)
        assert int(counts.max()) < 2 * chosen.numel() / n_experts
        assert int(counts.min()) > 0
