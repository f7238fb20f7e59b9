"""Elastic decoding of a small trained model: whether sizes of chunks change its answers, and what they gain under
clients that ask again as soon as they are answered. Nothing is simulated.

The examples, which the model was not trained on, lie beside it in HELD_OUT: a list of objects with the name of a task,
a prompt and the one right answer.
"""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

from ramet.bench.core import machine
from ramet.bench.core.document import Watch
from ramet.bench.core.samples import Effort, interleave, summary
from ramet.bench.core.timing import clocked, closed_loop, timed
from ramet.bench.elastic.report import AUTO, WHOLE, ElasticReport
from ramet.engine.engine import Engine
from ramet.errors import InvalidRequest
from ramet.generation import GenerationRequest
from ramet.weights.locate import locate

HELD_OUT = "held_out.json"
_AT_ONCE = 16  # replies, while answers are compared
_A_CLIENT, _LEAST = 3, 12  # replies of a client in a run, and of all
_BUDGET_S = 20.0  # of a mode with so many clients
Example = dict[str, str]


@dataclass(frozen=True, slots=True)
class QuickWork:
    """examples: how many each mode answers, in `max_tokens` tokens at most. sizes: fixed ones; clients: how many ask at
    once, `repeats` times in each mode. seed: other examples, and other draws of them."""

    examples: int = 200
    clients: Sequence[int] = (1, 2, 4, 8, 16)
    repeats: int = 10
    sizes: Sequence[int] = (2, 4, 8, 16, 24, 32)
    max_tokens: int = 200
    seed: int = 0

    def drawn(self, source: str) -> list[Example]:
        """Raises InvalidRequest where the model has none, or not so many."""
        path = locate(source).path / HELD_OUT
        if not path.exists():
            raise InvalidRequest(f"{source} has no {HELD_OUT}, the examples that it is to answer", field="model")
        found: list[Example] = json.loads(path.read_text(encoding="utf-8"))
        if self.examples > len(found):
            raise InvalidRequest(f"{path} has {len(found)}", field="examples")
        first = self.seed * self.examples % len(found)
        return [*found[first:], *found[:first]][: self.examples]


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
    examples = work.drawn(source)
    start_s: dict[str, float] = {}
    watch.step(f"loading {source}")
    unmeasured = {name: value for name, value in settings.items() if name != "latency_cache"}
    with ExitStack() as stack:
        with timed(start_s, "engines"):
            auto = stack.enter_context(Engine.load(source, **settings, chunk_size="auto"))
            whole = stack.enter_context(Engine.load(source, **unmeasured, mode="block"))
        engines = {AUTO: auto, WHOLE: whole}
        own = auto.settings
        assert own.threads
        about = {**asdict(work), "device": own.device, "dtype": own.dtype}
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
            texts = answered.texts
            points = 100 * statistics.mean(right)
        row = {"mode": name, "commits": "measured", "n": len(examples), "exact": statistics.mean(right)}
        row["points_over_block"] = 100 * statistics.mean(right) - points
        row["same_as_block"] = statistics.mean(a == b for a, b in zip(answered.texts, texts, strict=True))
        row |= {"by_task": _by_task(examples, right), "tokens_step": answered.n_tokens / answered.n_steps}
        report.quality.append(row | {"rows_step": answered.n_rows / answered.n_steps})
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

    effort = Effort(work.repeats, _BUDGET_S)
    counts = {mode: effort.affordable(once(mode).seconds * 1e3) for mode in engines}
    runs: dict[str, list[Answered]] = {mode: [] for mode in engines}
    for mode in interleave(counts, rng):
        runs[mode].append(once(mode))
    rates = {mode: summary([each.tokens_s for each in own]) for mode, own in runs.items()}
    steps = {mode: sum(each.n_steps for each in own) for mode, own in runs.items()}
    return {
        "clients": n,
        "commits": "measured",
        "tokens_s": rates,
        "auto_over_block": rates[AUTO]["median"] / rates[WHOLE]["median"],
        "tokens_step": {mode: sum(each.n_tokens for each in own) / steps[mode] for mode, own in runs.items()},
        "rows_step": {mode: sum(each.n_rows for each in own) / steps[mode] for mode, own in runs.items()},
    }


def answer(
    engine: Engine, examples: Sequence[Example], n_clients: int, max_tokens: int, size: int | None = None
) -> Answered:
    """Replies to all prompts, n_clients at once."""
    before = engine.stats()
    requests = [_request(engine, example["prompt"], max_tokens, size) for example in examples]
    ms, (_, _, replies) = clocked(lambda: closed_loop(engine.generate, requests, n_clients))
    after = engine.stats()
    decode = engine.writer.conversation.tokenizer.decode
    texts = [decode(each.tokens[:-1] if each.finish == "stop" else each.tokens) for each in replies]
    n_steps, n_rows = (after[f"reply_{name}_total"] - before[f"reply_{name}_total"] for name in ("steps", "rows"))
    return Answered(texts, sum(len(each.tokens) for each in replies), ms / 1e3, n_steps, n_rows)


def _request(engine: Engine, prompt: str, max_tokens: int, size: int | None) -> GenerationRequest:
    conversation = engine.writer.conversation
    if conversation.template is None:
        ids = conversation.prompt(prompt)
    else:
        ids = conversation.chat([{"role": "user", "content": prompt}])
    return GenerationRequest(tuple(ids), max_tokens=max_tokens, chunk_size=size)
