"""What max_model_len counts: positions of a prompt and of all that is laid behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import httpx2
import pytest
from conftest import Serve
from fixtures.tiny_engine import tiny_engine
from oracles import block_models
from oracles import diffusion_gemma as oracle

from ramet.decide import prompt
from ramet.engine import Engine
from ramet.errors import RequestTooLong
from ramet.generation import GenerationRequest
from ramet.request import DecisionRequest

LIMIT, BLOCK, WIDTH = 100, 8, 16
IS_ON: dict[str, Any] = {"a": {"type": "noul", "instructions": "Is it on?"}}
TWO = IS_ON | {"b": {"type": "noul", "instructions": "Is it?"}}
NAMES: dict[str, Any] = {
    "a": {"type": "choice", "instructions": "Which?", "criteria": {"on": None, "the user is": None}}
}
DECISIONS: dict[str, tuple[str, dict[str, Any]]] = {  # by kind: the model and what is asked beside the state
    "letters": ("qwen3", {"questions": IS_ON, "x_method": "letters"}),
    "options": ("qwen3", {"questions": NAMES, "x_method": "options"}),
    "recurrent": ("qwen3_5", {"questions": IS_ON, "x_method": "letters"}),
    "canvas": ("diffusion_gemma", {"questions": IS_ON}),
    "samples": ("diffusion_gemma", {"questions": IS_ON, "x_samples": 2}),
    "steps": ("diffusion_gemma", {"questions": IS_ON, "x_steps": 2}),
    "joint": ("diffusion_gemma", {"questions": TWO, "joint": True}),
    "sdar": ("sdar", {"questions": IS_ON}),
    "llada2_moe": ("llada2_moe", {"questions": IS_ON}),
}


@pytest.fixture(scope="module")
def engine_of() -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    @cache
    def load(name: str, limit: int = LIMIT) -> Engine:
        if name == "diffusion_gemma":
            given = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 22, "max_denoising_steps": 2}
            made.append(Engine.load(oracle.saved("plain", 2 * WIDTH), max_model_len=limit, **given))
        elif name in block_models.RAW:
            source, _ = block_models.saved(name)
            made.append(tiny_engine(name, source, block_size=BLOCK, chunk_size=str(BLOCK), max_model_len=limit))
        else:
            made.append(tiny_engine(name, max_model_len=limit))
        return made[-1]

    yield load
    for engine in made:
        engine.close()


def positions(engine: Engine, body: dict[str, Any]) -> int:
    """Counted by hand, from the longest whole prompt."""
    decider, questions = engine.decider, body["questions"]
    tokenizer, frame = decider._tokenizer, decider._frame
    asked = [f"Question: {each['instructions']}" for each in questions.values()]
    if body.get("x_method") == "options":
        ids = frame.prompt(tokenizer, f"{body['state']}\n\n{asked[0]}") + tokenizer.encode("Answer:")
        return len(ids) + max(len(tokenizer.encode(f" {name}")) for name in questions["a"]["criteria"])
    if body.get("joint"):
        listings = [f" {each['instructions']}\nyes\nno" for each in questions.values()]
        joint = decider.plan(DecisionRequest.parse(body)).joint
        assert joint is not None
        words = f"{body['state']}\n\n{prompt.together(listings, 1)}"
        return len(frame.prompt(tokenizer, words)) + joint.canvases[0].width
    n = len(frame.prompt(tokenizer, f"{body['state']}\n\n{asked[0]}\nyes\nno\nAnswer with yes or no only."))
    if engine.blocks is not None:
        return (n // BLOCK + 1) * BLOCK
    return n + (WIDTH if engine.writer.kind == "canvas" else 0)


def of_length(engine: Engine, body: dict[str, Any], wanted: int) -> dict[str, Any]:
    for n in range(4 * LIMIT):
        found = body | {"state": "on." + "x" * n}
        if positions(engine, found) == wanted:
            return found
    raise AssertionError(f"no state gives {wanted} positions")


@pytest.mark.parametrize("kind", DECISIONS)
def test_a_decision_takes_as_many_positions_as_there_are(
    kind: str, engine_of: Callable[..., Engine], serve: Serve
) -> None:
    name, body = DECISIONS[kind]
    limit = 4 * LIMIT if kind == "joint" else LIMIT  # whose prompt is longer
    engine = engine_of(name, limit)
    step, most = (BLOCK, limit // BLOCK * BLOCK) if engine.blocks is not None else (1, limit)
    fits, beyond = (of_length(engine, body, n) for n in (most, most + step))
    url = f"{serve(engine).url}/v1/systemone"
    assert engine.decide(DecisionRequest.parse(fits)).answers
    assert httpx2.post(url, json=fits).status_code == 200
    rounds = engine.stats()["rounds_total"]
    with pytest.raises(RequestTooLong, match=rf"{most + step} tokens; the model takes {limit} \(max_model_len\)"):
        engine.decide(DecisionRequest.parse(beyond))
    reply = httpx2.post(url, json=beyond)
    assert reply.status_code == 413
    assert f"{most + step} tokens; the model takes {limit}" in reply.text
    assert engine.stats()["rounds_total"] == rounds, "refused before any work"


READ: dict[str, Any] = {"read_only": True}
NARROW: dict[str, Any] = {"canvas_length": WIDTH}
TEXTS: dict[str, tuple[str, dict[str, Any], tuple[int, int], list[tuple[int, int]]]] = {
    # by kind: the model, what is asked of canvases; tokens of a prompt and a reply that fit, and those that do not
    "next": ("qwen3", {}, (30, 70), [(31, 70), (30, 71)]),
    "recurrent": ("qwen3_5", {}, (99, 1), [(100, 1), (99, 2)]),
    "masks": ("sdar", {}, (30, 66), [(31, 66), (30, 67)]),
    "masks, at a block's end": ("sdar", {}, (88, 8), [(89, 8), (88, 9)]),
    "masks of LLaDA2": ("llada2_moe", {}, (95, 1), [(96, 1), (95, 2)]),
    "canvases": ("diffusion_gemma", {}, (30, 64), [(37, 64), (30, 65)]),
    "one canvas": ("diffusion_gemma", {}, (68, 1), [(69, 1), (68, 33)]),
    "narrow canvases": ("diffusion_gemma", NARROW, (36, 64), [(37, 64), (36, 65)]),
    "a read": ("diffusion_gemma", READ, (68, 2), [(69, 2)]),
    "a narrow read": ("diffusion_gemma", READ | NARROW, (84, 2), [(85, 2)]),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_text_takes_as_many_positions_as_there_are(kind: str, engine_of: Callable[..., Engine], serve: Serve) -> None:
    name, more, fits, beyond = TEXTS[kind]
    engine = engine_of(name)
    url = f"{serve(engine).url}/v1/completions"
    xargs = {"vllm_xargs": {f"diffusion_{key}": value for key, value in more.items()}} if more else {}

    def write(n_prompt: int, n_tokens: int) -> int:
        ids = tuple(5 + n % 20 for n in range(n_prompt))
        return len(engine.writer.generate(GenerationRequest(ids, n_tokens, ignore_eos=True, **more)).tokens)

    def post(n_prompt: int, n_tokens: int) -> httpx2.Response:
        ids = [5 + n % 20 for n in range(n_prompt)]
        body = {"prompt": ids, "max_tokens": n_tokens, "ignore_eos": True, **xargs}
        return httpx2.post(url, json=body)

    assert write(*fits) == fits[1]
    assert post(*fits).status_code == 200
    rounds = engine.stats()["rounds_total"]
    for n_prompt, n_tokens in beyond:
        with pytest.raises(RequestTooLong, match=rf"prompt of {n_prompt} tokens .* than the \d+ .*\(max_model_len\)"):
            write(n_prompt, n_tokens)
        refused = post(n_prompt, n_tokens)
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        assert f"prompt of {n_prompt} tokens" in refused.json()["error"]["message"]
    assert engine.stats()["rounds_total"] == rounds, "refused before any work"


@pytest.mark.parametrize(
    ("name", "n_prompt", "n_tokens"),
    [("qwen3", 30, 70), ("sdar", 30, 66), ("diffusion_gemma", 30, 64), ("diffusion_gemma", 68, 32)],
)
def test_an_open_length_fills_what_there_is(
    name: str, n_prompt: int, n_tokens: int, engine_of: Callable[..., Engine]
) -> None:
    request = GenerationRequest(tuple(range(5, 5 + n_prompt)), None, ignore_eos=True)
    assert len(engine_of(name).writer.generate(request).tokens) == n_tokens


def test_a_chat_beyond_the_limit(engine_of: Callable[..., Engine], serve: Serve) -> None:
    url = f"{serve(engine_of('qwen3')).url}/v1/chat/completions"
    body = {"messages": [{"role": "user", "content": "on"}], "ignore_eos": True}
    n_prompt = httpx2.post(url, json=body | {"max_tokens": 1}).json()["usage"]["prompt_tokens"]
    for n, status in ((LIMIT - n_prompt, 200), (LIMIT - n_prompt + 1, 400)):
        assert httpx2.post(url, json=body | {"max_tokens": n}).status_code == status
