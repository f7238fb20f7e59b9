"""Joint reads of a tiny DiffusionGemma: prompts and canvases written by hand, and transformers' answers to them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx2
import numpy as np
import pytest
from conftest import Serve
from fixtures import tiny
from fixtures.tiny_engine import tiny_engine
from oracles import diffusion_gemma as oracle
from oracles.answers import assert_close

from ramet.decide.plan import Plan
from ramet.engine.engine import Engine
from ramet.errors import CheckpointError, InvalidRequest
from ramet.request import DecisionRequest
from ramet.text.tokenizer import Tokenizer
from ramet.tree import WHOLE

TOKENIZER = Tokenizer(tiny.tokenizer())
END, PAD = (TOKENIZER.control[text] for text in ("<|im_end|>", "<|endoftext|>"))
LENGTH = 64  # of the served canvas
STATE = "The user asked the system for an answer, and it was on. " * 8
WHO = {"type": "choice", "instructions": "Who?", "criteria": {"a user": "writes", "the system": None, "me": None}}
FINE = {"type": "noul", "instructions": "Is it fine?"}
MOOD = {"type": "score", "instructions": "How is it?", "criteria": ["bad", "fair", "good", "very good"]}
QUESTIONS: dict[str, Any] = {"who": WHO, "fine": FINE, "mood": MOOD}
LABELS = {"choice": "ABC", "noul": ("yes", "no"), "score": "0123"}
LISTED = {
    "choice": "Who?\nA: a user - writes\nB: the system\nC: me",
    "noul": "Is it fine?\nyes\nno",
    "score": "How is it?\n0: bad\n1: fair\n2: good\n3: very good",
}
FIRST = "What are the answers to the questions below?"
LAST = (
    'Answer with one line for each question, "number: answer", and nothing else. '
    "An answer is the letter of one option, yes or no, or the number of one level."
)


@pytest.fixture(scope="module", params=[False, True], ids=["", "invariant"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    more = {"batch_invariant": request.param, "cache_bytes": 1 << 24}
    with Engine.load(oracle.saved("plain", LENGTH), device="cpu", dtype="float32", **more) as made:
        yield made


def many(n: int, kind: str = "mixed") -> dict[str, Any]:
    kinds = {"mixed": (WHO, FINE, MOOD), "choice": (WHO,), "noul": (FINE,)}[kind]
    return {f"q{i}": kinds[i % len(kinds)] for i in range(n)}


def plan(engine: Engine, questions: dict[str, Any] = QUESTIONS, state: str = STATE, **more: Any) -> Plan:
    asked = {"state": state, "questions": questions, "joint": True, **more}
    return engine.decider.plan(DecisionRequest.parse(asked))


def canvases(found: Plan) -> list[tuple[list[int], list[int]]]:
    """Of every canvas: the ids on its path, and its own."""
    tree = found.tree
    own = [tree.tokens[a : a + n].tolist() for a, n in zip(tree.starts, tree.lengths, strict=True)]
    whole = np.flatnonzero(tree.blocks == WHOLE).tolist()
    assert tree.depths.max() == 2
    assert (tree.parents == -1).sum() == 1, "one trunk"
    return [(own[0] + own[int(tree.parents[s])], own[s]) for s in whole]


def begin(number: int, kind: str) -> list[int]:
    """Before a slot: in this vocabulary only letters hold the space before them."""
    return TOKENIZER.encode(f"{number}:" if kind == "choice" else f"{number}: ")


def written(questions: list[dict[str, Any]], first: int) -> tuple[list[int], list[int]]:
    """A canvas by hand, -1 where noise goes; and where that is."""
    ids: list[int] = []
    slots = []
    for number, question in enumerate(questions, first):
        ids += begin(number, question["type"])
        slots.append(len(ids))
        ids += [-1, *TOKENIZER.encode("\n")]
    width = min(LENGTH, (len(ids) + 2 + 15) // 16 * 16)
    return ids + [END] + [PAD] * (width - len(ids) - 1), slots


def prompt(questions: list[dict[str, Any]], first: int, state: str = STATE) -> list[int]:
    """A whole prompt by hand."""
    blocks = [f"Question {k}: {LISTED[question['type']]}" for k, question in enumerate(questions, first)]
    content = f"{state}\n\nQuestion: " + "\n\n".join([FIRST, *blocks, LAST])
    text = f"<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"
    return TOKENIZER.encode_rendered(text)


def spellings(question: dict[str, Any]) -> list[list[int]]:
    """Of each label: its ids, alone and behind a space, as far as they are single."""
    found = [[TOKENIZER.encode(text) for text in (f" {label}", label)] for label in LABELS[question["type"]]]
    return [[ids[0] for ids in each if len(ids) == 1] for each in found]


def by_hand(logits: Any, question: dict[str, Any]) -> tuple[list[float], float]:
    """Probabilities and mass from the logits of a slot's row: each label by its likelier spelling."""
    logprobs = logits.double().log_softmax(-1).numpy()
    best = np.array([max(logprobs[i] for i in ids) for ids in spellings(question)])
    return (np.exp(best) / np.exp(best).sum()).tolist(), float(np.exp(best).sum())


def told(answer: Any) -> list[float]:
    own = answer.model_dump()
    return [own["noul"], 1 - own["noul"]] if "noul" in own else list(own["probabilities"].values())


def test_labels_have_two_spellings_where_a_token_holds_the_space() -> None:
    assert [len(ids) for question in (WHO, FINE, MOOD) for ids in spellings(question)] == [2, 2, 2, 1, 1, 1, 1, 1, 1]


def test_prompt_and_canvas_are_those_written_by_hand(engine: Engine) -> None:
    found = plan(engine)
    ((path, own),) = canvases(found)
    ids, slots = written(list(QUESTIONS.values()), 1)
    assert path == prompt(list(QUESTIONS.values()), 1)
    assert [-1 if row in slots else token for row, token in enumerate(own)] == ids
    noise = [own[slot] for slot in slots]
    assert len(set(noise)) > 1
    assert all(0 <= token < TOKENIZER.vocab_size for token in noise)
    assert found.tree.read_rows.tolist() == slots
    assert found.joint is not None
    assert found.joint.model_dump() == {"canvases": [{"questions": list(QUESTIONS), "width": 16, "slots": slots}]}


def test_answers_are_transformers(engine: Engine) -> None:
    """On several canvases, resumed too, the very same request again and again."""
    theirs, questions = oracle.load(oracle.saved("plain", LENGTH)), many(14)
    found = plan(engine, questions)
    assert found.joint is not None
    pairs = canvases(found)
    assert len(pairs) == 2
    for n in range(3):
        decision = engine.decide(state=STATE, questions=questions, joint=True)
        for (path, own), layout in zip(pairs, found.joint.canvases, strict=True):
            logits = oracle.canvas_logits(theirs, path, own)
            for name, slot in zip(layout.questions, layout.slots, strict=True):
                probabilities, mass = by_hand(logits[slot], questions[name])
                np.testing.assert_allclose(told(decision[name]), probabilities, atol=1e-5)
                assert decision[name].x_label_mass == pytest.approx(mass, abs=1e-5)
        assert decision.joint == found.joint
        assert (decision.usage.x_cached_tokens > 0) == (n > 0)
        assert decision.usage.input_tokens == found.tree.n_tokens
        assert decision.usage.output_tokens == len(questions)


@pytest.mark.parametrize("kind", ["mixed", "choice", "noul"])
@pytest.mark.parametrize("n", [2, 3, 4, 12, 13, 15, 16, 24, 25, 37, 64])
def test_questions_go_on_the_fewest_canvases_evenly(engine: Engine, n: int, kind: str) -> None:
    questions = many(n, kind)
    found, asked = plan(engine, questions), list(questions.values())
    assert found.joint is not None
    layouts, first = found.joint.canvases, 0
    for layout, (path, own) in zip(layouts, canvases(found), strict=True):
        part = asked[first : first + len(layout.questions)]
        ids, slots = written(part, first + 1)
        assert layout.slots == slots
        assert layout.width == len(ids) == len(own)
        assert own[-1] == PAD
        assert [-1 if row in slots else token for row, token in enumerate(own)] == ids
        assert path == prompt(part, first + 1)
        first += len(part)
    assert [name for layout in layouts for name in layout.questions] == list(questions)
    sizes = [len(layout.questions) for layout in layouts]
    assert max(sizes) - min(sizes) <= 1
    lengths = [len(begin(k, question["type"])) + 2 for k, question in enumerate(asked, 1)]
    fewer = len(sizes) - 1  # canvases do not hold them, however the questions are cut
    if fewer:
        cuts = [-(-n * i // fewer) for i in range(fewer + 1)]
        assert max(sum(lengths[a:b]) for a, b in pairwise(cuts)) + 2 > LENGTH


def test_a_canvas_is_filled_but_for_one_pad(engine: Engine) -> None:
    """15 lines of letters take 9 * 4 + 6 * 5 = 66 tokens; 14 take 61, and the end and a pad make 63; 32 are not
    exceeded by 7, which take 28 and 2."""
    widths = {n: [layout.width for layout in plan(engine, many(n, "choice")).joint.canvases] for n in (3, 4, 7, 14, 15)}  # type: ignore[union-attr]
    assert widths == {3: [16], 4: [32], 7: [32], 14: [64], 15: [48, 48]}


@pytest.mark.parametrize(("n_orders", "n_samples"), [(1, 3), (2, 1), (3, 3), (5, 1)])
def test_orders_and_samples_are_further_canvases(engine: Engine, n_orders: int, n_samples: int) -> None:
    """Each question's mean is over its own orders alone, each as often as the others."""
    theirs, more = oracle.load(oracle.saved("plain", LENGTH)), {"x_debias": n_orders, "x_samples": n_samples}
    found = plan(engine, **more)
    pairs = canvases(found)
    n_prompts = min(n_orders, 4)  # as many as the question with most options has orders
    assert len(pairs) == n_prompts * n_samples
    assert len({tuple(path) for path, _ in pairs}) == n_prompts
    assert len({tuple(own) for _, own in pairs}) == len(pairs)
    assert pairs[0] == canvases(plan(engine))[0]
    assert found.joint == plan(engine).joint, "a canvas that is drawn again is told once"
    logits = [oracle.canvas_logits(theirs, path, own) for path, own in pairs]
    decision = engine.decide(state=STATE, questions=QUESTIONS, joint=True, **more)
    for (name, question), slot in zip(QUESTIONS.items(), found.joint.canvases[0].slots, strict=True):  # type: ignore[union-attr]
        n_options = len(LABELS[question["type"]])
        own = min(n_orders, n_options)
        each = np.array([by_hand(row[slot], question)[0] for row in logits[: own * n_samples]])
        each = each.reshape(own, n_samples, n_options)
        if question["type"] == "choice":  # whose labels stand for other options in another order
            for order in range(own):
                each[order] = np.roll(each[order], order * n_options // own, axis=1)
        np.testing.assert_allclose(told(decision[name]), each.mean((0, 1)), atol=1e-5)
        error = decision[name].x_standard_error
        if n_samples == 1:
            assert error is None
        else:
            errors = [error] if isinstance(error, float) else list(error.values())  # type: ignore[union-attr]
            wanted = each.mean(0).std(0, ddof=1) / n_samples**0.5
            np.testing.assert_allclose(errors, wanted[: len(errors)], atol=1e-5)
            assert max(errors) > 1e-5


def test_the_likelier_spelling_counts_and_once(engine: Engine) -> None:
    found = plan(engine)
    tree = found.tree
    columns = tree.columns.tolist()
    logits = np.full(len(columns), -9.0, np.float32)
    (spaced_a, plain_a), (spaced_b, plain_b), _ = spellings(WHO)
    for token, probability in ((spaced_a, 0.2), (plain_a, 0.1), (spaced_b, 0.05), (plain_b, 0.1)):
        logits[columns.index(token)] = np.log(probability)
    zeros = np.zeros(len(tree.read_rows), np.float32)
    reads = engine.submit(tree).result()
    answer = found.answers(type(reads)(logits, zeros, reads.offsets))["who"]
    rest = float(np.exp(-9.0))
    assert answer.x_label_mass == pytest.approx(0.3 + rest)
    assert told(answer) == pytest.approx([0.2 / (0.3 + rest), 0.1 / (0.3 + rest), rest / (0.3 + rest)])


def test_one_question_is_read_as_ever(engine: Engine) -> None:
    one = {"who": WHO}
    alone = plan(engine, one, joint=False)
    assert np.array_equal(plan(engine, one).tree.tokens, alone.tree.tokens)
    assert plan(engine, one).joint is None
    assert "joint" not in engine.decide(state=STATE, questions=one, joint=True).model_dump()
    assert "joint" not in engine.decide(state=STATE, questions=QUESTIONS).model_dump()


def test_what_is_kept_ready_is_of_the_same_questions_in_the_same_place(engine: Engine) -> None:
    """Neither their order, nor what they were asked with before, nor how many samples there were."""
    asked = [many(14), dict(reversed(QUESTIONS.items())), QUESTIONS, {"fine": FINE, "who": WHO}, many(15)]
    for _ in range(2):
        for questions in asked:
            for n_samples in (1, 2):
                found = plan(engine, questions, x_samples=n_samples)
                values, first = list(questions.values()), 0
                for layout, (path, own) in zip(
                    found.joint.canvases,
                    canvases(found)[::n_samples],
                    strict=True,  # type: ignore[union-attr]
                ):
                    part = values[first : first + len(layout.questions)]
                    assert path == prompt(part, first + 1)
                    assert len(own) == len(written(part, first + 1)[0])
                    first += len(part)
    single = plan(engine, joint=False)
    assert all("Question 1" not in TOKENIZER.decode(path) for path, _ in canvases(single))


def test_noise_is_the_prompts_own(engine: Engine) -> None:
    (one,), (again,) = canvases(plan(engine)), canvases(plan(engine))
    (other,) = canvases(plan(engine, state=STATE + "Or not."))
    assert one == again
    assert one[1] != other[1]
    (seeded,), (same,) = canvases(plan(engine, x_seed=5)), canvases(plan(engine, x_seed=5))
    assert seeded == same
    assert seeded[0] == one[0]
    assert seeded[1] != one[1]


def test_a_joint_read_and_plain_ones_share_the_state(engine: Engine) -> None:
    trunks = [found.tree.tokens[: found.trunk] for found in (plan(engine), plan(engine, joint=False))]
    assert np.array_equal(*trunks)
    engine.decide(state=STATE, questions=QUESTIONS, cache_salt="shared")
    assert engine.decide(state=STATE, questions=QUESTIONS, joint=True, cache_salt="shared").usage.x_cached_tokens > 0


def test_nobody_else_in_the_round_is_touched(engine: Engine) -> None:
    """Alone, or beside joint reads, samples and faulty requests."""
    states = [STATE + f" {n}" for n in range(4)]
    plain: list[dict[str, Any]] = [{"state": state, "questions": QUESTIONS} for state in states]
    joint = [asked | {"joint": True} for asked in plain] + [{"state": STATE, "questions": many(20), "joint": True}]
    faulty = [{"state": STATE, "questions": many(65), "joint": True}]
    alone = [engine.decide(**asked, cache_salt="alone").answers for asked in plain + joint]

    async def together() -> list[Any]:
        work = [engine.decide_async(**asked, cache_salt="together") for asked in plain + joint + faulty]
        return await asyncio.gather(*work, return_exceptions=True)

    *found, error = asyncio.run(together())
    assert isinstance(error, InvalidRequest)
    for wanted, decision in zip(alone, found, strict=True):
        if engine.settings.batch_invariant:
            assert decision.answers == wanted
        else:
            assert_close(decision.answers, wanted)


@pytest.mark.parametrize(
    ("questions", "field", "message"),
    [
        (many(65), "questions", "there are 65, and at most 64"),
        (
            {"a": FINE, "b": {"type": "choice", "criteria": {str(i): None for i in range(27)}}},
            "questions.b.criteria",
            "26 options",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(
    engine: Engine, questions: dict[str, Any], field: str, message: str
) -> None:
    rounds = engine.stats()["rounds_total"]
    with pytest.raises(InvalidRequest, match=message) as caught:
        engine.decide(state=STATE, questions=questions, joint=True)
    assert caught.value.field == field
    assert engine.stats()["rounds_total"] == rounds
    assert len(engine.decide(state="s", questions=questions).answers) == len(questions), "a canvas each holds them"


def test_26_options_are_read_jointly(engine: Engine) -> None:
    letters = {"type": "choice", "criteria": {str(i): None for i in range(26)}}
    answer = engine.decide(state=STATE, questions={"a": letters, "b": FINE}, joint=True)["a"]
    assert sum(told(answer)) == pytest.approx(1)


def test_a_model_without_canvases_reads_nothing_jointly() -> None:
    with tiny_engine("qwen3") as engine, pytest.raises(InvalidRequest, match="only a diffusion model") as caught:
        engine.decide(state="s", questions=QUESTIONS, joint=True)
    assert caught.value.field == "joint"


@pytest.mark.parametrize(("length", "joint"), [(3, "room for"), (7, "room for"), (8, None), (15, None), (16, None)])
def test_narrow_canvases(length: int, joint: str | None) -> None:
    """As wide as the model serves; joint reads need a line of the last number, which here has 6 tokens."""
    theirs = oracle.load(oracle.saved("plain", LENGTH))
    with Engine.load(oracle.saved("plain", LENGTH), device="cpu", dtype="float32", canvas_length=length) as engine:
        ((path, own),) = canvases(plan(engine, {"fine": FINE}))
        assert own[1:] == [END, *[PAD] * (length - 2)]
        probabilities, _ = by_hand(oracle.canvas_logits(theirs, path, own)[0], FINE)
        found = engine.decide(state=STATE, questions={"fine": FINE}, joint=True)
        np.testing.assert_allclose(told(found["fine"]), probabilities, atol=1e-5)
        if joint is None:
            layouts = plan(engine, many(64, "noul")).joint
            assert layouts is not None
            assert {layout.width for layout in layouts.canvases} == {length}
        else:
            with pytest.raises(InvalidRequest, match=joint) as caught:
                engine.decide(state=STATE, questions=QUESTIONS, joint=True)
            assert caught.value.field == "joint"


def test_a_canvas_that_holds_no_label_is_refused_at_load() -> None:
    with pytest.raises(CheckpointError, match="canvas_length is 2"):
        Engine.load(oracle.saved("plain", LENGTH), device="cpu", canvas_length=2)


def test_over_http(engine: Engine, serve: Serve) -> None:
    url = f"{serve(engine).url}/v1/systemone"
    body = {"state": STATE, "questions": many(20), "joint": True}
    reply = httpx2.post(url, json=body)
    assert reply.status_code == 200
    assert "x-ramet-ignored" not in reply.headers
    found = reply.json()
    assert list(found) == ["model", "answers", "usage", "joint", "x_timing"]
    assert [list(layout) for layout in found["joint"]["canvases"]] == [["questions", "width", "slots"]] * 2
    assert [name for layout in found["joint"]["canvases"] for name in layout["questions"]] == list(many(20))
    assert_close(found["answers"], engine.decide(**body).answers)
    plain = httpx2.post(url, json=body | {"joint": False}).json()
    assert "joint" not in plain
    for fault, status, loc in (
        ({"joint": 1}, 422, ["joint"]),
        ({"joint": "true"}, 422, ["joint"]),
        ({"questions": many(65)}, 422, ["questions"]),
    ):
        reply = httpx2.post(url, json=body | fault)
        assert reply.status_code == status
        assert reply.json()["detail"][0]["loc"][-len(loc) :] == loc
    assert httpx2.post(url, json=body).json()["answers"] == found["answers"]
