"""Logits that are no numbers are never an answer: the round fails, and what is to blame is found (N12)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from fixtures.live_server import LiveServer, live_server
from fixtures.tiny import llama
from fixtures.tiny_engine import MAKERS, MAX_POSITIONS, tiny_engine
from oracles import block_models
from oracles import diffusion_gemma as diffusion_gemma_oracle

from ramet import cli
from ramet.engine import Engine
from ramet.errors import EngineFault
from ramet.generation import GenerationRequest
from ramet.rows import read_rows
from ramet.tree import Read, Segment, Tree
from tests.server.test_metrics import samples

NOUL = {"a": {"type": "noul", "instructions": "Is it late?"}}
DECISION = {"state": "The parcel has not come.", "questions": NOUL}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
TEXT = {"prompt": "hi", "max_tokens": 4}
ROUTES = {
    "letters": ("/v1/systemone", DECISION | {"x_method": "letters"}),
    "options": ("/v1/systemone", DECISION | {"x_method": "options"}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat, streamed": ("/v1/chat/completions", CHAT | {"stream": True}),
    "text": ("/v1/completions", TEXT | {"temperature": 0}),
    "text, drawn": ("/v1/completions", TEXT | {"temperature": 1}),
    "text, logprobs": ("/v1/completions", TEXT | {"temperature": 0, "logprobs": 1}),
    "text, drawn, logprobs": ("/v1/completions", TEXT | {"temperature": 1, "logprobs": 1}),
    "text, cut": ("/v1/completions", TEXT | {"temperature": 1, "top_k": 3}),
    "text, streamed": ("/v1/completions", TEXT | {"temperature": 0, "stream": True}),
}  # fmt: skip
Poison = Callable[[Engine], None]


def nan_in_a_norm(engine: Engine) -> None:
    engine.model.final_norm[3] = float("nan")


def inf_in_a_norm(engine: Engine) -> None:
    engine.model.layers[-1].mlp.norm[5] = float("inf")  # type: ignore[union-attr]


def huge(engine: Engine) -> None:
    """Finite, and beyond what their products' type holds."""
    engine.model.final_norm.fill_(3e38)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    with tiny_engine("llama", **getattr(request, "param", {})) as engine, live_server(engine) as running:
        yield running


def post(server: LiveServer, path: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(f"{server.url}{path}", json=body)


def health(server: LiveServer) -> tuple[int, dict[str, Any]]:
    reply = httpx2.get(f"{server.url}/health")
    return reply.status_code, reply.json()


def n_failed(server: LiveServer) -> float:
    return {name[0]: value for name, value in samples(server.url).items()}["ramet_engine_failed_rounds_total"]


@pytest.mark.parametrize(
    ("server", "poison"),
    [({}, nan_in_a_norm), ({}, inf_in_a_norm), ({"dtype": "bfloat16"}, huge)],
    indirect=["server"],
)
def test_a_damaged_model_answers_nothing_on_any_route(server: LiveServer, poison: Poison) -> None:
    """The first request that meets it is told, and so are all after it."""
    assert health(server)[1]["status"] == "ok"
    poison(server.engine)  # type: ignore[arg-type]
    for path, body in ROUTES.values():
        reply = post(server, path, body)
        assert reply.status_code == 503, (body, reply.text)
        assert "logits are not finite, whatever is asked: the weights of tiny-llama" in reply.text
    status, told = health(server)
    assert (status, told["status"]) == (503, "broken")
    assert "logits are not finite" in told["fault"]
    assert n_failed(server) == 1


@pytest.mark.parametrize("route", ROUTES)
def test_whatever_route_meets_it_first(route: str) -> None:
    path, body = ROUTES[route]
    with tiny_engine("llama") as engine, live_server(engine) as server:
        nan_in_a_norm(engine)
        reply = post(server, path, body)
        assert reply.status_code == 503, reply.text
        assert "logits are not finite" in reply.text
        assert n_failed(server) == 1
        assert health(server)[0] == 503


BAD, GOOD = 40, 41  # ids of tokens; the first one's row of the embedding is no number


@pytest.fixture
def own_rows() -> Iterator[LiveServer]:
    """A model whose numbers overflow on one token alone."""
    source = llama(tied=False, max_position_embeddings=MAX_POSITIONS)
    with tiny_engine("llama", source) as engine, live_server(engine) as running:
        engine.model.embedding[BAD] = float("inf")
        yield running


def prompt(*ids: int, **more: Any) -> dict[str, Any]:
    return {"prompt": list(ids), "max_tokens": 5, "temperature": 0, "ignore_eos": True, **more}


def test_a_request_whose_own_rows_overflow_fails_alone_and_as_often_as_it_likes(own_rows: LiveServer) -> None:
    expected = post(own_rows, "/v1/completions", prompt(5, GOOD, 7)).json()["choices"]
    for n in range(5):
        reply = post(own_rows, "/v1/completions", prompt(5, BAD, 7))
        assert reply.status_code == 503
        assert "logits are not finite: the model's numbers overflow on this request" in reply.text
        assert health(own_rows) == (200, health(own_rows)[1] | {"status": "ok", "fault": None})
        assert n_failed(own_rows) == n + 1
    assert post(own_rows, "/v1/completions", prompt(5, GOOD, 7)).json()["choices"] == expected


def test_others_of_its_round_are_answered_as_ever(own_rows: LiveServer) -> None:
    good = [(3 + n, GOOD, 7) for n in range(6)]
    lone = [post(own_rows, "/v1/completions", prompt(*ids)).json()["choices"] for ids in good]
    bodies = [prompt(*ids) for pair in zip(good, [(9, BAD, n) for n in range(6)], strict=True) for ids in pair]
    with ThreadPoolExecutor(len(bodies)) as pool:
        replies = [*pool.map(lambda body: post(own_rows, "/v1/completions", body), bodies)]
    assert [reply.status_code for reply in replies] == [200, 503] * 6
    assert [reply.json()["choices"] for reply in replies[::2]] == lone
    assert health(own_rows)[0] == 200


def test_whoever_is_told_finds_the_engine_broken() -> None:
    with tiny_engine("llama") as engine:
        nan_in_a_norm(engine)
        found: list[EngineFault | None] = []
        future = engine.submit(Tree.of([Segment([5], reads=[Read([1])])]))
        future.add_done_callback(lambda _: found.append(engine.fault))
        with pytest.raises(EngineFault):
            future.result()
        assert found == [engine.fault]
        assert found[0] is not None


def test_trees_of_one_round(own_rows: LiveServer) -> None:
    """Reads of several jobs in one round, the bad one among them, on the engine itself."""
    engine = own_rows.engine
    assert isinstance(engine, Engine)
    trees = [Tree.of([Segment([5, i, 7], reads=[Read([1, 2])])]) for i in (30, BAD, 31, 32)]
    lone = [None if i == 1 else engine.submit(tree).result().logits for i, tree in enumerate(trees)]
    futures = [engine.submit(tree) for tree in trees]
    for i, (future, alone) in enumerate(zip(futures, lone, strict=True)):
        if i == 1:
            with pytest.raises(EngineFault, match="logits are not finite"):
                future.result()
        else:
            assert alone is not None
            np.testing.assert_allclose(future.result().logits, alone, rtol=1e-4, atol=1e-5)


def test_a_stream_that_overflows_on_its_way_ends_with_an_error(own_rows: LiveServer) -> None:
    engine = own_rows.engine
    assert isinstance(engine, Engine)
    told = engine.writer.generate(GenerationRequest((5, GOOD, 7), max_tokens=5, temperature=0, ignore_eos=True)).tokens
    at = next(n for n in range(1, 5) if told[n] not in told[:n])
    engine.model.embedding[told[at]] = float("nan")
    reply = post(own_rows, "/v1/completions", prompt(5, GOOD, 7, stream=True, return_token_ids=False))
    events = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert reply.status_code == 200
    assert "logits are not finite" in json.loads(events[-1])["error"]["message"]
    assert len(events) == at + 2  # a piece a token, those up to the one that overflows, and the error
    assert health(own_rows)[0] == 200


@pytest.mark.parametrize("family", sorted(MAKERS))
def test_every_family(family: str) -> None:
    with tiny_engine(family) as engine:
        engine.model.final_norm[0] = float("nan")
        with pytest.raises(EngineFault, match="whatever is asked"):
            engine.decide(state="x", questions=NOUL)
        assert engine.fault is not None


@pytest.mark.parametrize("mode", ["chunk", "block"])
def test_masks_that_are_filled_in(mode: str) -> None:
    source, _ = block_models.saved("sdar")
    with tiny_engine("sdar", source, block_size=8, mode=mode) as engine:
        engine.model.final_norm[0] = float("nan")
        with pytest.raises(EngineFault, match="logits are not finite"):
            engine.writer.generate(GenerationRequest((5, 6, 7), max_tokens=9))


@pytest.mark.parametrize("read_only", [False, True])
def test_canvases(read_only: bool) -> None:
    source = diffusion_gemma_oracle.saved("plain")
    with tiny_engine("diffusion_gemma", source, max_round_tokens=64) as engine:
        engine.model.final_norm[0] = float("nan")
        with pytest.raises(EngineFault, match="logits are not finite"):
            engine.writer.generate(GenerationRequest((5, 6, 7), max_tokens=9, read_only=read_only))
        assert engine.fault is not None


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the commands load is damaged."""
    load = cli.load_engine

    def loaded(source: str, **options: Any) -> Engine:
        engine = load(source, **options)
        nan_in_a_norm(engine)
        return engine

    monkeypatch.setattr("ramet.cli.load_engine", loaded)


def command(*arguments: str) -> Any:
    model = ["-m", str(llama()), "--dtype", "float32", "--device", "cpu", "--cache-bytes", str(1 << 24)]
    return CliRunner().invoke(cli.main, [*arguments, *model], catch_exceptions=False)


@pytest.mark.parametrize(
    "arguments", [("decide", "--state", "x", "--noul", "a=Is it?"), ("generate", "hi", "--max-tokens", "4")]
)
def test_commands_print_one_line(poisoned: None, arguments: tuple[str, ...]) -> None:
    result = command(*arguments)
    assert result.exit_code == 1
    said = [line for line in result.stderr.splitlines() if "Error" in line]
    assert len(said) == 1
    assert said[0].startswith("Error: logits are not finite, whatever is asked")
    assert "Traceback" not in result.output


def test_a_run_stops_with_one_line(poisoned: None, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps(row) for row in (DECISION, CHAT, TEXT)))
    result = command("run", str(rows), "-o", str(tmp_path / "out.jsonl"))
    assert result.exit_code == 1
    assert sum(line.startswith("Error: logits are not finite") for line in result.stderr.splitlines()) == 1
    assert (tmp_path / "out.jsonl").read_text() == ""


def test_a_row_that_overflows_is_an_error_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    load = cli.load_engine

    def loaded(source: str, **options: Any) -> Engine:
        engine = load(source, **options)
        engine.model.embedding[BAD] = float("inf")
        return engine

    monkeypatch.setattr("ramet.cli.load_engine", loaded)
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text("\n".join(json.dumps(prompt(5, n, 7)) for n in (GOOD, BAD, GOOD, BAD, BAD, BAD, GOOD)))
    model = ["-m", str(llama(tied=False)), "--dtype", "float32", "--device", "cpu", "--cache-bytes", str(1 << 24)]
    result = CliRunner().invoke(cli.main, ["run", str(rows), "-o", str(out), *model], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    found = list(read_rows(out))
    assert [row.get("error", {}).get("type") for row in found] == [
        None, "engine_fault", None, "engine_fault", "engine_fault", "engine_fault", None,
    ]  # fmt: skip
    assert found[0]["text"] == found[2]["text"] == found[6]["text"]


def test_numbers_that_are_large_are_numbers() -> None:
    """What is finite passes, however large: the check looks for nothing else."""
    with tiny_engine("llama") as engine:
        engine.model.final_norm.mul_(1e4)
        found = engine.decide(state="x", questions=NOUL)
        assert torch.isfinite(torch.tensor(found.answers["a"].noul))  # type: ignore[union-attr]
        assert engine.stats()["failed_rounds_total"] == 0
