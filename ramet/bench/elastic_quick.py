"""Elastic decoding of a small trained model: whether sizes of chunks change its answers, and what they gain under
clients that ask again as soon as they are answered. Nothing is simulated."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ramet.bench import machine
from ramet.bench.elastic_found import Found
from ramet.bench.elastic_simulated import AUTO, WHOLE
from ramet.bench.samples import JsonObject, affordable, interleave, summary
from ramet.bench.tasks.all import TASKS
from ramet.bench.tasks.example import Example, examples
from ramet.bench.watch import Watch
from ramet.engine.engine import Engine
from ramet.generation import Generation, GenerationRequest

_AT_ONCE = 16  # replies, while answers are compared
_A_CLIENT, _LEAST = 3, 12  # replies of a client in a run, and of all
_BUDGET_S = 20.0  # of a mode with so many clients


@dataclass(frozen=True, slots=True)
class Work:
    """n_examples: held-out ones that each mode answers, in tokens `max_tokens` at most. sizes: fixed ones; clients: how
    many ask at once, `repeats` times in each mode."""

    n_examples: int = 200
    clients: Sequence[int] = (1, 2, 4, 8, 16)
    repeats: int = 10
    sizes: Sequence[int] = (2, 4, 8, 16, 24, 32)
    max_tokens: int = 200
    seed: int = 0

    def as_json(self) -> JsonObject:
        return {
            "examples": self.n_examples, "clients": list(self.clients), "repeats": self.repeats,
            "sizes": list(self.sizes), "max_tokens": self.max_tokens, "seed": self.seed,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answered:
    """What a mode answered, in the order of the examples, and what it took."""

    texts: list[str]
    n_tokens: int
    seconds: float
    n_steps: float
    n_rows: float

    @property
    def tokens_s(self) -> float:
        return self.n_tokens / self.seconds


def run(source: str, settings: Mapping[str, Any], work: Work, *, watch: Watch) -> Found:
    """settings: of the engines, as `Engine.load` takes them. Raises as it does."""
    watch.step(f"loading {source}")
    began = time.perf_counter()
    unmeasured = {name: value for name, value in settings.items() if name != "latency_cache"}
    with (
        Engine.load(source, **settings, chunk_size="auto") as auto,
        Engine.load(source, **unmeasured, mode="block") as whole,
    ):
        engines = {AUTO: auto, WHOLE: whole}
        threads = auto.settings.threads
        assert threads
        found = Found(
            model=auto.name, machine=machine.describe(threads),
            settings={**work.as_json(), "device": auto.settings.device, "dtype": auto.settings.dtype},
        )  # fmt: skip
        found.start_s["engines"] = time.perf_counter() - began
        asked = _examples(work)
        _quality(found, engines, asked, work, watch)
        found.latency = auto.describe().get("latency", "")  # measured at the first reply
        for n in work.clients:
            found.clients.append(clients(engines, asked, n, work, watch))
            watch.save(found)
    return found


def _examples(work: Work) -> list[Example]:
    """Of every task by turns."""
    each = [examples(make, work.seed, held_out=True) for make in TASKS.values()]
    by_turns = (next(task) for _ in iter(int, 1) for task in each)
    return list(islice(by_turns, work.n_examples))


def _quality(found: Found, engines: Mapping[str, Engine], asked: Sequence[Example], work: Work, watch: Watch) -> None:
    """Every size, whole blocks first: what others are compared with."""
    block = engines[WHOLE].masking
    assert block is not None
    sizes: list[int | None] = [None, *(size for size in work.sizes if size <= block.size)]
    modes = [(WHOLE, WHOLE, None), *((str(size or AUTO), AUTO, size) for size in sizes)]
    texts: list[str] = []
    points = 0.0
    for name, engine, size in modes:
        watch.step(f"{len(asked)} examples: {name}")
        answered = answer(engines[engine], asked, min(_AT_ONCE, len(asked)), work.max_tokens, size)
        right = [example.check(text) for example, text in zip(asked, answered.texts, strict=True)]
        if name == WHOLE:
            texts, points = answered.texts, 100 * statistics.mean(right)
        found.quality.append({
            "mode": name, "commits": "measured", "n": len(asked), "exact": statistics.mean(right),
            "points_over_block": 100 * statistics.mean(right) - points,
            "same_as_block": statistics.mean(a == b for a, b in zip(answered.texts, texts, strict=True)),
            "by_task": _by_task(asked, right), "tokens_step": answered.n_tokens / answered.n_steps,
            "rows_step": answered.n_rows / answered.n_steps,
        })  # fmt: skip
        watch.save(found)


def _by_task(asked: Sequence[Example], right: Sequence[bool]) -> dict[str, float]:
    names = dict.fromkeys(example.task for example in asked)
    return {
        name: statistics.mean(is_right for example, is_right in zip(asked, right, strict=True) if example.task == name)
        for name in names
    }


def clients(engines: Mapping[str, Engine], asked: Sequence[Example], n: int, work: Work, watch: Watch) -> JsonObject:
    """Tokens a second with so many clients, of each mode by turns; the first run of each warms up. The n-th run of a
    mode asks what that of the other does."""
    rng = random.Random(f"{work.seed} {n}")  # noqa: S311
    draws = {mode: random.Random(f"{work.seed} {n} prompts") for mode in engines}  # noqa: S311
    n_asked = max(_LEAST, _A_CLIENT * n)

    def once(mode: str) -> Answered:
        watch.step(f"{n} clients: {mode}")
        return answer(engines[mode], draws[mode].choices(asked, k=n_asked), n, work.max_tokens)

    counts = {mode: affordable(once(mode).seconds * 1e3, work.repeats, _BUDGET_S) for mode in engines}
    runs: dict[str, list[Answered]] = {mode: [] for mode in engines}
    for mode in interleave(counts, rng):
        runs[mode].append(once(mode))
    rates = {mode: [each.tokens_s for each in own] for mode, own in runs.items()}
    steps = {mode: sum(each.n_steps for each in own) for mode, own in runs.items()}
    return {
        "clients": n, "commits": "measured", "tokens_s": {mode: summary(own) for mode, own in rates.items()},
        "auto_over_block": statistics.median(rates[AUTO]) / statistics.median(rates[WHOLE]),
        "tokens_step": {mode: sum(each.n_tokens for each in own) / steps[mode] for mode, own in runs.items()},
        "rows_step": {mode: sum(each.n_rows for each in own) / steps[mode] for mode, own in runs.items()},
    }  # fmt: skip


def answer(
    engine: Engine, asked: Sequence[Example], n_clients: int, max_tokens: int, size: int | None = None
) -> Answered:
    """Replies to all prompts, n_clients at once."""
    writer, before = engine.writer, engine.stats()
    requests = [_request(engine, example.prompt, max_tokens, size) for example in asked]
    began = time.perf_counter()
    replies = asyncio.run(_answered(engine, requests, n_clients))
    seconds, after = time.perf_counter() - began, engine.stats()
    decode = writer.conversation.tokenizer.decode
    texts = [decode(each.tokens[:-1] if each.finish == "stop" else each.tokens) for each in replies]
    n_steps, n_rows = (after[f"reply_{name}_total"] - before[f"reply_{name}_total"] for name in ("steps", "rows"))
    return Answered(texts, sum(len(each.tokens) for each in replies), seconds, n_steps, n_rows)


async def _answered(engine: Engine, requests: Sequence[GenerationRequest], n_clients: int) -> list[Generation]:
    found: dict[int, Generation] = {}
    left = iter(enumerate(requests))

    async def client() -> None:
        for i, request in left:
            found[i] = await engine.writer.generate_async(request)

    await asyncio.gather(*(client() for _ in range(n_clients)))
    return [found[i] for i in range(len(requests))]


def _request(engine: Engine, prompt: str, max_tokens: int, size: int | None) -> GenerationRequest:
    conversation = engine.writer.conversation
    if conversation.template is None:
        ids = conversation.prompt(prompt)
    else:
        ids = conversation.chat([{"role": "user", "content": prompt}])
    return GenerationRequest(tuple(ids), max_tokens=max_tokens, chunk_size=size)
