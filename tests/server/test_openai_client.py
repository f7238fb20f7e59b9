"""The routes for text through OpenAI's own client, of a tiny random DiffusionGemma: chats, streams, reads."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import openai
import pytest
import torch
from fixtures.live_server import LiveServer, live_server
from fixtures.waiting import wait_until
from oracles import diffusion_gemma as oracle
from transformers import AutoTokenizer

from ramet.engine import Engine
from ramet.server import ServerSettings

NAME = "acme/tiny:v1"
WIDTH = 16  # of the served canvas
HI = [{"role": "user", "content": "Is the user on?"}]
MAX_LEN = 512


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine.load(
        oracle.saved("plain"), device="cpu", dtype="float32", cache_bytes=1 << 24, max_denoising_steps=3,
        max_model_len=MAX_LEN, name=NAME, batch_invariant=True,
    )  # fmt: skip
    with made:
        yield made


@pytest.fixture(scope="module")
def server(engine: Engine) -> Iterator[LiveServer]:
    with live_server(engine, ServerSettings(max_logprobs=32)) as made:
        yield made


@pytest.fixture
def client(server: LiveServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture
def theirs() -> Any:
    return AutoTokenizer.from_pretrained(oracle.saved("plain"))


def chat(client: Any, **fields: Any) -> Any:
    extra = {"ignore_eos": True} | fields.pop("extra_body", {})
    asked = {"model": NAME, "messages": HI, "max_tokens": 40, "seed": 0} | fields
    return client.chat.completions.create(**asked, extra_body=extra)


def test_a_chat_whole_and_streamed(client: Any, theirs: Any) -> None:
    whole = chat(client, logprobs=True, top_logprobs=3)
    (choice,) = whole.choices
    assert (choice.finish_reason, choice.message.role, whole.model) == ("length", "assistant", NAME)
    assert whole.usage.completion_tokens == len(choice.logprobs.content) == 40
    ids = theirs.apply_chat_template(HI, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert whole.usage.prompt_tokens == len(ids)
    assert (whole.usage.x_canvases, whole.usage.total_tokens) == (3, 40 + len(ids))
    assert 3 <= whole.usage.x_steps <= 9
    parts = list(chat(client, logprobs=True, top_logprobs=3, stream=True, stream_options={"include_usage": True}))
    assert len(parts) == 1 + 3 + 1  # the role, three canvases, the usage
    told = [part.choices[0] for part in parts[:-1]]
    assert "".join(each.delta.content for each in told) == choice.message.content
    joined = [p for each in told if each.logprobs for p in each.logprobs.content]
    assert [p.token for p in joined] == [p.token for p in choice.logprobs.content]
    assert [p.logprob for p in joined] == pytest.approx([p.logprob for p in choice.logprobs.content], abs=1e-5)
    assert parts[-1].usage.completion_tokens == 40
    assert parts[-1].usage.prompt_tokens_details.cached_tokens in range(1, len(ids))


@pytest.mark.parametrize("n", [1, 7, 16, 17])
def test_a_text_cut_anywhere_is_the_beginning_of_the_longer_one(client: Any, n: int) -> None:
    """But for half a character at its end."""
    longer = chat(client).choices[0].message.content
    text = chat(client, max_tokens=n).choices[0].message.content
    assert longer.startswith(text.removesuffix("\ufffd"))
    streamed = "".join(part.choices[0].delta.content for part in chat(client, max_tokens=n, stream=True))
    assert streamed == text


def test_a_stop_ends_a_reply_before_it(client: Any) -> None:
    text = chat(client).choices[0].message.content
    stop = text[9:11]
    cut = chat(client, stop=stop)
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == (text[: text.find(stop)], "stop")
    assert cut.choices[0].stop_reason == stop
    assert cut.usage.completion_tokens < 40


def test_completions(client: Any, theirs: Any) -> None:
    asked = {"model": NAME, "max_tokens": 20, "extra_body": {"ignore_eos": True}}
    both = client.completions.create(prompt=["the user", "an answer"], logprobs=2, **asked)
    for text, choice in zip(["the user", "an answer"], both.choices, strict=True):
        ids = theirs(text).input_ids
        for prompt in (text, ids):
            alone = client.completions.create(prompt=prompt, logprobs=2, **asked)
            assert alone.choices[0].text == choice.text
            assert alone.choices[0].logprobs.tokens == choice.logprobs.tokens
            assert alone.usage.prompt_tokens == len(ids)
    assert [len(c.logprobs.top_logprobs) for c in both.choices] == [20, 20]


def test_one_value_an_id_however_many_are_asked_for(client: Any) -> None:
    found: dict[int, list[list[tuple[bytes, float]]]] = {}
    for n in (2, 5, 20):
        content = chat(client, max_tokens=5, logprobs=True, top_logprobs=n).choices[0].logprobs.content
        found[n] = [[(bytes(t.bytes), t.logprob) for t in position.top_logprobs] for position in content]
        for position, told in zip(content, found[n], strict=True):
            assert len(told) == n
            assert [p for _, p in told] == sorted((p for _, p in told), reverse=True)
            assert (bytes(position.bytes), position.logprob) == told[0]
    for few, many in ((2, 5), (5, 20)):
        for less, more in zip(found[few], found[many], strict=True):
            assert less == more[:few]


def read(theirs: Any, n_slots: int = 2) -> tuple[list[int], list[int], list[int]]:
    """A template with slots as an example server of vLLM's makes it: the canvas, the slots and the labels' ids."""
    labels = [theirs.convert_tokens_to_ids(label) for label in ("A", "B", "yes", "no")]
    canvas = theirs.encode("system is user on", add_special_tokens=False)[: WIDTH - 1]
    canvas += [theirs.eos_token_id] + [theirs.pad_token_id] * (WIDTH - 1 - len(canvas))
    slots = [1, 3][:n_slots]
    for slot in slots:
        canvas[slot] = 77 + slot
    return canvas, slots, labels


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_structured_read(client: Any, theirs: Any, constrained: bool, steps: int) -> None:
    """The body that vLLM's example server sends, and what it reads out of the answer, against transformers."""
    canvas, slots, labels = read(theirs)
    pinned = {"diffusion_pinned": [i for i in range(WIDTH) if i not in slots]} if steps > 1 else {}
    body = {
        "logprob_token_ids": labels, "return_tokens_as_token_ids": True,
        "chat_template_kwargs": {"enable_thinking": False},
        "vllm_xargs": {
            "diffusion_seed_canvas": canvas, "diffusion_canvas_length": WIDTH, "diffusion_max_steps": steps,
            "diffusion_read_only": True, "diffusion_constrained": int(constrained), **pinned,
        },
    }  # fmt: skip
    asked = {"max_tokens": WIDTH - 1, "temperature": 1.0, "top_p": 1.0, "logprobs": True, "top_logprobs": 20,
             "extra_body": body}  # fmt: skip
    reply = chat(client, **asked)
    content = reply.choices[0].logprobs.content
    assert (len(content), reply.choices[0].finish_reason) == (WIDTH - 1, "length")
    assert (reply.usage.x_canvases, reply.usage.completion_tokens) == (1, WIDTH - 1)
    prompt = theirs.apply_chat_template(HI, add_generation_prompt=True, tokenize=True, return_dict=False)
    logits = oracle.canvas_logits(oracle.load(oracle.saved("plain")), prompt, canvas)
    for i, position in enumerate(content):
        told = {int(t.token.removeprefix("token_id:")): t.logprob for t in position.top_logprobs}
        assert next(iter(told)) == int(position.token.removeprefix("token_id:")) == max(told, key=lambda k: told[k])
        assert set(told) - set(list(told)[:1]) <= set(labels) <= set(told)
        if constrained:
            assert set(told) == set(labels)
            assert sum(math.exp(p) for p in told.values()) == pytest.approx(1, abs=1e-4)
        if steps == 1:
            columns = labels if constrained else range(logits.shape[1])
            wanted = logits[i, list(columns)].double().log_softmax(-1)
            for token, logprob in told.items():
                assert logprob == pytest.approx(float(wanted[list(columns).index(token)]), abs=1e-4)
    again = chat(client, **asked)
    assert [p.logprob for p in again.choices[0].logprobs.content] == [p.logprob for p in content]


def test_a_read_of_ids(client: Any, theirs: Any) -> None:
    """The other body of that server: a prompt in ids, and logprobs by ids as keys."""
    canvas, slots, labels = read(theirs)
    prompt = theirs.apply_chat_template(HI, add_generation_prompt=True, tokenize=True, return_dict=False)
    extra = {
        "logprob_token_ids": labels, "return_tokens_as_token_ids": True,
        "vllm_xargs": {"diffusion_seed_canvas": canvas, "diffusion_canvas_length": WIDTH, "diffusion_max_steps": 1,
                       "diffusion_read_only": True},
    }  # fmt: skip
    reply = client.completions.create(model=NAME, prompt=prompt, max_tokens=WIDTH, logprobs=20, extra_body=extra)
    rows = reply.choices[0].logprobs.top_logprobs
    wanted = oracle.canvas_logits(oracle.load(oracle.saved("plain")), prompt, canvas).double().log_softmax(-1)
    for slot in slots:
        found = {int(key.split(":")[1]): value for key, value in rows[slot].items()}
        assert torch.tensor([found[i] for i in labels]) == pytest.approx(wanted[slot, labels].float(), abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"diffusion_canvas_length": WIDTH + 1}, "diffusion_canvas_length"),
        ({"diffusion_seed_canvas": [1] * (WIDTH - 1)}, "diffusion_seed_canvas"),
        ({"diffusion_seed_canvas": [1 << 30] * WIDTH}, "diffusion_seed_canvas"),
        ({"diffusion_seed_canvas": [1] * WIDTH, "diffusion_pinned": [WIDTH]}, "diffusion_pinned"),
        ({"diffusion_pinned": [0]}, "diffusion_pinned"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_reads_that_do_not_fit(client: Any, arguments: dict[str, Any], place: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, stream=stream, extra_body={"vllm_xargs": arguments})
    assert caught.value.param == f"vllm_xargs.{place}"


@pytest.mark.parametrize("stream", [False, True])
def test_more_than_the_model_takes(client: Any, stream: bool) -> None:
    for fields in ({"messages": [{"role": "user", "content": "on " * MAX_LEN}]}, {"max_tokens": MAX_LEN}):
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, stream=stream, **fields)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", next(iter(fields)))
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=NAME, prompt=[1 << 30], stream=stream)
    assert wrong.value.param == "prompt"


@pytest.mark.parametrize("seed", [0, -1, 1 << 31, (1 << 63) - 1])
def test_a_seed_holds_whatever_is_beside_it(server: LiveServer, seed: int) -> None:
    """Alone, beside replies with and without seeds, and twice at once."""
    alone = asyncio.run(texts(server, [seed]))
    assert asyncio.run(texts(server, [None] * 5 + [seed]))[-1:] == alone
    assert asyncio.run(texts(server, [3, 4, 5, 6, 7, seed]))[-1:] == alone
    assert asyncio.run(texts(server, [seed, seed])) == alone * 2
    assert asyncio.run(texts(server, [seed + 1 if seed < 1 << 62 else 1])) != alone


async def texts(server: LiveServer, seeds: Sequence[int | None]) -> list[str]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as client:
        replies = await asyncio.gather(*(chat(client, seed=seed, max_tokens=24) for seed in seeds))
    return [reply.choices[0].message.content for reply in replies]


def test_seeds_out_of_range_are_told_the_limit(client: Any) -> None:
    for seed in (1 << 63, -(1 << 63) - 1):
        with pytest.raises(openai.BadRequestError, match=r"9223372036854775807|-9223372036854775808") as caught:
            chat(client, seed=seed)
        assert caught.value.param == "seed"


def test_without_a_seed_a_request_repeats(client: Any) -> None:
    first, again = (chat(client, seed=None).choices[0].message.content for _ in range(2))
    assert first == again


def test_a_client_that_leaves_frees_its_pages(client: Any, engine: Engine) -> None:
    cancelled = engine.stats()["cancelled_total"]
    stream = chat(client, stream=True, max_tokens=400)
    for _, part in zip(range(3), stream, strict=False):
        assert part.choices
    stream.close()
    wait_until(lambda: engine.stats()["open_requests"] == 0)
    assert engine.stats()["cancelled_total"] == cancelled + 1
    wait_until(lambda: _all_back(engine.stats()))


def _all_back(stats: dict[str, float]) -> bool:
    return stats["pages_free"] + stats["pages_indexed"] == stats["pages"]


def test_a_model_s_name_may_have_a_slash(client: Any) -> None:
    assert client.models.retrieve(NAME).id == NAME
    assert NAME in [model.id for model in client.models.list()]
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("acme/none")
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, model="acme/none")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_what_makes_no_sense_is_refused_by_name(client: Any) -> None:
    for fields in ({"temperature": -1}, {"top_p": 0.9}, {"n": 2}, {"response_format": {"type": "json_object"}},
                   {"tools": [{"type": "function", "function": {"name": "f"}}]}, {"logit_bias": {"1": 2}}):  # fmt: skip
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, **fields)
        assert caught.value.param == next(iter(fields))


def test_many_mixed_clients_at_once(server: LiveServer) -> None:
    """Chats, decisions about a long state, completions of two prompts and requests over the limit: each is answered as
    it is alone, and nothing of one shows in another."""
    question = {"a": {"type": "noul", "instructions": "Is the user on?"}}
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 8, "seed": 1}),
        ("/v1/systemone", {"state": "The system was on with the user. " * 12, "questions": question}),
        ("/v1/completions", {"prompt": ["the user", "yes and no"], "max_tokens": 6}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "on " * MAX_LEN}]}),
        ("/v1/chat/completions", {"messages": HI, "max_tokens": 8, "seed": 1, "stream": True}),
    ]
    alone = [asyncio.run(answers(server, [kind]))[0] for kind in kinds]
    assert [status for status, _ in alone] == [200, 200, 200, 400, 200]
    together = asyncio.run(answers(server, [kinds[i % 5] for i in range(64)]))
    for i, found in enumerate(together):
        assert found == alone[i % 5]


async def answers(server: LiveServer, kinds: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[int, Any]]:
    """Status, and what does not change from one time to the next."""
    import httpx2

    async with httpx2.AsyncClient(base_url=server.url, limits=httpx2.Limits(max_connections=64)) as client:
        replies = await asyncio.gather(*(client.post(path, json=body) for path, body in kinds))
    return [(reply.status_code, _lasting(reply.text)) for reply in replies]


def _lasting(text: str) -> Any:
    if text.startswith("data: "):
        parts = [json.loads(line[6:]) for line in text.split("\n\n")[:-2]]
        return "".join(part["choices"][0]["delta"]["content"] for part in parts)
    body = json.loads(text)
    if "choices" in body:
        return [choice.get("text") or choice["message"]["content"] for choice in body["choices"]]
    return body.get("answers", body.get("error"))
