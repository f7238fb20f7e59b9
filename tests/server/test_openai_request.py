"""Requests for text: what is taken, what has no effect, what is refused and how that is told."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from fakes.stub_writer import StubWriter

from ramet.errors import InvalidRequest
from ramet.generation import GenerationRequest, Kind
from ramet.server.openai.fields import MAX_PROMPTS
from ramet.server.openai.parameters import NOT_TAKEN, REFUSED, WITHOUT_EFFECT
from ramet.server.openai.request import COMPLETION_TOKENS, ChatRequest, CompletionRequest
from ramet.server.openai.text_request import MAX_LABELS, TextRequest
from tests.text.test_tokenizer_spm import IDS, PLAIN

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
@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
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
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids.0"),
        ({"vllm_xargs": {"diffusion_seed_canvas": [True]}}, "vllm_xargs.diffusion_seed_canvas.0"),
        ({"moderation": {"model": "x"}}, "moderation"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "0"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 0.5}, "top_k"),
        ({"top_k": 1 << 31}, "top_k"),
        ({"confidence_threshold": -0.1}, "confidence_threshold"),
        ({"confidence_threshold": 1.1}, "confidence_threshold"),
        ({"unmasking_strategy": "random"}, "unmasking_strategy"),
        ({"denoising_steps": 0}, "denoising_steps"),
        ({"entropy_bound": 0}, "entropy_bound"),
        ({"chunk_size": 1}, "chunk_size"),
        ({"chunk_size": "8"}, "chunk_size"),
        ({"chunk_size": True}, "chunk_size"),
        ({"chunk_size": 8.5}, "chunk_size"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": 1}}, "stream_options.continuous_usage_stats"),
    ],
)
def test_wrong_values(kind: type[TextRequest], least: dict[str, Any], fields: dict[str, Any], place: str) -> None:
    assert refused(kind, least | fields).field == place


@both
def test_how_ids_are_drawn_and_masks_filled_in(kind: type[TextRequest], least: dict[str, Any]) -> None:
    fields = {"temperature": 0, "top_p": 0.5, "confidence_threshold": 0, "unmasking_strategy": "entropy_bounded",
              "denoising_steps": 4, "entropy_bound": 0.25}  # fmt: skip
    asked = generation(kind, least | fields | {"top_k": -1, "chunk_size": "auto"})
    assert {name: getattr(asked, name) for name in fields} == fields
    assert (asked.top_k, asked.chunk_size) == (0, None)
    asked = generation(kind, least | {"top_k": 3, "chunk_size": 2})
    assert (asked.top_k, asked.chunk_size, asked.temperature) == (3, 2, None)


ASKING: dict[str, Any] = {  # values that ask for something, of fields that some models do not take
    "temperature": 0.5, "top_p": 0.9, "top_k": 1, "confidence_threshold": 0.9, "unmasking_strategy": "sequential",
    "denoising_steps": 4, "entropy_bound": 0.1, "chunk_size": 4, "vllm_xargs": {"diffusion_max_steps": 1},
    "logprob_token_ids": [5], "top_logprobs": 1, "logprobs": 2,
}  # fmt: skip
PASSING: list[tuple[Kind, dict[str, Any]]] = [
    ("canvas", {"temperature": 0}),
    ("canvas", {"temperature": 1, "top_p": 1, "top_k": 0, "chunk_size": "auto"}),
    ("canvas", {"top_k": -1, "vllm_xargs": {"diffusion_max_steps": 1}}),
    ("masks", {"vllm_xargs": {}} | {name: ASKING[name] for name in NOT_TAKEN["canvas"]}),
    ("next", {"vllm_xargs": {}, "temperature": 2, "top_p": 0.1, "top_k": 7, "chunk_size": "auto"}),
]


@both
@pytest.mark.parametrize(("how", "name"), [(how, name) for how, names in NOT_TAKEN.items() for name in names])
def test_what_a_model_does_not_take(kind: type[TextRequest], least: dict[str, Any], how: Kind, name: str) -> None:
    logprobs: dict[str, Any] = {"logprobs": True} if kind is ChatRequest else {"logprobs": 1}
    kind.parse(least | logprobs).check_kind(how)
    if name not in kind.model_fields or (name == "logprobs" and kind is ChatRequest):
        return
    request = kind.parse(least | logprobs | {name: ASKING[name]})
    with pytest.raises(InvalidRequest) as caught:
        request.check_kind(how)
    assert (caught.value.field, caught.value.problems[0].code) == (name, "unsupported_parameter")
    assert len(caught.value.message) > 15


@both
@pytest.mark.parametrize(("how", "fields"), PASSING)
def test_what_asks_for_nothing_passes(
    kind: type[TextRequest], least: dict[str, Any], how: Kind, fields: dict[str, Any]
) -> None:
    kind.parse(least | fields).check_kind(how)


def test_all_that_a_model_does_not_take_is_told_at_once() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatRequest.parse(CHAT | {"temperature": 0.5, "chunk_size": 4, "seed": 1}).check_kind("canvas")
    assert [problem.loc for problem in caught.value.problems] == [("temperature",), ("chunk_size",)]


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
    with pytest.raises(InvalidRequest, match="at least one token"):
        prompts("")
    assert prompts([BOS]) == [(BOS,)]
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


@pytest.mark.parametrize(
    ("create", "kind", "least"),
    [(openai.resources.chat.Completions.create, ChatRequest, CHAT), (openai.resources.Completions.create, *BOTH[1])],
    ids=["chat", "completions"],
)
def test_every_parameter_of_openais_client_is_known(
    create: Callable[..., Any], kind: type[TextRequest], least: dict[str, Any]
) -> None:
    """Taken, without effect, or refused with a remedy; none is an unknown one."""
    transport = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
    for name in set(inspect.signature(create).parameters) - transport - kind.model_fields.keys() - WITHOUT_EFFECT:
        error = refused(kind, least | {name: {"x": 1}})
        assert (error.field, error.problems[0].code) == (name, "unsupported_parameter")
