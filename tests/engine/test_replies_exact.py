"""Replies of models that fill in masks, through the engine, against a plain loop over a plain model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from fixtures.tiny_engine import tiny_engine
from oracles import block_models
from oracles.replies import Told, decode

from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine import Engine
from ramet.errors import InvalidRequest
from ramet.generation import Generation, GenerationRequest

BLOCK, N_TOKENS = 8, 21
WHOLE = 2 * BLOCK  # the size of steps of whole blocks
LENGTHS = (1, 7, 8, 17)
SURE = 0.15  # of random weights some rows are that sure, most are not


def loaded(name: str = "sdar", **settings: Any) -> Engine:
    source, _ = block_models.saved(name)
    return tiny_engine(name, source, **{"block_size": BLOCK, "chunk_size": str(BLOCK)} | settings)


@pytest.fixture(scope="module")
def one() -> Iterator[Engine]:
    with loaded() as engine:
        yield engine


def prompts(engine: Engine, lengths: Sequence[int], seed: int = 5) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, engine.shape.vocab_size, n).tolist() for n in lengths]


def asked(prompt: Sequence[int], **how: Any) -> GenerationRequest:
    dynamic = how.get("unmasking_strategy", "low_confidence_dynamic") == "low_confidence_dynamic"
    usual = {"max_tokens": N_TOKENS} | ({"confidence_threshold": SURE} if dynamic else {})
    return GenerationRequest(tuple(prompt), **usual | how)


def wanted(
    engine: Engine, name: str, prompt: Sequence[int], *, unmasking: dict[str, Any] | None = None, **how: Any
) -> Told:
    masking = engine.blocks
    assert masking is not None
    _, model = block_models.saved(name)
    settle = UnmaskPolicy(block=BLOCK, **{"threshold": SURE} | (unmasking or {}))
    given = {
        "block": BLOCK,
        "mask": masking.mask,
        "sizes": [WHOLE],
        "max_tokens": N_TOKENS,
        "stop_ids": masking.stop_ids,
    }
    return decode(model, prompt, unmasking=settle, **given | how)


def assert_same(found: Generation, told: Told) -> None:
    assert (found.tokens, found.finish, found.n_steps) == (told.tokens, told.finish, told.n_steps)


@pytest.mark.parametrize("name", sorted(block_models.RAW))
def test_whole_blocks_after_prompts_of_every_length(name: str) -> None:
    with loaded(name, mode="block", chunk_size="auto") as engine:
        for prompt in prompts(engine, LENGTHS):
            assert_same(engine.writer.generate(asked(prompt)), wanted(engine, name, prompt, mode="block"))


@pytest.mark.parametrize("size", [2, 3, 5, 8])
@pytest.mark.parametrize("name", sorted(block_models.RAW))
def test_chunks_of_every_size(name: str, size: int) -> None:
    with loaded(name, chunk_size=str(size)) as engine:
        for prompt in prompts(engine, (3, 17), seed=size):
            run = WHOLE if size == BLOCK else size
            assert_same(engine.writer.generate(asked(prompt)), wanted(engine, name, prompt, sizes=[run]))


@pytest.mark.parametrize("name", sorted(block_models.RAW))
def test_chunks_of_a_block_are_the_published_loop_in_fewer_steps(name: str) -> None:
    """At every remainder of the prompt's length, with end tokens among its ids, by seeds too."""
    with loaded(name) as engine:
        assert engine.blocks is not None
        ends = [*engine.blocks.stop_ids][:1]
        for n, prompt in enumerate(prompts(engine, range(1, BLOCK + 1), seed=3)):
            for how in ({}, {"temperature": 0.8, "seed": n}):
                ended = [*prompt[:-1], *ends]
                found = engine.writer.generate(asked(ended, max_tokens=3 * BLOCK, **how))
                told = wanted(engine, name, ended, mode="block", max_tokens=3 * BLOCK, **how)
                assert (found.tokens, found.finish) == (told.tokens, told.finish)
                assert found.n_steps <= told.n_steps


@pytest.mark.parametrize("size", [3, BLOCK])
def test_a_reply_is_the_beginning_of_a_longer_one(size: int) -> None:
    with loaded(chunk_size=str(size)) as engine:
        (prompt,) = prompts(engine, [11])
        longest = engine.writer.generate(asked(prompt, max_tokens=40, ignore_eos=True)).tokens
        assert len(longest) == 40
        for n in (1, 4, 5, 6, 12, 13, 14, 21):
            found = engine.writer.generate(asked(prompt, max_tokens=n, ignore_eos=True))
            assert (found.tokens, found.finish) == (longest[:n], "length")


def test_largest_chunks_that_run_ahead() -> None:
    with loaded(ahead=True) as engine:
        for prompt in prompts(engine, (3, 16, 21)):
            assert_same(
                engine.writer.generate(asked(prompt)), wanted(engine, "sdar", prompt, sizes=[BLOCK], ahead=True)
            )


@pytest.mark.parametrize(
    "how",
    [
        {"strategy": "low_confidence_static", "steps": 3},
        {"strategy": "sequential", "steps": 4},
        {"strategy": "entropy_bounded", "entropy_bound": 3.0},
        {"strategy": "low_confidence_dynamic", "steps": 2},
    ],
)
def test_every_strategy(how: dict[str, Any]) -> None:
    fields = {"strategy": "unmasking_strategy", "steps": "denoising_steps", "entropy_bound": "entropy_bound"}
    with loaded(chunk_size="5") as engine:
        for prompt in prompts(engine, (4, 18)):
            found = engine.writer.generate(asked(prompt, **{fields[name]: value for name, value in how.items()}))
            assert_same(found, wanted(engine, "sdar", prompt, unmasking=how, sizes=[5]))


def test_ids_that_are_drawn_by_a_seed() -> None:
    with loaded(chunk_size="4") as engine:
        for seed, prompt in enumerate(prompts(engine, (4, 18, 9))):
            found = engine.writer.generate(asked(prompt, temperature=0.8, seed=seed))
            assert_same(found, wanted(engine, "sdar", prompt, sizes=[4], temperature=0.8, seed=seed))


@pytest.mark.parametrize("max_round_tokens", [32, 4096])
def test_many_at_once_are_as_each_alone(max_round_tokens: int) -> None:
    with loaded(chunk_size="5", max_round_tokens=max_round_tokens) as engine:
        given = prompts(engine, (3, 30, 9, 16, 41, 1, 24, 12))
        with ThreadPoolExecutor(len(given)) as pool:
            found = list(pool.map(lambda prompt: engine.writer.generate(asked(prompt)), given))
        for prompt, reply in zip(given, found, strict=True):
            assert_same(reply, wanted(engine, "sdar", prompt, sizes=[5]))


def test_batch_invariant_replies_do_not_go_by_the_load() -> None:
    with loaded(chunk_size="auto", batch_invariant=True) as engine:
        assert engine.describe()["chunk_size"] == str(BLOCK)
        given = prompts(engine, (3, 30, 9, 16))
        with ThreadPoolExecutor(len(given)) as pool:
            found = list(pool.map(lambda prompt: engine.writer.generate(asked(prompt)), given))
        for prompt, reply in zip(given, found, strict=True):
            assert_same(reply, wanted(engine, "sdar", prompt))
    with pytest.raises(InvalidRequest, match="go by the load") as caught:
        loaded(chunk_size="auto", chunk_tiers="4:8", batch_invariant=True)
    assert caught.value.field == "chunk_tiers"


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_p": 0.0},
        {"top_p": 1.5}, {"top_k": -1}, {"top_k": 1 << 31}, {"seed": 1 << 63}, {"denoising_steps": 0},
        {"confidence_threshold": 2.0}, {"entropy_bound": 0.0}, {"chunk_size": 1}, {"max_tokens": 0},
    ],
)  # fmt: skip
def test_what_is_out_of_range_is_named(one: Engine, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        one.writer.generate(GenerationRequest((5, 6, 7), **wrong))
    assert caught.value.field in wrong


def test_a_prompt_may_hold_the_mask() -> None:
    with loaded(chunk_size="4") as engine:
        assert engine.blocks is not None
        prompt = [engine.blocks.mask] * 11
        found = engine.writer.generate(asked(prompt))
        assert engine.blocks.mask not in found.tokens
        assert_same(found, wanted(engine, "sdar", prompt, sizes=[4]))


def test_what_was_kept_of_a_prompt_changes_nothing() -> None:
    with loaded(chunk_size="4") as engine:
        (prompt,) = prompts(engine, (70,))
        first, second = (engine.writer.generate(asked(prompt)) for _ in range(2))
        assert (first.n_cached, second.n_cached) == (0, 64)
        assert first.tokens == second.tokens
        assert_same(first, wanted(engine, "sdar", prompt, sizes=[4]))
