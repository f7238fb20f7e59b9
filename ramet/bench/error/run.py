"""How far a model's probabilities are from those that float32 gives, here and by a peer, on the same token ids.

The model is loaded once in the dtype that is wanted and once in float32, one after the other, so that the larger one
has the memory to itself. A question's error is the total variation between its two distributions over a few labels:
half the sum of the differences of their probabilities.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from rich.table import Table

from ramet.bench.core import machine
from ramet.bench.core.agreement import probabilities
from ramet.bench.core.bodies import text
from ramet.bench.core.canvases import CanvasForm, CanvasRead
from ramet.bench.core.document import Document, Watch
from ramet.bench.core.named_shapes import config_of
from ramet.bench.core.random_model import RandomModel
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.shapes import Prompt
from ramet.bench.core.table import table
from ramet.bench.peers import flide
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.errors import RametError
from ramet.text.tokenizer import Tokenizer
from ramet.tree import FloatArray, Tree
from ramet.weights.checkpoint import open_checkpoint

EXACT = "float32"
Probabilities = npt.NDArray[np.float64]  # [questions, columns]


@dataclass(slots=True)
class ErrorReport(Document):
    """probabilities: of every question's labels, by side. `float32` comes last, with which the others are compared."""

    bench: ClassVar[str] = "error"
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
                "mean": float(errors.mean()),
                "standard_error": float(errors.std() / math.sqrt(len(errors))),
                "p99": float(np.quantile(errors, 0.99)),
                "largest": float(errors.max()),
                "flips": float((likeliest[name] != likeliest[EXACT]).sum()),
            }
            for name, errors in self.errors().items()
        }

    def found(self) -> JsonObject:
        return {
            "peer": self.peer,
            "summaries": self.summaries(),
            "total_variation": {name: errors.tolist() for name, errors in self.errors().items()},
            "float32": self.probabilities[EXACT].tolist() if EXACT in self.probabilities else None,
        }

    def about(self) -> dict[str, Any]:
        return {"peer": self.peer or "none", **Document.about(self)}

    def tables(self) -> Iterator[Table]:
        """A line a side."""
        columns = "=name, mean:.5f, standard_error:.5f, p99:.4f, largest:.4f, another likeliest label=flips:.0f"
        title = f"total variation from float32, {self.settings['questions']} questions"
        yield table(title, columns, [{"name": name, **summary} for name, summary in self.summaries().items()])


N_COLUMNS = 4
MAX_STATE, MAX_QUESTIONS, MAX_TOKENS = 400, 8, 60  # of a request
_CANVAS = 32  # rows
_AT_ONCE = 8  # requests
Side = Callable[[], FloatArray]  # logits [questions, N_COLUMNS]


def of_checkpoint(
    model: str, settings: EngineSettings, n_questions: int, seed: int, watch: Watch, *, with_flide: bool = False
) -> ErrorReport:
    """Questions of made-up words about states of made-up words. Settings are resolved ones. Raises RametError where
    Flide is wanted and is not there."""
    peer = f"flide {flide.installed()}" if with_flide else None
    checkpoint = open_checkpoint(model)
    rng = random.Random(seed)  # noqa: S311
    columns = sorted(rng.sample(range(checkpoint.config.get_text_config().vocab_size), N_COLUMNS))
    prompts = list(_prompts(checkpoint.tokenizer(), rng, n_questions))
    trees = [prompt.tree(columns) for prompt in prompts]

    def ours(dtype: str) -> FloatArray:
        with Engine.load(model, **asdict(replace(settings, dtype=dtype))) as engine:
            return _answers(engine, trees)

    sides: dict[str, Side] = {"ours": partial(ours, settings.dtype)}
    if with_flide:
        sides["flide"] = partial(_flide, Path(model), prompts, columns)
    report = _report(checkpoint.name, settings, n_questions, seed, peer)
    return _run(report, sides | {EXACT: partial(ours, EXACT)}, watch)


def of_shape(shape: str, settings: EngineSettings, n_questions: int, seed: int, watch: Watch) -> ErrorReport:
    """Canvases of random ids behind prompts of random ids, of DiffusionGemma with random weights: a slot is a question.
    Settings are resolved ones."""
    rng = np.random.default_rng(seed)
    n_vocab = config_of(shape).get_text_config().vocab_size
    trees: list[Tree] = []
    n_left = n_questions
    while n_left > 0:
        form = CanvasForm.of(int(rng.integers(20, MAX_STATE)), _CANVAS)
        trees.append(CanvasRead.draw(form, rng, n_vocab).tree)
        n_left -= len(form.slots)

    def ours(dtype: str) -> FloatArray:
        own = replace(settings, dtype=dtype)
        with RandomModel.of(shape, own, rounded=settings.dtype).engine(own) as engine:
            return _answers(engine, trees)[:n_questions]

    sides = {"ours": partial(ours, settings.dtype), EXACT: partial(ours, EXACT)}
    return _run(_report(f"DiffusionGemma {shape}, random weights", settings, n_questions, seed, None), sides, watch)


def _report(model: str, settings: EngineSettings, n_questions: int, seed: int, peer: str | None) -> ErrorReport:
    assert settings.threads
    about = {"dtype": settings.dtype, "device": settings.device, "questions": n_questions, "seed": seed}
    return ErrorReport(model, machine.describe(settings.threads), about, peer)


def _run(report: ErrorReport, sides: Mapping[str, Side], watch: Watch) -> ErrorReport:
    for n_done, (name, side) in enumerate(sides.items(), 1):
        watch.step(f"{report.model}: {name}")
        report.probabilities[name] = probabilities(side().astype(np.float64))
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        watch.passed(report, n_done / len(sides))
    return report


def _prompts(tokenizer: Tokenizer, rng: random.Random, n_questions: int) -> Iterator[Prompt]:
    """States and questions of all lengths, as many questions in all as wanted."""

    def ids(most: int) -> list[int]:
        return tokenizer.encode(text(rng, rng.randint(1, most)))

    while n_questions > 0:
        n = min(n_questions, rng.randint(1, MAX_QUESTIONS))
        yield Prompt(ids(MAX_STATE), [ids(MAX_TOKENS) for _ in range(n)])
        n_questions -= n


def _answers(engine: Engine, trees: Sequence[Tree]) -> FloatArray:
    """The logits of each read's columns, requests going a few at a time."""
    logits = []
    for at in range(0, len(trees), _AT_ONCE):
        futures = [engine.submit(tree) for tree in trees[at : at + _AT_ONCE]]
        logits += [future.result().logits for future in futures]
    return np.concatenate(logits).reshape(-1, N_COLUMNS)


def _flide(model: Path, prompts: Sequence[Prompt], columns: Sequence[int]) -> FloatArray:
    peer = flide.FlidePeer(model)
    answers = []
    for prompt in prompts:
        _, answer = peer.contestants([prompt], columns)["flide"]([prompt])()
        if answer is None:
            raise RametError("flide gave no logits")
        answers.append(answer)
    return np.concatenate(answers)
