"""Elastic decoding of a small trained model: whether sizes of chunks change its answers, and what they gain under
clients that ask again as soon as they are answered. Nothing is simulated.

The examples, which the model was not trained on, lie beside it in HELD_OUT: a list of objects with the name of a task,
a prompt and the one right answer.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ramet.bench.core import machine
from ramet.bench.core.document import Watch
from ramet.bench.core.samples import JsonObject, affordable, interleave, summary
from ramet.bench.core.timing import timed
from ramet.bench.elastic.report import AUTO, WHOLE, ElasticReport
from ramet.engine.engine import Engine
from ramet.errors import InvalidRequest
from ramet.generation import Generation, GenerationRequest
from ramet.weights.locate import locate

HELD_OUT = "held_out.json"
_AT_ONCE = 16  # replies, while answers are compared
_A_CLIENT, _LEAST = 3, 12  # replies of a client in a run, and of all
_BUDGET_S = 20.0  # of a mode with so many clients
Example = dict[str, str]


@dataclass(frozen=True, slots=True)
class QuickWork:
    """n_examples: how many each mode answers, in tokens `max_tokens` at most. sizes: fixed ones; clients: how many ask
    at once, `repeats` times in each mode. seed: other examples, and other draws of them."""

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

    def examples(self, source: str) -> list[Example]:
        """Raises InvalidRequest where the model has none, or not so many."""
        path = locate(source).path / HELD_OUT
        if not path.exists():
            raise InvalidRequest(f"{source} has no {HELD_OUT}, the examples that it is to answer", field="model")
        found: list[Example] = json.loads(path.read_text(encoding="utf-8"))
        if self.n_examples > len(found):
            raise InvalidRequest(f"{path} has {len(found)}", field="examples")
        first = self.seed * self.n_examples % len(found)
        return [*found[first:], *found[:first]][: self.n_examples]


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


def run(source: str, settings: Mapping[str, Any], work: QuickWork, *, watch: Watch) -> ElasticReport:
    """settings: of the engines, as `Engine.load` takes them. Raises as it does."""
    examples, start_s = work.examples(source), dict[str, float]()
    watch.step(f"loading {source}")
    unmeasured = {name: value for name, value in settings.items() if name != "latency_cache"}
    with ExitStack() as stack:
        with timed(start_s, "engines"):
            auto = stack.enter_context(Engine.load(source, **settings, chunk_size="auto"))
            whole = stack.enter_context(Engine.load(source, **unmeasured, mode="block"))
        engines, own = {AUTO: auto, WHOLE: whole}, auto.settings
        assert own.threads
        about = {**work.as_json(), "device": own.device, "dtype": own.dtype}
        report = ElasticReport(auto.name, machine.describe(own.threads), about, start_s=start_s)
        _quality(report, engines, examples, work, watch)
        report.latency = auto.describe().get("latency", "")  # measured at the first reply
        for n in work.clients:
            report.clients.append(clients(engines, examples, n, work, watch))
            watch.save(report)
    return report


def _quality(
    report: ElasticReport, engines: Mapping[str, Engine], examples: Sequence[Example], work: QuickWork, watch: Watch
) -> None:
    """Every size, whole blocks first: what others are compared with."""
    block = engines[WHOLE].blocks
    assert block is not None
    sizes: list[int | None] = [None, *(size for size in work.sizes if size <= block.size)]
    texts: list[str] = []
    points = 0.0
    for name, size in [(WHOLE, None), *((str(size or AUTO), size) for size in sizes)]:
        watch.step(f"{len(examples)} examples: {name}")
        engine = engines[WHOLE if name == WHOLE else AUTO]
        answered = answer(engine, examples, min(_AT_ONCE, len(examples)), work.max_tokens, size)
        right = [text.strip() == each["answer"] for each, text in zip(examples, answered.texts, strict=True)]
        if name == WHOLE:
            texts, points = answered.texts, 100 * statistics.mean(right)
        report.quality.append({
            "mode": name, "commits": "measured", "n": len(examples), "exact": statistics.mean(right),
            "points_over_block": 100 * statistics.mean(right) - points,
            "same_as_block": statistics.mean(a == b for a, b in zip(answered.texts, texts, strict=True)),
            "by_task": _by_task(examples, right), "tokens_step": answered.n_tokens / answered.n_steps,
            "rows_step": answered.n_rows / answered.n_steps,
        })  # fmt: skip
        watch.save(report)


def _by_task(examples: Sequence[Example], right: Sequence[bool]) -> dict[str, float]:
    by_task: dict[str, list[bool]] = {}
    for example, is_right in zip(examples, right, strict=True):
        by_task.setdefault(example["task"], []).append(is_right)
    return {name: statistics.mean(own) for name, own in by_task.items()}


def clients(
    engines: Mapping[str, Engine], examples: Sequence[Example], n: int, work: QuickWork, watch: Watch
) -> dict[str, Any]:
    """Tokens a second with so many clients, of each mode by turns; the first run of each warms up. The n-th run of a
    mode has the prompts of that of the other."""
    rng = random.Random(f"{work.seed} {n}")  # noqa: S311
    draws = {mode: random.Random(f"{work.seed} {n} prompts") for mode in engines}  # noqa: S311
    n_prompts = max(_LEAST, _A_CLIENT * n)

    def once(mode: str) -> Answered:
        watch.step(f"{n} clients: {mode}")
        return answer(engines[mode], draws[mode].choices(examples, k=n_prompts), n, work.max_tokens)

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
    engine: Engine, examples: Sequence[Example], n_clients: int, max_tokens: int, size: int | None = None
) -> Answered:
    """Replies to all prompts, n_clients at once."""
    conversation, before, seconds = engine.writer.conversation, engine.stats(), dict[str, float]()
    requests = [_request(engine, example["prompt"], max_tokens, size) for example in examples]
    with timed(seconds, "all"):
        replies = asyncio.run(_answered(engine, requests, n_clients))
    after, decode = engine.stats(), conversation.tokenizer.decode
    texts = [decode(each.tokens[:-1] if each.finish == "stop" else each.tokens) for each in replies]
    n_steps, n_rows = (after[f"reply_{name}_total"] - before[f"reply_{name}_total"] for name in ("steps", "rows"))
    return Answered(texts, sum(len(each.tokens) for each in replies), seconds["all"], n_steps, n_rows)


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
