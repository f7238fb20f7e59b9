"""A canvas on its way: what each step is asked, and what it makes of what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.draft import Draft
from ramet.denoise.noise import Noise
from ramet.denoise.sampler import temperature
from ramet.tree import Stepped

WIDTH, N_STEPS = 4, 5
SETTINGS = CanvasConfig(
    vocab_size=1 << 18, canvas_length=8, max_steps=9, t_min=0.4, t_max=0.8, entropy_bound=0.1, stability_threshold=1,
    confidence_threshold=0.5, max_new_tokens=8,
)  # fmt: skip
NOISE = Noise(3)
DRAWN, BEST = (10, 11, 12, 13), (20, 21, 22, 23)
SURE, UNSURE = (0.0,) * WIDTH, (1.0,) * WIDTH


def made(
    n_steps: int = N_STEPS, tokens: Sequence[int] | None = None, pinned: Sequence[int] = (), **changed: int
) -> Draft:
    begun = None if tokens is None else np.array(tokens, np.int32)
    settings = replace(SETTINGS, **changed)
    return Draft(settings, NOISE, 6, width=WIDTH, n_steps=n_steps, tokens=begun, pinned=pinned)


def stepped(
    entropy: Sequence[float] = UNSURE, best: Sequence[int] = BEST, drawn: Sequence[int] = DRAWN, soft: object = None
) -> Stepped:
    likeliest = np.array(best, np.int32)[:, None]
    logprobs = np.zeros(likeliest.shape, np.float32)
    return Stepped(np.array(drawn, np.int32), likeliest, logprobs, np.array(entropy, np.float32), soft)


def test_it_begins_from_noise() -> None:
    draft = made()
    np.testing.assert_array_equal(draft.tokens, NOISE.ids(6, 0, WIDTH, 1 << 18))
    assert made(tokens=(1, 2, 3, 4)).tokens.tolist() == [1, 2, 3, 4]


def test_what_a_step_is_asked() -> None:
    """Temperatures are those of nine steps, of which this canvas takes five."""
    draft, softs = made(), [object() for _ in range(N_STEPS)]
    for i in range(N_STEPS):
        step = draft.step(n_best=3)
        assert (step.rows.tolist(), step.n_best) == ([0, 1, 2, 3], 3)
        np.testing.assert_array_equal(step.uniforms, NOISE.uniforms(6, i, WIDTH))
        assert step.temperature == temperature(SETTINGS, i)
        assert step.soft is (softs[i - 1] if i else None)
        assert step.leaves_soft is (i + 1 < N_STEPS)
        assert draft.take(stepped(soft=softs[i])) is (i + 1 == N_STEPS)
    assert draft.n_taken == N_STEPS


def test_sure_rows_take_what_they_drew_the_others_new_noise() -> None:
    draft = made()
    draft.take(stepped((1.0, 0.01, 0.05, 0.05)))  # 0.11 in all before the first row, 0.06 before the last
    noise = NOISE.ids(6, 1, WIDTH, 1 << 18)
    assert draft.tokens.tolist() == [noise[0], 11, 12, 13]
    draft.take(stepped((0.01, 1.0, 1.0, 1.0), best=(5, 6, 7, 8)))
    noise = NOISE.ids(6, 2, WIDTH, 1 << 18)
    assert draft.tokens.tolist() == [10, 11, noise[2], noise[3]]  # the second is accepted by what is before it


def test_pinned_rows_stay() -> None:
    draft = made(tokens=(1, 2, 3, 4), pinned=(3, 0, 3))
    assert draft.step().pinned.tolist() == [0, 3]  # type: ignore[union-attr]
    draft.take(stepped(SURE))
    assert draft.tokens.tolist() == [1, 11, 12, 4]
    draft.take(stepped(SURE, best=(5, 6, 7, 8), drawn=(30, 31, 32, 33)))
    assert draft.tokens.tolist() == [1, 31, 32, 4]


@pytest.mark.parametrize("stability", [0, 1, 2])
def test_it_ends_once_stable_and_sure(stability: int) -> None:
    draft = made(stability_threshold=stability)
    for _ in range(stability):
        assert not draft.may_end
        assert not draft.take(stepped(SURE))
    assert draft.may_end
    assert draft.step().leaves_soft
    assert draft.take(stepped(SURE))
    assert draft.n_taken == stability + 1


def test_it_goes_on_while_it_changes_or_is_unsure() -> None:
    draft = made()
    assert not draft.take(stepped(SURE, best=(1, 2, 3, 4)))
    assert not draft.take(stepped(SURE, best=(1, 2, 3, 5)))
    assert not draft.take(stepped(UNSURE, best=(1, 2, 3, 5)))
    assert draft.take(stepped(SURE, best=(1, 2, 3, 5)))


def test_its_only_step_may_leave_out_rows() -> None:
    draft = made(n_steps=1)
    step = draft.step(n_rows=2)
    assert step.rows.tolist() == [0, 1]
    np.testing.assert_array_equal(step.uniforms, NOISE.uniforms(6, 0, WIDTH)[:2])
    assert not step.leaves_soft
    assert draft.may_end
    assert draft.take(stepped(UNSURE[:2], BEST[:2], DRAWN[:2]))
    with pytest.raises(AssertionError):
        made().step(n_rows=2)
