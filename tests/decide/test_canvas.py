"""Questions to a diffusion model: a canvas a question, read in one step, against transformers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import tiny
from oracles import diffusion_gemma as oracle
from oracles.answers import assert_close
from tokenizers import AddedToken

from ramet.decide.budget import Budget
from ramet.decide.canvas import GRAIN, Canvas, thoughtless
from ramet.decide.plan import Plan
from ramet.engine.engine import Engine
from ramet.errors import CheckpointError, InvalidRequest, RequestTooLong
from ramet.request import DecisionRequest
from ramet.text.chat import frame
from ramet.text.tokenizer import Tokenizer
from ramet.tree import WHOLE

QUESTIONS: dict[str, Any] = {
    "who": {
        "type": "choice",
        "instructions": "Who?",
        "criteria": {"a user": "writes", "the system": None, "me": None},
    },
    "fine": {"type": "noul", "instructions": "Is it fine?"},
    "mood": {"type": "score", "instructions": "How is it?", "criteria": ["bad", "fair", "good"]},
}
STATE = "The user asked the system for an answer, and it was on. " * 8


@pytest.fixture(scope="module", params=[False, True], ids=["", "invariant"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    more = {"batch_invariant": request.param, "cache_bytes": 1 << 24}
    with Engine.load(oracle.saved("plain"), device="cpu", dtype="float32", **more) as made:
        yield made


def plan(engine: Engine, state: str = STATE, **more: Any) -> Plan:
    return engine.decider.plan(DecisionRequest.parse({"state": state, "questions": QUESTIONS, **more}))


def prompts_and_canvases(found: Plan) -> list[tuple[list[int], list[int]]]:
    """Of every canvas: the ids on its path, and its own."""
    tree, pairs = found.tree, []
    own = [tree.tokens[a : a + n].tolist() for a, n in zip(tree.starts, tree.lengths, strict=True)]
    for s in np.flatnonzero(tree.blocks == WHOLE).tolist():
        path, above = list[int](), int(tree.parents[s])
        while above >= 0:
            path, above = own[above] + path, int(tree.parents[above])
        pairs.append((path, own[s]))
    return pairs


def test_canvases_that_are_too_many_are_refused_before_they_are_made(engine: Engine) -> None:
    asked = DecisionRequest.parse({"state": "s", "questions": QUESTIONS, "x_samples": 32, "x_debias": 2})
    n = 3 * 32 * 2 * GRAIN
    with pytest.raises(RequestTooLong, match=f"the canvases have at least {n} tokens in all, {n - 1} at most"):
        engine.decider.plan(asked, Budget(n - 1))
    assert engine.decider.plan(asked, Budget(2 * n)).tree.n_tokens > n
    with pytest.raises(RequestTooLong, match=r"canvases .* 65536 at most"):
        engine.decide(state="s", questions={str(i): QUESTIONS["who"] for i in range(50)}, samples=32, debias=3)


def test_a_canvas_a_question(engine: Engine) -> None:
    found = plan(engine)
    tokenizer, pairs = engine.decider._tokenizer, prompts_and_canvases(found)
    canvas = Canvas.of(tokenizer, engine.decider._frame, engine.writer.canvases)
    assert len(pairs) == len(QUESTIONS)
    for prompt, ids in pairs:
        assert tokenizer.decode(prompt).startswith("<|im_start|>user\nThe user asked")
        assert ids[1:] == [tokenizer.control["<|im_end|>"], *[tokenizer.control["<|endoftext|>"]] * (GRAIN - 2)]
        assert 0 <= ids[0] < canvas.denoising.vocab_size
    assert (found.tree.blocks[found.tree.read_segments] == WHOLE).all()
    assert (found.tree.read_rows == 0).all()
    assert found.trunk == found.tree.lengths[0]


def test_noise_is_the_prompts_own(engine: Engine) -> None:
    noise = [ids[0] for _, ids in prompts_and_canvases(plan(engine))]
    assert noise == [ids[0] for _, ids in prompts_and_canvases(plan(engine))]
    alone = {"state": STATE, "questions": {"x": QUESTIONS["fine"]}}
    assert prompts_and_canvases(engine.decider.plan(DecisionRequest.parse(alone)))[0][1][0] == noise[1]
    others = [ids[0] for _, ids in prompts_and_canvases(plan(engine, STATE + "Or not."))]
    assert len({*noise, *others}) > len(noise)


def test_a_seed_draws_the_noise_of_each_prompt_anew(engine: Engine) -> None:
    noise = {seed: [ids[0] for _, ids in prompts_and_canvases(plan(engine, x_seed=seed))] for seed in (None, 0, 1, -1)}
    assert noise[0] == [ids[0] for _, ids in prompts_and_canvases(plan(engine, x_seed=0))]
    assert noise[0] == [ids[0] for _, ids in prompts_and_canvases(plan(engine, seed=0))]
    assert len(set(map(tuple, noise.values()))) == len(noise)
    assert all(len(set(ids)) > 1 for ids in noise.values())  # no two questions begin alike
    samples = [ids[0] for _, ids in prompts_and_canvases(plan(engine, x_seed=1, x_samples=8))]
    assert samples[::8] == noise[1]
    assert len(set(samples)) > len(samples) // 2


def test_a_seeded_read_repeats_in_any_company(engine: Engine) -> None:
    """Beside the same questions with another seed and with none."""
    seeds = [None, 3, 4, 3]
    alone = [engine.decide(state=STATE, questions=QUESTIONS, seed=seed).answers for seed in seeds]

    async def together() -> list[Any]:
        return await asyncio.gather(
            *(engine.decide_async(state=STATE, questions=QUESTIONS, seed=seed) for seed in seeds)
        )

    for wanted, found in zip(alone, asyncio.run(together()), strict=True):
        assert_close(found.answers, wanted, 0.0 if engine.settings.batch_invariant else 1e-4)
    assert alone[1] == alone[3]
    assert alone[0] != alone[1] != alone[2]


def test_answers_are_transformers(engine: Engine) -> None:
    """Resumed too."""
    theirs, found = oracle.load(oracle.saved("plain")), plan(engine)
    tree = found.tree
    for _ in range(2):
        decision = engine.decide(state=STATE, questions=QUESTIONS)
        for i, ((prompt, canvas), answer) in enumerate(
            zip(prompts_and_canvases(found), decision.answers.values(), strict=True)
        ):
            columns = tree.columns[tree.offsets[i] : tree.offsets[i + 1]].tolist()
            logits = oracle.canvas_logits(theirs, prompt, canvas)[0].double()
            wanted = logits[columns].softmax(-1)
            own = answer.model_dump()
            probabilities = [own["noul"]] if "noul" in own else list(own["probabilities"].values())
            np.testing.assert_allclose(probabilities, wanted[: len(probabilities)], atol=1e-5)
            mass = float(torch.logsumexp(logits[columns], 0).sub(torch.logsumexp(logits, 0)).exp())
            assert own["x_label_mass"] == pytest.approx(mass, abs=1e-5)
    assert decision.usage.x_cached_tokens > 0


def test_in_company_and_alone(engine: Engine) -> None:
    together = engine.decide(state=STATE, questions=QUESTIONS).answers
    for name, question in QUESTIONS.items():
        alone = engine.decide(state=STATE, questions={name: question}, cache_salt=name).answers[name].model_dump()
        wanted = together[name].model_dump()
        if engine.settings.batch_invariant:
            assert alone == wanted
        else:
            assert alone["x_label_mass"] == pytest.approx(wanted["x_label_mass"], abs=1e-5)


@pytest.mark.parametrize("n_orders", [1, 2])
def test_samples_are_canvases_of_other_noise(engine: Engine, n_orders: int) -> None:
    """Their mean, and its standard error; the first of them is the one that is read alone."""
    theirs, more = oracle.load(oracle.saved("plain")), {"x_samples": 4, "x_debias": n_orders}
    found = plan(engine, **more)
    pairs, tree = prompts_and_canvases(found), found.tree
    assert len(pairs) == 4 * n_orders * len(QUESTIONS)
    single = [ids[0] for _, ids in prompts_and_canvases(plan(engine, x_debias=n_orders))]
    assert [ids[0] for _, ids in pairs[::4]] == single
    assert len({ids[0] for _, ids in pairs}) > len(single)
    each = []
    for i, (prompt, canvas) in enumerate(pairs):
        columns = tree.columns[tree.offsets[i] : tree.offsets[i + 1]].tolist()
        each.append(oracle.canvas_logits(theirs, prompt, canvas)[0].double()[columns].softmax(-1).numpy())
    decision = engine.decide(state=STATE, questions=QUESTIONS, **more)
    for i, answer in enumerate(decision.answers.values()):
        own = answer.model_dump()
        samples = np.stack(each[i * 4 * n_orders : (i + 1) * 4 * n_orders]).reshape(n_orders, 4, -1).mean(0)
        probabilities, errors = ([own["noul"]], [own["x_standard_error"]]) if "noul" in own else (
            list(own["probabilities"].values()), list(own["x_standard_error"].values())
        )  # fmt: skip
        np.testing.assert_allclose(probabilities, samples.mean(0)[: len(errors)], atol=1e-5)
        np.testing.assert_allclose(errors, samples.std(0, ddof=1)[: len(errors)] / 2, atol=1e-5)
        assert max(errors) > 1e-4


def test_one_sample_has_no_error(engine: Engine) -> None:
    text = engine.decide(state=STATE, questions=QUESTIONS).model_dump_json()
    assert "standard_error" not in text
    assert "standard_error" in engine.decide(state=STATE, questions=QUESTIONS, x_samples=2).model_dump_json()


def test_options_have_no_canvas(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="slot for one label") as caught:
        engine.decide(state=STATE, questions=QUESTIONS, method="options")
    assert caught.value.field == "x_method"
    with pytest.raises(CheckpointError, match='method "letters" alone'):
        Engine.load(oracle.saved("plain"), device="cpu", method="options")


@pytest.mark.parametrize(("key", "message"), [
    ("chat_template", "not one token each"),  # labels, where a plain prompt's reply begins
    ("pad_token", "names no pad_token"),
])  # fmt: skip
def test_what_a_canvas_needs_of_a_tokenizer(key: str, message: str, tmp_path: Path) -> None:
    """Noticed when the model is loaded, not at each request."""
    directory = shutil.copytree(oracle.saved("plain"), tmp_path / "c")
    file = directory / "tokenizer_config.json"
    settings = json.loads(file.read_text())
    del settings[key]
    file.write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=message):
        Engine.load(directory, device="cpu")


def test_an_empty_thought_goes_before_the_canvas() -> None:
    full = tiny.tokenizer()
    plain = Tokenizer(full, stop_ids=(full.token_to_id("<|im_end|>"),))
    assert thoughtless(plain, frame(plain, tiny.CHATML)) == frame(plain, tiny.CHATML)
    thinking = type(full).from_str(full.to_str())
    thinking.add_tokens([AddedToken(text, special=True) for text in ("<|channel>", "<channel|>")])
    tokenizer = Tokenizer(thinking, stop_ids=(full.token_to_id("<|im_end|>"),))
    found = frame(tokenizer, tiny.CHATML)
    behind = thoughtless(tokenizer, found)
    assert tokenizer.decode(behind.tail) == tokenizer.decode(found.tail) + "<|channel>thought\n<channel|>"
    assert thoughtless(tokenizer, behind) == behind
