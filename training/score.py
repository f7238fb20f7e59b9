"""Score: how often held-out prompts get the one right answer, task by task."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from string import ascii_uppercase, digits
from typing import Any

from tokenizers import Tokenizer

from ramet.question import Choice, Score
from training.data import rendered
from training.decode import Ids, Reply, at_first_mask, decode
from training.model import Model
from training.tasks.all import TASKS
from training.tasks.example import Example, examples
from training.vocabulary import END, MASK, STOP, id_of

HELD_OUT_SEED = 20_260
_AT_ONCE = 512


def held_out(n: int, tasks: Collection[str] = tuple(TASKS)) -> dict[str, list[Example]]:
    """n prompts of each task that training never sees, all different."""
    found = {}
    for name, make in TASKS.items():
        if name not in tasks:
            continue
        unlike: dict[str, Example] = {}
        for example in examples(make, HELD_OUT_SEED, held_out=True):
            unlike.setdefault(example.prompt, example)
            if len(unlike) == n:
                break
        found[name] = list(unlike.values())
    return found


def score(
    model: Model, tokenizer: Tokenizer, tasks: dict[str, list[Example]], threshold: float = 0.9
) -> dict[str, Any]:
    """By task: exact match, tokens a step, and some of what was wrong."""
    asked = [example for each in tasks.values() for example in each]
    prompts = [each.ids for each in tokenizer.encode_batch([rendered(example.prompt) for example in asked])]
    order = sorted(range(len(asked)), key=lambda at: (len(asked[at].answer), at))  # alike are done at about one time
    replies: dict[int, Reply] = {}
    for first in range(0, len(order), _AT_ONCE):
        places = order[first : first + _AT_ONCE]
        found = decode(model, [prompts[at] for at in places], ids_of(tokenizer), threshold=threshold)
        replies.update(zip(places, found, strict=True))
    ordered = iter([replies[at] for at in range(len(asked))])
    return {name: _scored(tokenizer, each, [next(ordered) for _ in each]) for name, each in tasks.items()}


def decided(model: Model, tokenizer: Tokenizer, asked: Sequence[Example]) -> dict[str, dict[str, int]]:
    """By kind of decision, how many there are and how many right: the likeliest of the labels at the first mask, as
    `decide` reads them."""
    found: dict[str, dict[str, int]] = {}
    for first in range(0, len(asked), _AT_ONCE):
        some = asked[first : first + _AT_ONCE]
        prompts = [each.ids for each in tokenizer.encode_batch([rendered(example.prompt) for example in some])]
        for example, logits in zip(some, at_first_mask(model, prompts, ids_of(tokenizer)).cpu(), strict=True):
            kind, labels = _labels(example)
            ids = [tokenizer.token_to_id(label) for label in labels]
            tally = found.setdefault(kind, {"right": 0, "n": 0})
            tally["right"] += int(logits[ids].argmax()) == example.right
            tally["n"] += 1
    return dict(sorted(found.items()))


def _labels(example: Example) -> tuple[str, Sequence[str]]:
    """What kind of decision it is, and the labels of its options."""
    question = example.question
    if isinstance(question, Choice):
        n = len(question.criteria)
        return f"choice of {n}", ascii_uppercase[:n]
    if isinstance(question, Score):
        return "score", digits[: len(question.criteria)]
    return "noul", ("yes", "no")


def ids_of(tokenizer: Tokenizer) -> Ids:
    stop, end, mask = (id_of(tokenizer, text) for text in (STOP, END, MASK))
    return Ids(mask, frozenset((stop, end)))


def _scored(tokenizer: Tokenizer, tasks: list[Example], replies: list[Reply]) -> dict[str, Any]:
    texts = [tokenizer.decode(reply.ids, skip_special_tokens=True) for reply in replies]
    right = [example.check(text) for example, text in zip(tasks, texts, strict=True)]
    n_tokens, n_steps = sum(len(reply.ids) for reply in replies), sum(reply.n_steps for reply in replies)
    wrong = [(e.prompt, e.answer, text) for e, text, good in zip(tasks, texts, right, strict=True) if not good]
    return {
        "n": len(tasks), "exact_match": sum(right) / len(right), "tokens_per_reply": n_tokens / len(replies),
        "tokens_per_step": n_tokens / n_steps,
        "tokens_per_pass": n_tokens / sum(reply.n_passes for reply in replies),
        "wrong": [dict(zip(("prompt", "answer", "reply"), each, strict=True)) for each in islice(wrong, 4)],
    }  # fmt: skip
