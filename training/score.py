"""Score: how often held-out prompts get the one right answer, task by task."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from typing import Any

from tokenizers import Tokenizer

from ramet.bench.tasks.all import TASKS
from ramet.bench.tasks.example import Example, examples
from training.data import rendered
from training.decode import Ids, Reply, decode
from training.model import Model
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
