"""Whole replies of DiffusionGemma in float32 against transformers' generate with the same noise, token for token."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from oracles import denoising
from oracles import diffusion_gemma as oracle
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.canvas_reply import CanvasReply
from ramet.denoise.noise import Noise
from ramet.engine.engine import Engine
from ramet.generation import Generation, GenerationRequest, Piece
from ramet.tree import Tree

NAMES = sorted(oracle.CONFIGS)
WIDTH = 16  # of the oracle's canvases; its windows are 3, 11 and 40
LENGTHS = (2, 14, 50)
SEED = 5
LOOPS: dict[str, dict[str, Any]] = {  # how canvases are denoised: what is accepted, and what stops them
    "published": {},
    "settling": {"sampler_config": 8.0, "confidence_threshold": 3.0},
    "slowly settling": {"sampler_config": 20.0, "confidence_threshold": 3.0, "stability_threshold": 2},
    "at once": {"confidence_threshold": 9.0, "stability_threshold": 0},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # quicker for many small arrays
    yield
    torch.set_num_threads(before)


def generation(loop: str, **told: Any) -> dict[str, Any]:
    """Of generation_config.json."""
    made = {"max_denoising_steps": 12, "max_new_tokens": 3 * WIDTH, "sampler_config": 0.1} | LOOPS[loop] | told
    sampler = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": made["sampler_config"]}
    return made | {"sampler_config": sampler}


def prompt_of(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, oracle.VOCAB_SIZE, length).tolist()


def written(
    name: str, prompt: list[int], told: dict[str, Any], **asked: Any
) -> tuple[Generation, list[Piece], list[Tree]]:
    """Ours, its pieces, and the trees that it took."""
    settings = CanvasConfig.of(denoising.model(name).config, told)
    settings = settings if "eos_token_id" in told else replace(settings, stop_ids=frozenset())
    pieces: list[Piece] = []
    request = GenerationRequest(tuple(prompt), seed=SEED, **asked)
    trees = denoising.follow(denoising.decoder(name), CanvasReply(request, settings, pieces.append))
    return Generation.of(pieces, n_prompt=len(prompt), n_cached=0), pieces, trees


def theirs(name: str, prompt: list[int], told: dict[str, Any]) -> tuple[list[int], list[int]]:
    noise = Noise.of(SEED, np.zeros(0, np.int32))
    return denoising.generated(denoising.model(name), prompt, noise, copy.deepcopy(told))


@pytest.mark.parametrize(
    ("length", "loop"), [*((n, "published") for n in LENGTHS), *((14, loop) for loop in LOOPS if loop != "published")]
)
@pytest.mark.parametrize("name", NAMES)
def test_whole_replies(name: str, length: int, loop: str) -> None:
    prompt, told = prompt_of(length), generation(loop)
    ids, n_steps = theirs(name, prompt, told)
    found, pieces, trees = written(name, prompt, told)
    assert found.tokens == ids
    assert [piece.n_steps for piece in pieces] == n_steps
    assert [piece.finish for piece in pieces] == [None, None, "length"]
    assert len(trees) == sum(n_steps)  # none of them for a finished canvas alone


def test_the_loops_are_what_they_are_called() -> None:
    """Else the test above compares less than it seems to."""
    prompt = prompt_of(14)
    n_steps = {loop: theirs("plain", prompt, generation(loop))[1] for loop in LOOPS}
    assert n_steps["published"] == [12, 12, 12]
    assert n_steps["at once"] == [1, 1, 1]
    assert all(1 < n < 12 for loop in ("settling", "slowly settling") for n in n_steps[loop])


@pytest.mark.parametrize("name", NAMES)
def test_an_end_in_the_middle_of_a_canvas(name: str) -> None:
    """In the second of three, and again among what is dropped behind it."""
    prompt, told = prompt_of(14), generation("settling")
    ids, _ = theirs(name, prompt, told)
    end, other = _middle(ids)
    told |= {"eos_token_id": [end, other], "pad_token_id": 0}
    padded, n_steps = theirs(name, prompt, told)
    found, _, trees = written(name, prompt, told)
    n = padded.index(end) + 1
    assert WIDTH < n < 2 * WIDTH
    assert found.tokens == padded[:n]
    assert padded[n:] == [0] * (2 * WIDTH - n)
    assert (found.finish, found.n_canvases, len(trees)) == ("stop", 2, sum(n_steps))
    ignoring, _, _ = written(name, prompt, told, ignore_eos=True)
    assert ignoring.tokens == ids


def _middle(ids: list[int]) -> tuple[int, int]:
    """An id that comes first in the middle of the second canvas, and one that comes first behind it there."""
    for at in range(WIDTH + 2, 2 * WIDTH - 2):
        for behind in range(at + 1, 2 * WIDTH):
            if ids[at] not in ids[:at] and ids[behind] not in ids[: at + 1]:
                return ids[at], ids[behind]
    raise AssertionError(ids)


@pytest.mark.parametrize("max_tokens", [1, 15, 16, 17, 41])
def test_lengths_that_are_no_multiple_of_the_canvas(max_tokens: int) -> None:
    prompt, told = prompt_of(14), generation("settling", max_new_tokens=max_tokens)
    ids, n_steps = theirs("plain", prompt, told)
    for most, asked in ((max_tokens, {}), (999, {"max_tokens": max_tokens})):
        found, pieces, _ = written("plain", prompt, told | {"max_new_tokens": most}, **asked)
        assert found.tokens == ids[:max_tokens]
        assert found.finish == "length"
        assert [piece.n_steps for piece in pieces] == n_steps


def test_replies_of_an_engine() -> None:
    """Several at once, with pages, rounds and draws of its own; how it denoises is in the checkpoint."""
    told = {"max_denoising_steps": 8, "confidence_threshold": 9.0, "t_min": 0.1, "t_max": 0.3}
    told |= {"sampler_config": EntropyBoundSamplerConfig(entropy_bound=30.0)}
    model = denoising.calm(oracle.load(oracle.saved("plain")))
    vocab_size, none = model.config.text_config.vocab_size, np.zeros(0, np.int32)
    prompts = [np.random.default_rng(n).integers(0, vocab_size, n).tolist() for n in (1, 11, 50, 70)]
    end, _ = _middle(denoising.generated(model, prompts[2], Noise.of(2, none), told | {"max_new_tokens": 40})[0])
    directory = denoising.saved(model, told | {"eos_token_id": [end]})
    with Engine.load(directory, device="cpu", dtype="float32", max_round_tokens=64, cache_bytes=1 << 22) as engine:
        asked = [GenerationRequest(tuple(prompt), seed=i, max_tokens=40) for i, prompt in enumerate(prompts)]

        async def together() -> list[Generation]:
            return await asyncio.gather(*map(engine.writer.generate_async, asked))

        replies = asyncio.run(together())
    for i, (prompt, found) in enumerate(zip(prompts, replies, strict=True)):
        length = {"max_new_tokens": 40, "eos_token_id": [end]}
        ids, n_steps = denoising.generated(model, prompt, Noise.of(i, none), told | length)
        assert found.tokens == (ids[: ids.index(end) + 1] if end in ids[:40] else ids[:40])
        assert (found.n_steps, found.n_canvases) == (sum(n_steps), len(n_steps))
    assert [found.finish for found in replies] == ["length", "length", "stop", "length"]
    assert min(found.n_steps / found.n_canvases for found in replies) < 8


@pytest.mark.parametrize("loop", ["published", "settling"])
@pytest.mark.parametrize("how", ["constrained", "likeliest", "both"])
def test_what_may_be_drawn_and_the_likeliest(loop: str, how: str) -> None:
    """transformers' loop with a processor of logits, and with the likeliest in place of what is drawn."""
    name = "plain"
    prompt, told = prompt_of(14), generation(loop)
    columns = None if how == "likeliest" else tuple(range(3, oracle.VOCAB_SIZE, 5))
    noise = Noise.of(SEED, np.zeros(0, np.int32))
    ids, n_steps = denoising.generated(
        denoising.model(name), prompt, noise, copy.deepcopy(told), columns=columns, likeliest=how != "constrained"
    )
    asked = {} if columns is None else {"constrained": True, "logprob_ids": columns}
    found, pieces, _ = written(name, prompt, told, **asked, temperature=None if how == "constrained" else 0)
    assert found.tokens == ids
    assert [piece.n_steps for piece in pieces] == n_steps
    assert ids != theirs(name, prompt, told)[0]


def test_conditioning_is_part_of_it() -> None:
    """Else the tests above pass without it."""
    prompt, told = prompt_of(14), generation("settling")
    with mock.patch.object(denoising, "soft_of", return_value=None):
        found, _, _ = written("plain", prompt, told)
    assert found.tokens != theirs("plain", prompt, told)[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_read_of_one_step(name: str) -> None:
    """Its log-probabilities are those at temperature 1, of ids asked for and of the likeliest."""
    prompt, canvas, asked = prompt_of(14), prompt_of(7), (9, 3, 198)
    found, _, trees = written(
        name, prompt, generation("published"),
        canvas_length=7, seed_canvas=tuple(canvas), max_steps=1, read_only=True, logprob_ids=asked, n_best=4,
    )  # fmt: skip
    wanted = oracle.canvas_logits(denoising.model(name), prompt, canvas).log_softmax(-1)
    best = wanted.topk(4)
    assert (len(trees), found.finish, found.n_steps) == (1, "length", 1)
    assert found.tokens == best.indices[:, 0].tolist()
    for i, position in enumerate(found.positions):
        assert [each for each, _ in position.best] == best.indices[i].tolist()
        assert [p for _, p in position.best] == pytest.approx(best.values[i].tolist(), abs=1e-5)
        assert [each for each, _ in position.listed] == list(asked)
        assert [p for _, p in position.listed] == pytest.approx(wanted[i, list(asked)].tolist(), abs=1e-5)
    constrained, _, _ = written(
        name, prompt, generation("published"),
        canvas_length=7, seed_canvas=tuple(canvas), max_steps=1, read_only=True, logprob_ids=asked, constrained=True,
    )  # fmt: skip
    within = wanted[:, list(asked)].log_softmax(-1)
    assert constrained.tokens == [asked[i] for i in within.argmax(-1)]
    told = [[p for _, p in position.listed] for position in constrained.positions]
    np.testing.assert_allclose(told, within, atol=1e-5)
