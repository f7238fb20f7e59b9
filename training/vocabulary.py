"""Vocabulary: a small byte-level BPE over the text that the tasks generate."""

from __future__ import annotations

import random
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training import drills
from training.tasks.all import TASKS
from training.tasks.example import examples
from training.words import COMMON

END, START, STOP, MASK = CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>")
SYSTEMS = (
    "You are a helpful assistant.", "You are a concise assistant.", "Answer briefly.",
    "You help with mails, numbers and texts.", "Do what the user asks, and nothing else.",
)  # fmt: skip
# Words with the space before them, digits one by one, runs of marks, line ends, other white space.
_SPLIT = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+")


def id_of(tokenizer: Tokenizer, text: str) -> int:
    """Of a control token."""
    found: int | None = tokenizer.token_to_id(text)
    assert found is not None
    return found


def train_tokenizer(size: int, *, n_examples: int = 12_000, seed: int = 1) -> Tokenizer:
    """At most `size` ids, control tokens first. Every byte has one, so that any text can be written."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(_SPLIT, "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, normalized=False, special=True) for text in CONTROL]
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2, show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(_texts(n_examples, seed), trainer)
    return tokenizer


def _texts(n: int, seed: int) -> list[str]:
    """What the tasks write; words of everyday English; and what else the templates and labels hold."""
    rng = random.Random(seed)  # noqa: S311
    found = [*SYSTEMS * 50, *["system\n", "user\n", "assistant\n", "yes", "no"] * 200, "Answer:", "Question:"]
    for name, make in {**TASKS, "letters": drills.make}.items():
        for example in islice(examples(make, seed, held_out=False), n):
            found += [example.prompt, example.answer]
            if name == "rewriting" and rng.random() < 0.2:
                found.append(example.prompt.upper())
    return found + [f" {word} {word} {word}, {word}" for word in COMMON]
