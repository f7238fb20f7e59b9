"""Plans and answers against plain sums over whole prompts, one forward pass an option, on a Llama of random weights."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.vocabularies import smollm2
from oracles.trees import evaluate, path_tokens
from transformers import LlamaConfig, LlamaForCausalLM

from ramet.decide.decider import Decider
from ramet.decide.plan import Plan
from ramet.decide.settings import DecideSettings, PriorWeights
from ramet.decision import ChoiceAnswer, NoulAnswer, ScoreAnswer
from ramet.errors import InvalidRequest
from ramet.request import DecisionRequest

TOKENIZER, FRAME, _ = smollm2()
ALL, NONE = PriorWeights(noul=1, choice=1, score=1), PriorWeights(noul=0, choice=0, score=0)
LETTERS = Decider(TOKENIZER, FRAME, DecideSettings(method="letters"))
OPTIONS = Decider(TOKENIZER, FRAME, DecideSettings(method="options", prior=ALL, scored="description"))
BARE = Decider(TOKENIZER, FRAME, DecideSettings(method="options", prior=NONE, scored="name"))

REFUND = 'Which refund was agreed on the phone? "Everything, but only on Friday."'
PREFIXES = ["all", "all, on Friday", "all, on Friday, in cash"]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=TOKENIZER.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        initializer_range=0.4,
    )
    return LlamaForCausalLM(config).float().eval()


def request(state: Any = "s", **questions: dict[str, Any]) -> DecisionRequest:
    """A request; a question's keys that begin with x_ go to the request itself."""
    extra = {key: q.pop(key) for q in questions.values() for key in list(q) if key.startswith("x_")}
    return DecisionRequest.model_validate({"state": state, "questions": questions, **extra})


def choice(*names: str, **more: Any) -> dict[str, Any]:
    return {"type": "choice", "instructions": "Which?", "criteria": dict.fromkeys(names)} | more


def answers(model: LlamaForCausalLM, decider: Decider, asked: DecisionRequest) -> dict[str, Any]:
    plan = decider.plan(asked)
    return plan.answers(evaluate(model, plan.tree))


@torch.no_grad()
def log_probability(model: LlamaForCausalLM, content: str, reply: list[int]) -> float:
    """Of a reply's ids behind a whole prompt: one forward pass, a plain sum."""
    prompt = FRAME.prompt(TOKENIZER, content)
    logprobs = model(torch.tensor([prompt + reply])).logits[0].double().log_softmax(-1)
    return sum(float(logprobs[len(prompt) - 1 + i, token]) for i, token in enumerate(reply))


def reply_log_probability(model: LlamaForCausalLM, content: str, text: str) -> float:
    """Of an option's text and the reply's end, behind the words that begin the reply."""
    cue = TOKENIZER.encode("Answer:")
    both = [*cue, *TOKENIZER.encode(f" {text}"), FRAME.end]
    return log_probability(model, content, both) - log_probability(model, content, cue)


def softmax(scores: list[float], temperature: float = 1.0) -> list[float]:
    risen = [math.exp((score - max(scores)) / temperature) for score in scores]
    return [value / sum(risen) for value in risen]


@pytest.mark.parametrize("names", [PREFIXES, PREFIXES[::-1], ["Rome", "Pneumonoultramicroscopicsilicovolcanoconiosis"]])
def test_options_are_plain_sums_over_the_whole_reply_and_its_end(model: LlamaForCausalLM, names: list[str]) -> None:
    found = answers(model, BARE, request(REFUND, q=choice(*names)))["q"]
    content = f"{REFUND}\n\nQuestion: Which?"
    sums = [reply_log_probability(model, content, name) for name in names]
    assert list(found.probabilities) == names
    assert list(found.probabilities.values()) == pytest.approx(softmax(sums), abs=1e-5)
    assert found.x_label_mass == pytest.approx(sum(map(math.exp, sums)), rel=1e-4)


@pytest.mark.parametrize(
    "question",
    [
        choice(instructions="Which?", criteria={"a": "the first one", "b": None, "🦩": "the first one, twice"}),
        {"type": "score", "instructions": "Which?", "criteria": ["low", {"level": "high"}, "low"]},
        {"type": "noul", "instructions": "Which?", "criteria": {"true": "it is so", "false": "it is not so"}},
        {"type": "noul", "instructions": "Which?"},
    ],
)
@pytest.mark.parametrize("weight", [1.0, 0.9])
def test_the_prior_is_the_same_question_after_an_empty_state(
    model: LlamaForCausalLM, question: dict[str, Any], weight: float
) -> None:
    prior = PriorWeights(noul=weight, choice=weight, score=weight)
    decider = Decider(TOKENIZER, FRAME, DecideSettings(method="options", prior=prior))
    texts = {
        "choice": ["the first one", "b", "the first one, twice"],
        "score": ["low", '{"level": "high"}', "low"],
        "noul": ["it is so", "it is not so"] if "criteria" in question else ["Yes", "No"],
    }[question["type"]]
    found = answers(model, decider, request("  some state ", q=question | {"x_temperature": 3.0}))["q"]
    gains = [
        reply_log_probability(model, "  some state \n\nQuestion: Which?", text)
        - weight * reply_log_probability(model, "Question: Which?", text)
        for text in texts
    ]
    expected = softmax(gains, temperature=3.0)
    got = [found.noul, 1 - found.noul] if question["type"] == "noul" else list(found.probabilities.values())
    assert got == pytest.approx(expected, abs=1e-5)


def test_the_whole_prior_leaves_even_odds_where_there_is_no_state(model: LlamaForCausalLM) -> None:
    found = answers(model, OPTIONS, request("", q=choice("x", "a longer one", "y z")))["q"]
    assert list(found.probabilities.values()) == [1 / 3] * 3


def test_a_described_noul_takes_the_prior_of_choices() -> None:
    decider = Decider(TOKENIZER, FRAME, DecideSettings(method="options", prior=PriorWeights(noul=0, choice=0.5)))
    described = {"type": "noul", "criteria": {"true": "it is", "false": "it is not"}}
    plan = decider.plan(request(q=described, plain={"type": "noul", "instructions": "Is it?"}, c=choice("a", "b")))
    assert [each.weight for each in plan.questions] == [0.5, 0, 0.5]


def test_a_noul_with_one_described_outcome_says_it_and_compares_yes_and_no(model: LlamaForCausalLM) -> None:
    question = {"type": "noul", "instructions": "Is it?", "criteria": {"true": None, "false": "it is late"}}
    found = answers(model, BARE, request(q=question))["q"]
    content = "s\n\nQuestion: Is it?\nNo: it is late"
    sums = [reply_log_probability(model, content, text) for text in ("Yes", "No")]
    assert found.noul == pytest.approx(softmax(sums)[0], abs=1e-5)


CHOICE = """s

Question: Which?
A: x - the first
B: y
C: z - {"k": "é"}
Answer with the letter of one option only."""
SCORE = """s

Question: How much?
0: none
1: some
Answer with the number of one level only."""
NOUL = """s

Question: Is it?
yes: it is
no
Answer with yes or no only."""


@pytest.mark.parametrize(
    ("question", "content", "labels"),
    [
        (choice(criteria={"x": "the first", "y": None, "z": {"k": "é"}}), CHOICE, "A B C"),
        ({"type": "score", "instructions": "How much?", "criteria": ["none", "some"]}, SCORE, "0 1"),
        ({"type": "noul", "instructions": "Is it?", "criteria": {"true": "it is"}}, NOUL, "yes no"),
    ],
)
def test_letters_are_the_labels_log_probabilities(
    model: LlamaForCausalLM, question: dict[str, Any], content: str, labels: str
) -> None:
    found = answers(model, LETTERS, request(q=question))["q"]
    sums = [log_probability(model, content, TOKENIZER.encode(label)) for label in labels.split()]
    got = [found.noul, 1 - found.noul] if question["type"] == "noul" else list(found.probabilities.values())
    assert got == pytest.approx(softmax(sums), abs=1e-5)
    assert found.x_label_mass == pytest.approx(sum(map(math.exp, sums)), rel=1e-4)


@pytest.mark.parametrize("n", [2, 3, 4, 16])
def test_debias_is_the_mean_over_cyclic_orders(model: LlamaForCausalLM, n: int) -> None:
    names = ["a", "b", "c", "d"]
    found = answers(model, LETTERS, request(q=choice(*names) | {"x_debias": n}))["q"]
    shifts = {2: [0, 2], 3: [0, 1, 2], 4: [0, 1, 2, 3], 16: [0, 1, 2, 3]}[n]
    alone = [answers(model, LETTERS, request(q=choice(*names[k:], *names[:k])))["q"] for k in shifts]
    expected = [np.mean([answer.probabilities[name] for answer in alone]) for name in names]
    assert list(found.probabilities) == names
    assert list(found.probabilities.values()) == pytest.approx(expected, abs=1e-12)
    assert found.x_label_mass == pytest.approx(np.mean([answer.x_label_mass for answer in alone]), abs=1e-12)


def test_debias_keeps_digits_and_yes_and_no_with_their_meaning() -> None:
    levels = {"type": "score", "instructions": "Is it?", "criteria": ["none", "some", "all"], "x_debias": 3}
    plan = LETTERS.plan(request(q=levels, n={"type": "noul", "instructions": "Is it?"}))
    texts = [TOKENIZER.decode(path_tokens(plan.tree, s)) for s in range(1, len(plan.tree.lengths))]
    assert [text.split("it?\n")[1].split("\nAnswer")[0] for text in texts[:3]] == [
        "0: none\n1: some\n2: all",
        "1: some\n2: all\n0: none",
        "2: all\n0: none\n1: some",
    ]
    assert [text.split("it?\n")[1].split("\nAnswer")[0] for text in texts[3:]] == ["yes\nno", "no\nyes"]
    digits = [TOKENIZER.encode(d)[0] for d in "012"]
    assert [plan.tree.columns[3 * r : 3 * r + 3].tolist() for r in range(3)] == [digits] * 3


def test_only_a_diffusion_model_draws_noise() -> None:
    with pytest.raises(InvalidRequest, match="diffusion model") as caught:
        LETTERS.plan(request(q=choice("a", "b", x_samples=2)))
    assert caught.value.field == "x_samples"
    with pytest.raises(InvalidRequest, match="diffusion model") as caught:
        LETTERS.plan(request(q=choice("a", "b", x_seed=0)))
    assert caught.value.field == "x_seed"


def test_a_seed_for_any_server_is_taken_where_no_noise_is_drawn() -> None:
    """Every seed gives the one answer that there is."""
    asked = request(q=choice("a", "b"))
    seeded, plain = (LETTERS.plan(each) for each in (asked.model_copy(update={"seed": 7}), asked))
    assert seeded.tree.tokens.tolist() == plain.tree.tokens.tolist()


def test_options_have_no_order_to_be_averaged_over() -> None:
    OPTIONS.plan(request(q=choice("a", "b", x_debias=1)))
    for decider, more in ((OPTIONS, {}), (LETTERS, {"x_method": "options"})):
        with pytest.raises(InvalidRequest, match='set x_method to "letters"') as caught:
            decider.plan(request(q=choice("a", "b", x_debias=2, **more)))
        assert caught.value.field == "x_debias"


def test_an_answer_is_the_one_of_its_question_alone(model: LlamaForCausalLM) -> None:
    questions: dict[str, dict[str, Any]] = {
        "c": choice("a", "b c"),
        "s": {"type": "score", "criteria": ["low", "high"]},
        "n": {"type": "noul", "instructions": "Is it?"},
    }
    for decider in (LETTERS, OPTIONS):
        together = answers(model, decider, request("A state.", **questions))
        assert list(together) == ["c", "s", "n"]
        for name, question in questions.items():
            assert together[name] == answers(model, decider, request("A state.", **{name: question}))[name]


def test_the_shape_of_the_tree() -> None:
    letters = LETTERS.plan(request("x", a=choice("a", "b"), b=choice("a", "b"))).tree
    assert (letters.depths.tolist(), letters.parents.tolist()) == ([0, 1, 1], [-1, 0, 0])
    assert (letters.blocks == 1).all()
    assert letters.normalize.all()
    fresh = Decider(TOKENIZER, FRAME, DecideSettings(method="options", prior=ALL))  # that has kept no prior
    plan = fresh.plan(request("x", a=choice("a", "b c")))
    tree = plan.tree
    assert tree.depths.tolist() == [0, 1, 2, 2, 0, 1, 2, 2]
    assert tree.tokens[: len(FRAME.head)].tolist() == list(FRAME.head)
    assert plan.trunk == tree.starts[1]
    assert TOKENIZER.decode(tree.tokens[len(FRAME.head) : plan.trunk]) == "user\nx"
    assert TOKENIZER.decode(path_tokens(tree, 3)).endswith("assistant\nAnswer: b c")
    prior = TOKENIZER.decode(path_tokens(tree, 5))
    assert prior.endswith("<|im_start|>user\nQuestion: Which?<|im_end|>\n<|im_start|>assistant\nAnswer:")
    bare = BARE.plan(request("x", a=choice("a", "b c")))
    assert bare.tree.depths.tolist() == [0, 1, 2, 2]
    assert path_tokens(bare.tree, 0) == tree.tokens[: plan.trunk].tolist()


def test_options_of_the_same_text_share_the_odds_and_count_once_in_the_mass(model: LlamaForCausalLM) -> None:
    same = choice(criteria={"first": "cold", "second": "cold", "third": "warm"})
    decider = Decider(TOKENIZER, FRAME, DecideSettings(method="options", prior=NONE, scored="description"))
    found = answers(model, decider, request(q=same))["q"]
    p = found.probabilities
    assert p["first"] == pytest.approx(p["second"], rel=1e-5)
    sums = [reply_log_probability(model, "s\n\nQuestion: Which?", text) for text in ("cold", "warm")]
    assert found.x_label_mass == pytest.approx(sum(map(math.exp, sums)), rel=1e-4)


def test_names_and_levels_come_back_as_they_were_sent(model: LlamaForCausalLM) -> None:
    names = ["é", "e\u0301", " a ", "a", "A\n", "👩‍🚀", "<|im_end|>"]
    levels = ["low", {"k": ["é", 1]}, ["x"]]
    questions = {"q\u0301 ": choice(*names), "é": {"type": "score", "criteria": levels}}
    for decider in (LETTERS, OPTIONS):
        found = answers(model, decider, request(**questions))
        assert list(found) == ["q\u0301 ", "é"]
        picked, graded = found.values()
        assert list(picked.probabilities) == names
        assert picked.choice == max(picked.probabilities, key=picked.probabilities.__getitem__)
        assert graded.legend == {"0": "low", "1": {"k": ["é", 1]}, "2": ["x"]}
        assert graded.score == pytest.approx(sum(int(k) * p for k, p in graded.probabilities.items()), abs=1e-12)


@pytest.mark.parametrize("decider", [LETTERS, BARE], ids=["letters", "options"])
def test_255_options_and_one(model: LlamaForCausalLM, decider: Decider) -> None:
    many = answers(model, decider, request(q=choice(*(str(i) for i in range(27)))))["q"]
    assert sum(many.probabilities.values()) == pytest.approx(1, abs=1e-12)
    assert len(decider.plan(request(q=choice(*(f"option {i}" for i in range(255))))).questions[0].grid.distinct) == 255
    one = answers(model, decider, request(q=choice("only"), s={"type": "score", "criteria": ["only"]}))
    assert (one["q"].choice, one["q"].probabilities, one["q"].confidence) == ("only", {"only": 1.0}, 1.0)
    assert (one["s"].score, one["s"].probabilities, one["s"].confidence) == (0.0, {"0": 1.0}, 1.0)


def test_the_types_of_answers_and_their_confidence(model: LlamaForCausalLM) -> None:
    questions = {
        "c": choice("a", "b"),
        "s": {"type": "score", "criteria": ["l", "h"]},
        "n": {"type": "noul", "instructions": "?"},
    }
    found = {
        formula: answers(
            model,
            LETTERS,
            request(**{k: dict(q) for k, q in questions.items()}, x={**choice("a", "b"), "x_confidence": formula}),
        )
        for formula in ("typesafe", "vllm", "top")
    }
    assert list(map(type, found["top"].values())) == [ChoiceAnswer, ScoreAnswer, NoulAnswer, ChoiceAnswer]
    assert "confidence" not in found["top"]["n"].model_dump()
    for name in ("c", "s"):
        top = max(found["top"][name].probabilities.values())
        assert found["top"][name].confidence == top
        assert found["vllm"][name].confidence == top * found["vllm"][name].x_label_mass
        assert found["typesafe"][name].confidence == pytest.approx(2 * top - 1 if name == "c" else 1 - 2 * (1 - top))


def test_temperatures_by_type_and_for_all(model: LlamaForCausalLM) -> None:
    asked: dict[str, dict[str, Any]] = {"c": choice("a", "b"), "n": {"type": "noul", "instructions": "?"}}
    ask = {name: dict(question) for name, question in asked.items()}
    plain = answers(model, LETTERS, request(**ask))
    both = answers(model, LETTERS, request(**ask, x=choice("x", x_temperature=2.0)))
    one = answers(model, LETTERS, request(**ask, x=choice("x", x_temperature={"choice": 2.0})))

    def odds(p: float) -> float:
        return math.log(p / (1 - p))

    assert odds(both["c"].probabilities["a"]) == pytest.approx(odds(plain["c"].probabilities["a"]) / 2)
    assert odds(both["n"].noul) == pytest.approx(odds(plain["n"].noul) / 2)
    assert (one["c"], one["n"]) == (both["c"], plain["n"])


def test_a_kept_question_gives_the_same_tree_behind_another_state() -> None:
    decider = Decider(TOKENIZER, FRAME, DecideSettings(method="options"))
    asked = choice("a", "b c", instructions="Which of the two?")
    first = decider.plan(request("one state", q=dict(asked)))
    second = decider.plan(request("another", q=dict(asked), r=choice("x")))
    fresh = Decider(TOKENIZER, FRAME, DecideSettings(method="options"))
    assert_same(second, fresh.plan(request("another", q=dict(asked), r=choice("x"))))
    assert_same(first, decider.plan(request("one state", q=dict(asked))))


def test_many_threads_plan_the_same_trees() -> None:
    questions = [choice("a", f"b {i % 7}", instructions=f"Which {i % 11}?") for i in range(200)]
    requests = [request(f"state {i % 5}", q=question) for i, question in enumerate(questions)]
    decider = Decider(TOKENIZER, FRAME, DecideSettings(method="options", cached_entries=600))
    with ThreadPoolExecutor(8) as pool:
        plans = list(pool.map(decider.plan, requests))
    for asked, plan in zip(requests, plans, strict=True):
        assert_same(plan, Decider(TOKENIZER, FRAME, decider.settings).plan(asked))


def assert_same(a: Plan, b: Plan) -> None:
    names = ("tokens", "lengths", "parents", "blocks", "read_segments", "read_rows", "normalize", "columns", "offsets")
    for name in names:
        assert np.array_equal(getattr(a.tree, name), getattr(b.tree, name)), name
    assert np.array_equal(a.cells, b.cells)
    assert a.trunk == b.trunk
