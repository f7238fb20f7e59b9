"""The generated tasks: the same for the same seed, right by checks of their own, and held out by the prompt alone."""

from __future__ import annotations

import json
import random
import re
from itertools import islice
from string import ascii_uppercase

import pytest
from fixtures import tiny
from fixtures.import_graph import ROOT

from ramet.bench.elastic import quick
from ramet.decide import letters
from ramet.decide.letters import VerifiedLabels
from ramet.decide.reply import ReplyStart
from ramet.question import Choice, Noul
from ramet.request import DecisionRequest
from ramet.text.chat import frame
from ramet.text.tokenizer_json import read_template, read_tokenizer
from training import held_out as beside
from training.tasks import decisions, tickets
from training.tasks.all import TASKS
from training.tasks.example import HELD_OUT, Example, examples
from training.tasks.numbers import in_words
from training.tasks.words import GOODS, VERBS

_SIGNS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


def some(name: str, n: int = 300, seed: int = 5, *, held_out: bool = False) -> list[Example]:
    return list(islice(examples(TASKS[name], seed, held_out=held_out), n))


@pytest.mark.parametrize("name", TASKS)
def test_a_seed_gives_the_same_and_another_seed_others(name: str) -> None:
    assert some(name, 40) == some(name, 40)
    assert some(name, 40) != some(name, 40, seed=6)
    assert {each.task for each in some(name, 40)} == {name}


@pytest.mark.parametrize("name", TASKS)
def test_held_out_is_by_the_prompt_and_apart(name: str) -> None:
    ours, others = some(name, 30, held_out=True), some(name, 400)
    assert all(each.is_held_out for each in ours)
    assert not any(each.is_held_out for each in others)
    assert not {each.prompt for each in ours} & {each.prompt for each in others}
    drawn = [TASKS[name](random.Random(seed)) for seed in range(HELD_OUT * 20)]
    assert 5 <= sum(each.is_held_out for each in drawn) <= 50  # 20 of them, about


@pytest.mark.parametrize("name", TASKS)
def test_an_answer_is_right_and_anything_else_is_not(name: str) -> None:
    for each in some(name, 50):
        assert each.check(each.answer)
        assert each.check(f"{each.answer}\n")
        assert not each.check(each.answer[:-1])
        assert not each.check(each.answer + " x")
        assert not each.check("")


def test_replies_are_long_enough_to_be_streamed() -> None:
    for name in ("arithmetic", "extraction", "rewriting"):
        assert sorted(len(each.answer) for each in some(name))[-30] > 120


def test_numbers_in_words() -> None:
    known = {
        0: "zero", 13: "thirteen", 20: "twenty", 21: "twenty-one", 100: "one hundred", 101: "one hundred and one",
        999: "nine hundred and ninety-nine", 1000: "one thousand", 1001: "one thousand and one",
        1188: "one thousand one hundred and eighty-eight",
    }  # fmt: skip
    assert {n: in_words(n) for n in known} == known
    assert len({in_words(n) for n in range(10_000)}) == 10_000


def test_arithmetic_is_right() -> None:
    for each in some("arithmetic"):
        worked = re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", each.answer)
        assert worked, each
        for a, sign, b, result in worked:
            assert _SIGNS[sign](int(a), int(b)) == int(result), each
        assert f" {in_words(int(worked[-1][-1]))} " in each.answer.replace(".", " "), each
        first = worked[0][0]
        assert in_words(int(first)) in each.prompt, each


def test_extraction_is_json_of_what_the_text_says() -> None:
    n_null = 0
    for each in some("extraction"):
        found = json.loads(each.answer)
        assert ", ".join(found) in each.prompt, each
        for value in found.values():
            if isinstance(value, list):
                assert all(item["item"] in GOODS and item["item"] in each.prompt for item in value), each
            elif value is None:
                n_null += 1
            else:
                assert str(value) in each.prompt, each
    assert 30 < n_null < 120


def test_rewriting_keeps_to_its_rules() -> None:
    said = some("rewriting", 900)
    upper = [each for each in said if re.search(r"capital|upper", each.prompt.split("\n")[0] + each.prompt[-30:])]
    backwards = [each for each in said if re.search(r"[Rr]everse|backwards", each.prompt)]
    future = [each for each in said if "future" in each.prompt]
    assert min(len(upper), len(backwards), len(future)) > 50
    assert all(each.answer.isupper() and each.answer.lower() in each.prompt for each in upper)
    for each in backwards:
        assert " ".join(reversed(each.answer.split())) in each.prompt
    for each in future:
        n = each.answer.count(".")
        assert each.answer.count(" will ") == n
        bases = [match[1] for match in re.finditer(r" will (\w+) the ", each.answer)]
        assert len(bases) == n
        assert set(bases) <= {verb.base for verb in VERBS}


def test_verbs() -> None:
    forms = {verb.base: verb[1:] for verb in VERBS}
    assert forms["carry"] == ("carries", "carried", "carried")
    assert forms["wash"] == ("washes", "washed", "washed")
    assert forms["choose"] == ("chooses", "chose", "chosen")
    assert forms["close"] == ("closes", "closed", "closed")
    assert len(forms) == len(VERBS)


def test_tickets_get_a_label_that_is_listed() -> None:
    for each in some("tickets"):
        if each.answer.startswith("{"):
            assert set(json.loads(each.answer)) == {"topic", "mood", "urgency", "wish"}
            continue
        for line in each.answer.split("\n"):
            assert re.search(rf"[:,] {line.split(': ')[-1]}[,.?]", each.prompt), each


def test_labels_name_one_topic_each() -> None:
    names = [name for topic in tickets.TOPICS for name in (topic.name, *topic.others)]
    assert len(set(names)) == len(names)


def test_a_ticket_says_no_two_topics_alike() -> None:
    said = [text for topic in tickets.TOPICS for text in topic.said]
    assert len(set(said)) == len(said)


def test_decisions_are_asked_in_the_words_of_letters() -> None:
    directory = tiny.qwen3()
    tokenizer = read_tokenizer(directory)
    labels = VerifiedLabels(tokenizer, ReplyStart.of(tokenizer, frame(tokenizer, read_template(directory))))
    kinds = set()
    for each in some("decisions"):
        question = each.question
        assert question is not None
        kinds.add(question.type)
        form = letters.form(question, labels, 1, "questions.q")
        assert each.prompt == f"{each.state}\n\n{form.prompts[0]}"
        known = ["yes", "no"] if isinstance(question, Noul) else ascii_uppercase
        given = known if isinstance(question, Choice | Noul) else "0123456789"
        assert each.answer == given[each.right]
        DecisionRequest(state=each.state, questions={"q": question})
    assert kinds == {"choice", "noul", "score"}


def test_what_a_ticket_does_not_say_is_not_so() -> None:
    """Half of all nouls are true, of each kind of question."""
    rng = random.Random(3)
    right = [each.right for each in (decisions.make(rng) for _ in range(1500)) if isinstance(each.question, Noul)]
    assert 0.42 < sum(right) / len(right) < 0.58


def test_the_examples_beside_the_model_are_those_that_training_never_sees() -> None:
    file = ROOT / "models" / "sprig-10m-b32" / beside.FILE
    assert file.read_text(encoding="utf-8") == beside.text(), "run python -m training.held_out models/sprig-10m-b32"
    assert beside.FILE == quick.HELD_OUT
    found = json.loads(beside.text())
    assert {each["task"] for each in found[: len(TASKS)]} == set(TASKS)
