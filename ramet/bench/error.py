"""How far a model's probabilities are from those that float32 gives, here and by a peer, on the same token ids.

The model is loaded once in the dtype that is asked about and once in float32, one after the other, so that the larger
one has the memory to itself. A question's error is the total variation between its two distributions over a few labels:
half the sum of the differences of their probabilities.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ramet.bench import flide_peer, machine
from ramet.bench.asked import Asked, Form
from ramet.bench.bodies import WORDS
from ramet.bench.random_model import RandomModel
from ramet.bench.reads_sides import engine_on
from ramet.bench.report import Document
from ramet.bench.samples import JsonObject
from ramet.bench.shapes import Prompt
from ramet.bench.true_shapes import config_of
from ramet.bench.watch import Watch
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.errors import RametError
from ramet.text.tokenizer import Tokenizer
from ramet.tree import FloatArray, Tree
from ramet.weights.checkpoint import open_checkpoint

OURS, FLIDE, EXACT = "ours", "flide", "float32"
N_COLUMNS = 4
MAX_STATE, MAX_QUESTIONS, MAX_TOKENS = 400, 8, 60  # of a request
_CANVAS = 32  # rows
_AT_ONCE = 8  # requests
Probabilities = npt.NDArray[np.float64]  # [questions, N_COLUMNS]


@dataclass(slots=True)
class Found(Document):
    """probabilities: of every question's labels, by side; the last one is the float32 that the others are held to."""

    model: str
    machine: dict[str, str]
    settings: JsonObject
    peer: str | None
    probabilities: dict[str, Probabilities] = field(default_factory=dict)

    def errors(self) -> dict[str, FloatArray]:
        """The total variation of each question from float32, by side."""
        exact = self.probabilities.get(EXACT)
        if exact is None:
            return {}
        sides = {name: p for name, p in self.probabilities.items() if name != EXACT}
        return {name: np.abs(p - exact).sum(1) / 2 for name, p in sides.items()}

    def summaries(self) -> dict[str, dict[str, float]]:
        """By side: the mean error and its standard error, the 99th percentile, the largest, and how many questions have
        another likeliest label."""
        likeliest = {name: p.argmax(1) for name, p in self.probabilities.items()}
        return {
            name: {
                "mean": float(errors.mean()), "standard_error": float(errors.std() / math.sqrt(len(errors))),
                "p99": float(np.quantile(errors, 0.99)), "largest": float(errors.max()),
                "flips": float((likeliest[name] != likeliest[EXACT]).sum()),
            }
            for name, errors in self.errors().items()
        }  # fmt: skip

    def as_json(self) -> JsonObject:
        return {
            "bench": "error", "model": self.model, "machine": self.machine, "settings": self.settings,
            "peer": self.peer, "summaries": self.summaries(),
            "total_variation": {name: errors.tolist() for name, errors in self.errors().items()},
            "float32": self.probabilities[EXACT].tolist() if EXACT in self.probabilities else None,
        }  # fmt: skip


def of_checkpoint(
    model: str, settings: EngineSettings, n_questions: int, seed: int, watch: Watch, *, with_flide: bool = False
) -> Found:
    """Questions of made-up words about states of made-up words. Settings are resolved ones. Raises RametError where
    Flide is asked for and is not there."""
    peer = f"flide {flide_peer.installed()}" if with_flide else None
    checkpoint, rng = open_checkpoint(model), random.Random(seed)  # noqa: S311
    columns = sorted(rng.sample(range(checkpoint.config.get_text_config().vocab_size), N_COLUMNS))
    prompts = list(_prompts(checkpoint.tokenizer(), rng, n_questions))
    trees = [prompt.tree(columns) for prompt in prompts]

    def ours(dtype: str) -> FloatArray:
        with Engine.load(model, **_given(settings, dtype)) as engine:
            return _answers(engine, trees)

    sides = {OURS: partial(ours, settings.dtype)}
    if with_flide:
        sides[FLIDE] = partial(_flide, Path(model), prompts, columns)
    return _run(
        _found(checkpoint.name, settings, n_questions, seed, peer), sides | {EXACT: partial(ours, EXACT)}, watch
    )


def of_shape(shape: str, settings: EngineSettings, n_questions: int, seed: int, watch: Watch) -> Found:
    """Canvases of random ids behind prompts of random ids, of DiffusionGemma with random weights: a slot is a question.
    Settings are resolved ones."""
    rng = np.random.default_rng(seed)
    n_vocab = config_of(shape).get_text_config().vocab_size
    trees, n_left = list[Tree](), n_questions
    while n_left > 0:
        form = Form.of(int(rng.integers(20, MAX_STATE)), _CANVAS)
        trees.append(Asked.draw(form, rng, n_vocab).tree)
        n_left -= len(form.slots)

    def ours(dtype: str) -> FloatArray:
        model = RandomModel.of(shape, replace(settings, dtype=dtype), rounded=settings.dtype)
        with engine_on(model, replace(settings, dtype=dtype)) as engine:
            return _answers(engine, trees)[:n_questions]

    sides = {OURS: partial(ours, settings.dtype), EXACT: partial(ours, EXACT)}
    return _run(_found(f"DiffusionGemma {shape}, random weights", settings, n_questions, seed, None), sides, watch)


def _found(model: str, settings: EngineSettings, n_questions: int, seed: int, peer: str | None) -> Found:
    assert settings.threads
    about = {"dtype": settings.dtype, "device": settings.device, "questions": n_questions, "seed": seed}
    return Found(model, machine.describe(settings.threads), about, peer)


def _run(found: Found, sides: Mapping[str, Callable[[], FloatArray]], watch: Watch) -> Found:
    for n_done, (name, side) in enumerate(sides.items(), 1):
        watch.step(f"{found.model}: {name}")
        logits = side().astype(np.float64)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        found.probabilities[name] = weights / weights.sum(1, keepdims=True)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        watch.save(found)
        watch.done(n_done / len(sides))
    return found


def _prompts(tokenizer: Tokenizer, rng: random.Random, n_questions: int) -> Iterator[Prompt]:
    """States and questions of all lengths, as many questions in all as asked for."""

    def ids(most: int) -> list[int]:
        return tokenizer.encode(" ".join(rng.choices(WORDS, k=rng.randint(1, most))))

    while n_questions > 0:
        n = min(n_questions, rng.randint(1, MAX_QUESTIONS))
        yield Prompt(ids(MAX_STATE), [ids(MAX_TOKENS) for _ in range(n)])
        n_questions -= n


def _given(settings: EngineSettings, dtype: str) -> dict[str, Any]:
    """The settings as `Engine.load` takes them, in another dtype."""
    return {field.name: getattr(settings, field.name) for field in fields(settings)} | {"dtype": dtype}


def _answers(engine: Engine, trees: Sequence[Tree]) -> FloatArray:
    """The logits of each read's columns, [reads, N_COLUMNS], requests going a few at a time."""
    logits = []
    for at in range(0, len(trees), _AT_ONCE):
        futures = [engine.submit(tree) for tree in trees[at : at + _AT_ONCE]]
        logits += [future.result().logits for future in futures]
    return np.concatenate(logits).reshape(-1, N_COLUMNS)


def _flide(model: Path, prompts: Sequence[Prompt], columns: Sequence[int]) -> FloatArray:
    peer, answers = flide_peer.FlidePeer(model), list[FloatArray]()
    for prompt in prompts:
        _, answer = peer.contestants([prompt], columns)[FLIDE]([prompt])()
        if answer is None:
            raise RametError("flide gave no logits")
        answers.append(answer)
    return np.concatenate(answers)
