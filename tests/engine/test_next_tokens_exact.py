"""Causal families write token by token: what transformers writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from fixtures.tiny_engine import MAKERS, checkpoint, tiny_engine
from transformers import AutoModelForCausalLM

from ramet.generation import GenerationRequest

N_TOKENS = 12


def written(source: object, prompt: list[int]) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = torch.tensor([prompt])
    with torch.no_grad():
        for _ in range(N_TOKENS):
            ids = torch.cat([ids, model(input_ids=ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    return ids[0, len(prompt) :].tolist()


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_the_likeliest_tokens_are_those_of_transformers(name: str) -> None:
    source, rng = checkpoint(name), np.random.default_rng(1)
    with tiny_engine(name, max_round_tokens=64) as engine:
        prompts = [rng.integers(0, 200, n).tolist() for n in (1, 5, 17, 100)]
        asked = [GenerationRequest(tuple(p), max_tokens=N_TOKENS, temperature=0.0, ignore_eos=True) for p in prompts]
        with ThreadPoolExecutor(len(asked)) as pool:
            found = list(pool.map(engine.writer.generate, asked))
        for prompt, reply in zip(prompts, found, strict=True):
            assert reply.tokens == written(source, prompt)
            assert (reply.n_steps, reply.n_rows, reply.finish) == (N_TOKENS, N_TOKENS, "length")


def test_a_reply_is_kept_for_the_next_turn() -> None:
    with tiny_engine("qwen3") as engine:
        first = engine.writer.generate(GenerationRequest(tuple(range(40)), 30, temperature=0.0, ignore_eos=True))
        turn = (*range(40), *first.tokens, 7, 8)
        again = engine.writer.generate(GenerationRequest(turn, 5, temperature=0.0, ignore_eos=True))
        assert again.n_cached == 64


@pytest.mark.parametrize("n", [17, 33])
def test_states_that_are_kept_at_the_end_of_a_prompt_stay_as_they_are(n: int) -> None:
    with tiny_engine("qwen3_5") as engine:
        asked = GenerationRequest(tuple(range(n)), N_TOKENS, temperature=0.0, ignore_eos=True)
        found = [engine.writer.generate(asked) for _ in range(3)]
        assert [each.n_cached for each in found] == [0, n - 1, n - 1]
        assert found[0].tokens == found[1].tokens == found[2].tokens


def test_drawn_tokens_follow_the_seed_and_nothing_else() -> None:
    with tiny_engine("qwen3") as engine:
        asked = [GenerationRequest((5, 6, 7), 20, seed=seed, ignore_eos=True) for seed in (1, 1, 2)]
        alone = [engine.writer.generate(each).tokens for each in asked]
        with ThreadPoolExecutor(3) as pool:
            together = [each.tokens for each in pool.map(engine.writer.generate, asked)]
        assert alone == together
        assert alone[0] == alone[1] != alone[2]
