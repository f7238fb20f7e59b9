"""Reads of several steps: against transformers, one step after the other by hand, and against replies of the writer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import numpy as np
import pytest
import torch
from conftest import Serve
from fixtures.tiny_engine import tiny_engine
from oracles import diffusion_gemma as oracle
from oracles.answers import assert_close

from ramet.decide.decider import Decider
from ramet.decide.plan import Plan
from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.canvas_reply import CanvasReply
from ramet.denoise.noise import Noise
from ramet.engine.engine import Engine
from ramet.errors import InvalidRequest
from ramet.generation import GenerationRequest, Piece
from ramet.request import DecisionRequest
from ramet.tree import WHOLE, Reads
from tests.decide.test_joint import FINE, LENGTH, MOOD, QUESTIONS, STATE, WHO, by_hand, canvases, many, plan, told

# By how much log-probabilities may differ after so many steps: each makes the rounding of the one before larger by an
# order of magnitude, for weights as random as these. What is drawn is the same.
DRIFT = {2: 1e-4, 3: 1e-3, 4: 1e-2}
JOINT = {"state": STATE, "questions": QUESTIONS, "joint": True}


@pytest.fixture(scope="module", params=[False, True], ids=["", "invariant"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    more = {"batch_invariant": request.param, "cache_bytes": 1 << 24}
    with Engine.load(oracle.saved("plain", LENGTH), device="cpu", dtype="float32", **more) as made:
        yield made


def slots_of(engine: Engine, found: Plan) -> list[list[int]]:
    """Of every canvas, also of those slots that are not read there."""
    if found.joint is None:
        return [[0]] * int((found.tree.blocks == WHOLE).sum())
    n = int((found.tree.blocks == WHOLE).sum()) // len(found.joint.canvases)
    return [layout.slots for layout in found.joint.canvases for _ in range(n)]


class Theirs:
    """transformers' model, whose rows but for some take nothing of the step before."""

    def __init__(self) -> None:
        self.model = oracle.load(oracle.saved("plain", LENGTH))
        self.free: list[int] = []
        self.model.model.decoder.self_conditioning.pre_norm.register_forward_pre_hook(self._pin)

    def _pin(self, _: Any, given: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        kept = torch.zeros_like(given[0])
        kept[:, self.free] = given[0][:, self.free]
        return (kept,)

    def last_logits(
        self, engine: Engine, prompt: list[int], canvas: list[int], slots: list[int], number: int, n_steps: int
    ) -> torch.Tensor:
        """[W, V] of the last of n steps, which no canvas here ends before."""
        s, noise, self.free = engine.writer.canvases, Noise.of(None, np.array(prompt, np.int32)), slots
        canvas, before, n = list(canvas), None, len(canvas)
        for step in range(n_steps):
            logits = oracle.canvas_logits(self.model, prompt, canvas, before)
            before = logits / (s.t_min + (s.t_max - s.t_min) * (s.max_steps - step) / s.max_steps)
            p = before.double().softmax(-1)
            entropy = -(p * p.log()).sum(-1)
            order = entropy.argsort(stable=True)
            sure = set(order[(entropy[order].cumsum(0) - entropy[order]) <= s.entropy_bound].tolist())
            u, fresh = noise.uniforms(number, step, n), noise.ids(number, step + 1, n, s.vocab_size)
            for slot in slots:
                drawn = int((p[slot].cumsum(0) > float(u[slot])).nonzero()[0])
                canvas[slot] = drawn if slot in sure else int(fresh[slot])
        return logits


@pytest.fixture(scope="module")
def theirs() -> Theirs:
    return Theirs()


@pytest.mark.parametrize("n_steps", DRIFT)
@pytest.mark.parametrize("joint", [True, False])
def test_steps_are_transformers(engine: Engine, theirs: Theirs, joint: bool, n_steps: int) -> None:
    found = plan(engine, joint=joint)
    names = list(QUESTIONS)
    read: list[tuple[str, torch.Tensor]] = []
    for (path, own), slots in zip(canvases(found), slots_of(engine, found), strict=True):
        logits = theirs.last_logits(engine, path, own, slots, 0, n_steps)
        read += [(names[len(read) + i], logits[slot]) for i, slot in enumerate(slots)]
    once = engine.decide(**JOINT | {"joint": joint})
    decision = engine.decide(**JOINT | {"joint": joint}, x_steps=n_steps)
    for name, row in read:
        if joint or QUESTIONS[name]["type"] != "choice":  # whose labels have one spelling as replies
            probabilities, mass = by_hand(row, QUESTIONS[name])
            np.testing.assert_allclose(told(decision[name]), probabilities, atol=DRIFT[n_steps])
            assert decision[name].x_label_mass == pytest.approx(mass, abs=DRIFT[n_steps])
        assert decision[name] != once[name]
    assert decision.joint == once.joint
    assert decision.usage.input_tokens == once.usage.input_tokens
    assert decision.usage.x_engine_steps == n_steps


@pytest.mark.parametrize("more", [{"joint": False}, {"joint": True}, {"joint": True, "x_samples": 3, "x_debias": 2}])
@pytest.mark.parametrize("n_steps", DRIFT)
def test_a_read_is_what_the_writer_tells_of_the_same_canvas(engine: Engine, more: Any, n_steps: int) -> None:
    """Of the first canvas below each prompt: the writer numbers its canvases from 0, as samples are."""
    found = plan(engine, x_steps=n_steps, **more)
    assert found.read is not None
    engine.follow(found.read).result()
    tree, whole = found.tree, np.flatnonzero(found.tree.blocks == WHOLE).tolist()
    for i, ((path, own), slots) in enumerate(zip(canvases(found), slots_of(engine, found), strict=True)):
        if i % more.get("x_samples", 1):
            continue
        reads = np.flatnonzero(tree.read_segments == whole[i]).tolist()
        columns = [tree.columns[tree.offsets[r] : tree.offsets[r + 1]].tolist() for r in reads]
        ids_read = sorted({i for ids in columns for i in ids})
        request = as_reply(path, own, slots, ids_read, n_steps)
        reply = engine.writer.generate(request)
        assert reply.n_steps == n_steps
        for read, ids in zip(reads, columns, strict=True):
            asked = dict(reply.positions[int(tree.read_rows[read])].listed)
            wanted = [asked[i] for i in ids]
            np.testing.assert_allclose(found.read.reads.logprobs(read), wanted, atol=DRIFT[n_steps])


def test_one_step_is_as_ever(engine: Engine) -> None:
    assert plan(engine, x_steps=1).read is None
    assert engine.decide(**JOINT, x_steps=1).answers == engine.decide(**JOINT).answers


def test_a_read_of_steps_repeats_in_any_company(engine: Engine) -> None:
    """Beside itself, other numbers of steps, plain reads and requests that are refused."""
    asked: list[dict[str, Any]] = [
        JOINT | {"x_steps": 3},
        JOINT | {"x_steps": 3, "x_samples": 4},
        JOINT | {"x_steps": 3, "x_samples": 4, "x_seed": 9},
        {"state": STATE, "questions": many(20), "joint": True, "x_steps": 4},
        {"state": STATE, "questions": {"fine": FINE}, "x_steps": 2},
        JOINT,
        {"state": STATE, "questions": {"mood": MOOD, "fine": FINE}},
    ]
    alone = [engine.decide(**each, cache_salt="alone").answers for each in asked]
    assert alone[1] != alone[2]

    async def together() -> list[Any]:
        faulty = JOINT | {"x_steps": 9}
        work = [engine.decide_async(**each) for each in (*asked, *asked, faulty)]
        return await asyncio.gather(*work, return_exceptions=True)

    *found, error = asyncio.run(together())
    assert isinstance(error, InvalidRequest)
    for wanted, decision in zip(alone * 2, found, strict=True):
        if engine.settings.batch_invariant:
            assert decision.answers == wanted
        else:
            assert_close(decision.answers, wanted, DRIFT[4])
    stats = engine.stats()
    assert stats["pages_free"] + stats["pages_indexed"] == stats["pages"]


def test_a_question_has_the_answer_that_it_has_alone(engine: Engine) -> None:
    both = engine.decide(state=STATE, questions=QUESTIONS, x_steps=4).answers
    for name, question in QUESTIONS.items():
        alone = engine.decide(state=STATE, questions={name: question}, x_steps=4, cache_salt=name).answers
        assert_close({name: both[name]}, alone, 0.0 if engine.settings.batch_invariant else DRIFT[4])


def test_samples_are_taken_step_by_step_too(engine: Engine, theirs: Theirs) -> None:
    found, n = plan(engine, x_samples=3), 3
    each = []
    for number, ((path, own), slots) in enumerate(zip(canvases(found), slots_of(engine, found), strict=True)):
        row = theirs.last_logits(engine, path, own, slots, number, n)[slots[0]]
        each.append(by_hand(row, WHO)[0])
    answer = engine.decide(**JOINT, x_samples=3, x_steps=n)["who"].model_dump()
    np.testing.assert_allclose(list(answer["probabilities"].values()), np.mean(each, 0), atol=DRIFT[n])
    errors = np.std(each, 0, ddof=1) / 3**0.5
    np.testing.assert_allclose(list(answer["x_standard_error"].values()), errors, atol=DRIFT[n])


def test_a_canvas_that_has_settled_is_read_and_leaves(engine: Engine) -> None:
    """Each in its own time: half of them in their first step, by a threshold in the middle of what is seen there."""
    questions = {f"q{i}": FINE | {"instructions": f"Is it {i}?"} for i in range(12)}
    own, asked = engine.decider, {"state": STATE, "questions": questions, "x_steps": 4}
    assert own._canvas is not None
    _, entropies = followed(engine, own.plan(DecisionRequest.parse(asked)))
    threshold = float(np.median(entropies[0]))
    denoising = replace(engine.writer.canvases, stability_threshold=0, confidence_threshold=threshold)
    decider = Decider(own._tokenizer, own._frame, own.settings, replace(own._canvas, denoising=denoising))
    found = decider.plan(DecisionRequest.parse(asked))
    reads, entropies = followed(engine, found)
    n_steps = []
    for read, (path, canvas) in enumerate(canvases(found)):
        columns = found.tree.columns[found.tree.offsets[read] : found.tree.offsets[read + 1]].tolist()
        (piece,) = written(engine, as_reply(path, canvas, [0], columns, 4), denoising)
        wanted = [logprob for _, logprob in piece.positions[0].listed]
        np.testing.assert_allclose(reads.logprobs(read), wanted, atol=DRIFT[max(2, piece.n_steps)])
        n_steps.append(piece.n_steps)
    n_open = [len(each) for each in entropies]
    assert n_open == [sum(n >= step for n in n_steps) for step in range(1, max(n_steps) + 1)]
    assert n_open[:2] == [12, 6]


def followed(engine: Engine, found: Plan) -> tuple[Reads, list[list[float]]]:
    """What a plan's read returns; of each of its trees, the mean entropies of the canvases in it."""
    read, entropies = found.read, list[list[float]]()
    assert read is not None
    take = read.take

    def noted(reads: Reads) -> bool:
        entropies.append([float(stepped.entropy.mean()) for stepped in reads.stepped])
        return take(reads)

    read.take = noted  # type: ignore[method-assign]
    engine.follow(read).result()
    return read.reads, entropies


def as_reply(path: list[int], own: list[int], slots: list[int], columns: list[int], n_steps: int) -> GenerationRequest:
    """The read of a canvas as the writer takes it."""
    pinned = tuple(row for row in range(len(own)) if row not in slots)
    return GenerationRequest(
        tuple(path), canvas_length=len(own), seed_canvas=tuple(own), pinned=pinned, read_only=True,
        max_steps=n_steps, logprob_ids=tuple(columns),
    )  # fmt: skip


def written(engine: Engine, request: GenerationRequest, denoising: CanvasConfig) -> list[Piece]:
    pieces: list[Piece] = []
    engine.follow(CanvasReply(request, denoising, pieces.append)).result()
    return pieces


@pytest.mark.parametrize("wrong", [0, 9, -1, True, "2", 2.5])
def test_the_number_of_steps_is_checked(engine: Engine, wrong: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.decide(**JOINT, x_steps=wrong)
    assert caught.value.field == "x_steps"


def test_models_and_settings_bound_the_steps() -> None:
    with tiny_engine("qwen3") as engine:
        assert engine.decide(state="s", questions=QUESTIONS, x_steps=1).usage.x_engine_steps is None
        with pytest.raises(InvalidRequest, match="only a diffusion model") as caught:
            engine.decide(state="s", questions=QUESTIONS, x_steps=2)
        assert caught.value.field == "x_steps"
    with Engine.load(oracle.saved("plain", LENGTH), device="cpu", max_denoising_steps=3) as engine:
        assert engine.decide(**JOINT, x_steps=3).usage.x_engine_steps == 3
        with pytest.raises(InvalidRequest, match="at most 3 steps here, not 4") as caught:
            engine.decide(**JOINT, x_steps=4)
        assert caught.value.field == "x_steps"


def test_in_two_steps_and_in_chunks() -> None:
    """A prompt that fills several rounds, and canvases that wait for it."""
    settings = {"device": "cpu", "dtype": "float32", "cache_bytes": 1 << 24}
    asked = {"state": STATE, "questions": many(20), "joint": True, "x_steps": 3}
    with Engine.load(oracle.saved("plain", LENGTH), **settings) as engine:
        wanted = engine.decide(**asked).answers
    for more in ({"single_pass_reads": False}, {"max_round_tokens": 160}, {"prefix_caching": False}):
        with Engine.load(oracle.saved("plain", LENGTH), **settings, **more) as engine:
            assert_close(engine.decide(**asked).answers, wanted, DRIFT[3])


def test_over_http(engine: Engine, serve: Serve) -> None:
    url = f"{serve(engine).url}/v1/systemone"
    reply = httpx2.post(url, json=JOINT | {"x_steps": 3})
    assert reply.status_code == 200
    assert_close(reply.json()["answers"], engine.decide(**JOINT, x_steps=3).answers, DRIFT[3])
    refused = httpx2.post(url, json=JOINT | {"x_steps": 9})
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"][-1] == "x_steps"
