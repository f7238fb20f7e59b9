"""Requests for text: what is taken, what has no effect, what is refused and how that is told."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stub_writer import StubWriter
from test_tokenizer_spm import IDS, PLAIN

from ramet.errors import InvalidRequest
from ramet.generation import GenerationRequest
from ramet.server.openai.parameters import REFUSED, WITHOUT_EFFECT
from ramet.server.openai.request import (
    COMPLETION_TOKENS,
    MAX_LABELS,
    MAX_PROMPTS,
    ChatRequest,
    CompletionRequest,
    TextRequest,
)

CHAT = {"messages": [{"role": "user", "content": "ab"}]}
TEXT = {"prompt": "ab"}
BOTH: list[tuple[type[TextRequest], dict[str, Any]]] = [(ChatRequest, CHAT), (CompletionRequest, TEXT)]
both = pytest.mark.parametrize(("kind", "least"), BOTH, ids=["chat", "completions"])
CONVERSATION = StubWriter().conversation
BOS = IDS["<bos>"]


def generation(kind: type[TextRequest], data: dict[str, Any]) -> GenerationRequest:
    (found,) = kind.parse(data).generations(CONVERSATION)
    return found


def refused(kind: type[TextRequest], data: dict[str, Any]) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        kind.parse(data)
    return caught.value


@both
def test_nothing_but_what_is_needed(kind: type[TextRequest], least: dict[str, Any]) -> None:
    limit = COMPLETION_TOKENS if kind is CompletionRequest else None
    assert generation(kind, least) == GenerationRequest(generation(kind, least).prompt, max_tokens=limit)
    names = [name for name in kind.model_fields if name not in least]
    assert kind.parse(least | dict.fromkeys([*names, *REFUSED, *WITHOUT_EFFECT])) == kind.parse(least)


@both
def test_everything(kind: type[TextRequest], least: dict[str, Any]) -> None:
    read = {
        "diffusion_canvas_length": 4, "diffusion_seed_canvas": [7, 8, 9, 10], "diffusion_pinned": [0, 3],
        "diffusion_max_steps": 2, "diffusion_read_only": True, "diffusion_constrained": 0,
    }  # fmt: skip
    asked = {"max_tokens": 3, "seed": 0, "ignore_eos": True, "cache_salt": "s", "logprob_token_ids": [5, 6, 5],
             "vllm_xargs": read}  # fmt: skip
    logprobs = {"logprobs": True} if kind is ChatRequest else {"logprobs": 0}
    found = generation(kind, least | asked | logprobs)
    assert found == GenerationRequest(
        found.prompt, max_tokens=3, seed=0, ignore_eos=True, canvas_length=4, seed_canvas=(7, 8, 9, 10), pinned=(0, 3),
        max_steps=2, read_only=True, constrained=False, logprob_ids=(5, 6), n_best=1, cache_salt="s",
    )  # fmt: skip


@both
@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_what_has_no_effect(kind: type[TextRequest], least: dict[str, Any], name: str) -> None:
    for value in ("x", {"a": [1]}, True, 3):
        assert kind.parse(least | {name: value}) == kind.parse(least)


@both
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_have_an_effect_that_there_is_not(kind: type[TextRequest], least: dict[str, Any], name: str) -> None:
    for value in REFUSED[name].neutral:
        assert kind.parse(json.loads(json.dumps(least | {name: value}))) == kind.parse(least)
    for value in (0.5, 7, "x", {"type": "json_object"}, [1], True not in REFUSED[name].neutral):
        error = refused(kind, least | {name: value})
        assert (error.field, error.problems[0].code) == (name, "unsupported_parameter")
        assert len(error.message) > 15


@both
@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tempurature": 1}, "tempurature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"max_tokens": 3.5}, "max_tokens"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": -(1 << 63) - 1}, "seed"),
        ({"seed": 0.5}, "seed"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop.0"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"stop": "x" * 1001}, "stop.0"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids.0"),
        ({"stream": "true"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usge": True}}, "stream_options.include_usge"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"cache_salt": 1}, "cache_salt"),
        ({"model": 1}, "model"),
        ({"logprob_token_ids": [1]}, "logprob_token_ids"),
        ({"logprob_token_ids": []}, "logprob_token_ids"),
        ({"logprob_token_ids": [1] * (MAX_LABELS + 1)}, "logprob_token_ids"),
        ({"logprob_token_ids": [True]}, "logprob_token_ids.0"),
        ({"vllm_xargs": {"diffusion_steps": 1}}, "vllm_xargs.diffusion_steps"),
        ({"vllm_xargs": {"diffusion_canvas_length": 0}}, "vllm_xargs.diffusion_canvas_length"),
        ({"vllm_xargs": {"diffusion_canvas_length": True}}, "vllm_xargs.diffusion_canvas_length"),
        ({"vllm_xargs": {"diffusion_max_steps": 0}}, "vllm_xargs.diffusion_max_steps"),
        ({"vllm_xargs": {"diffusion_seed_canvas": "ab"}}, "vllm_xargs.diffusion_seed_canvas"),
        ({"vllm_xargs": {"diffusion_pinned": [0.5]}}, "vllm_xargs.diffusion_pinned.0"),
        ({"vllm_xargs": {"diffusion_read_only": 2}}, "vllm_xargs.diffusion_read_only"),
        ({"vllm_xargs": {"diffusion_read_only": "true"}}, "vllm_xargs.diffusion_read_only"),
        ({"vllm_xargs": {"diffusion_constrained": 1}}, "vllm_xargs.diffusion_constrained"),
        ({"vllm_xargs": []}, "vllm_xargs"),
    ],
)
def test_wrong_values(kind: type[TextRequest], least: dict[str, Any], fields: dict[str, Any], place: str) -> None:
    assert refused(kind, least | fields).field == place


@both
@pytest.mark.parametrize("data", [[], "x", None, 3])
def test_no_object(kind: type[TextRequest], least: dict[str, Any], data: Any) -> None:
    assert "should be an object" in refused(kind, data).message


def test_unknown_names_are_compared_with_known_ones() -> None:
    assert "did you mean max_tokens?" in refused(ChatRequest, CHAT | {"max_token": 3}).message


@both
@pytest.mark.parametrize("seed", [0, -1, 1 << 31, (1 << 63) - 1, -(1 << 63)])
def test_seeds(kind: type[TextRequest], least: dict[str, Any], seed: int) -> None:
    assert generation(kind, least | {"seed": seed}).seed == seed


@both
def test_half_a_surrogate_pair_names_its_place(kind: type[TextRequest], least: dict[str, Any]) -> None:
    places = {
        "user": '{"user": "\\ud83d"}', "stop": '{"stop": "\\ud83d"}', "stop.1": '{"stop": ["a", "\\ude00"]}',
        "cache_salt": '{"cache_salt": "\\ud800"}', "model": '{"model": "\\ud83d"}',
        "metadata.k": '{"metadata": {"k": "x\\udcf0"}}',
    }  # fmt: skip
    for place, text in places.items():
        assert refused(kind, least | json.loads(text)).field == place
    nested = json.loads('{"messages": [{"role": "user", "content": "x \\udcf0 y"}]}')
    assert refused(ChatRequest, nested).field == "messages.0.content"
    parts = json.loads('{"messages": [{"role": "user", "content": [{"type": "text", "text": "\\ud83d"}]}]}')
    assert refused(ChatRequest, parts).field == "messages.0.content.0.text"
    assert refused(CompletionRequest, {"prompt": ["a", "\ud83d"]}).field == "prompt.1"


def test_limits_of_a_chat_have_two_names() -> None:
    assert generation(ChatRequest, CHAT | {"max_completion_tokens": 5}).max_tokens == 5
    assert generation(ChatRequest, CHAT | {"max_completion_tokens": 5, "max_tokens": 5}).max_tokens == 5
    assert refused(ChatRequest, CHAT | {"max_completion_tokens": 5, "max_tokens": 6}).field == "max_tokens"
    assert ChatRequest.parse(CHAT | {"max_completion_tokens": 5}).places["max_tokens"] == "max_completion_tokens"
    assert refused(CompletionRequest, TEXT | {"max_completion_tokens": 5}).field == "max_completion_tokens"


def test_logprobs() -> None:
    assert generation(ChatRequest, CHAT).n_best == 0
    assert generation(ChatRequest, CHAT | {"logprobs": True}).n_best == 1
    assert generation(ChatRequest, CHAT | {"logprobs": True, "top_logprobs": 5}).n_best == 5
    assert generation(CompletionRequest, TEXT | {"logprobs": 0}).n_best == 1
    assert generation(CompletionRequest, TEXT | {"logprobs": 5}).n_best == 5
    named = {"logprobs": True, "top_logprobs": 20, "logprob_token_ids": [3]}
    assert generation(ChatRequest, CHAT | named).n_best == 1
    assert refused(ChatRequest, CHAT | {"top_logprobs": 2}).field == "top_logprobs"
    assert refused(ChatRequest, CHAT | {"logprobs": 3}).field == "logprobs"
    assert refused(CompletionRequest, TEXT | {"logprobs": True}).field == "logprobs"
    assert refused(CompletionRequest, TEXT | {"logprobs": -1}).field == "logprobs"


@pytest.mark.parametrize(
    ("kind", "fields", "n", "place"),
    [
        (ChatRequest, CHAT | {"logprobs": True, "top_logprobs": 5}, 5, "top_logprobs"),
        (CompletionRequest, TEXT | {"logprobs": 5}, 5, "logprobs"),
        (CompletionRequest, TEXT | {"logprobs": 9, "logprob_token_ids": [1, 2, 3]}, 3, "logprob_token_ids"),
    ],
)
def test_the_server_says_how_many_logprobs(kind: type[TextRequest], fields: Any, n: int, place: str) -> None:
    request = kind.parse(fields)
    request.check_logprobs(n)
    request.check_logprobs(-1)
    with pytest.raises(InvalidRequest, match="--max-logprobs") as caught:
        request.check_logprobs(n - 1)
    assert caught.value.field == place


def test_prompts() -> None:
    def prompts(prompt: Any) -> list[tuple[int, ...]]:
        return [each.prompt for each in CompletionRequest.parse({"prompt": prompt}).generations(CONVERSATION)]

    a, b = [(BOS, *PLAIN.encode(text)) for text in ("ab", "the")]
    assert prompts("ab") == [a]
    assert prompts(["ab", "the"]) == [a, b]
    assert prompts([5, 6]) == [(5, 6)]
    assert prompts([[5], "ab"]) == [(5,), a]
    assert prompts("") == [(BOS,)]
    assert prompts("<bos>ab")[0].count(BOS) == 1
    for wrong in ([], [[]], [[5], []], 3, {"a": 1}, [True], [1.5], [[1], 2], ["a"] * (MAX_PROMPTS + 1)):
        assert str(refused(CompletionRequest, {"prompt": wrong}).field).startswith("prompt")
    assert refused(CompletionRequest, {}).field == "prompt"


def test_a_completion_is_as_long_as_openai_s_and_a_read_as_its_canvas() -> None:
    assert generation(CompletionRequest, TEXT).max_tokens == COMPLETION_TOKENS
    assert generation(CompletionRequest, TEXT | {"vllm_xargs": {"diffusion_read_only": 1}}).max_tokens is None


def test_the_engine_s_fields_have_the_request_s_names() -> None:
    for kind, least in BOTH:
        places = kind.parse(least).places
        names = {places.get(name, name) for name in GenerationRequest.__dataclass_fields__}
        fields = set(kind.model_fields) | {
            f"vllm_xargs.{name}" for name in type(kind.parse(least).vllm_xargs).model_fields
        }
        assert names <= fields
