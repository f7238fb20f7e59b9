"""Reads of DiffusionGemma: in one pass against two steps, under load, several questions, and beside transformers.

Weights are random and of the true shape, and all sides choose experts evenly. Two engines share one model: one reads a
canvas in the round that ends its prompt, the other in a round behind it. Everything that is compared runs by turns. The
baseline of two steps is there twice, and by how much its repeat differs is the noise of all other differences.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import cast

import numpy as np
import torch

from ramet.bench.core import machine
from ramet.bench.core.agreement import TOLERANCE, agree
from ramet.bench.core.canvases import CanvasForm, CanvasRead
from ramet.bench.core.document import Watch
from ramet.bench.core.named_shapes import config_of
from ramet.bench.core.products import products
from ramet.bench.core.random_model import RandomModel
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import Effort, JsonObject, Row, affordable, interleave
from ramet.bench.core.timing import timed
from ramet.bench.reads.report import AGAIN, ISOLATED, JOINT, ONE, PEER, TWO, ReadLoad, ReadsReport
from ramet.bench.reads.sides import Sides, Turn, closed_loop
from ramet.engine.settings import EngineSettings
from ramet.errors import InvalidRequest, RametError
from ramet.tree import FloatArray

TWIN = "tiny"
_TWIN_FORMS = (CanvasForm.of(40, 16), CanvasForm.of(150, 32))  # shorter and longer than its window
_TWIN_ROUND = 512  # tokens
_N_WARM = {"cpu": 1, "cuda": 4}
_LEAST_BLOCK_S = 1.0  # of reads under load, as one of them alone takes it
_OURS = {ONE: ONE, TWO: TWO, AGAIN: TWO}  # contestants, and the engine of each: the repeat is the same one's
_Run = tuple[float, list[float], int]  # reads a second, milliseconds of each, steps of the engine


@dataclass(frozen=True, slots=True)
class ReadsWork:
    """prompts: their lengths. width: of a canvas. clients: how many at once. n_questions: of a joint canvas, 0 for
    none. n_reads: one after the other with prompts of the first length; of others, and of everything else, as `effort`
    says."""

    prompts: Sequence[int]
    width: int
    clients: Sequence[int]
    n_questions: int
    n_reads: int
    effort: Effort = field(default_factory=Effort)

    def as_json(self) -> JsonObject:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @property
    def n_parts(self) -> int:
        return len(self.prompts) * (1 + len(self.clients) + (self.n_questions > 0))

    def forms(self) -> Iterator[tuple[str, CanvasForm]]:
        """All reads, each with the setting that it is of."""
        for n_prompt in self.prompts:
            yield "canvas", CanvasForm.of(n_prompt, self.width)
            if self.n_questions:
                yield "questions", CanvasForm.joint(n_prompt, self.n_questions)
                yield "questions", CanvasForm.isolated(n_prompt, self.n_questions)

    @property
    def n_kept(self) -> int:
        """Tokens of all that is under way at once, twice."""
        return 2 * max(self.prompts) * max(self.clients, default=1)


def run(
    shape: str, settings: EngineSettings, work: ReadsWork, *, with_peer: bool, price: float | None, watch: Watch
) -> ReadsReport:
    """Settings are resolved ones. Raises InvalidRequest for work that the model or the engine does not take, and
    RametError where answers differ: there is no figure for a wrong one."""
    check(shape, settings, work)
    start_s: dict[str, float] = {}
    assert settings.threads
    torch.set_num_threads(settings.threads)
    watch.step("comparing answers on a small float32 twin")
    with timed(start_s, "twin"):
        difference = twin_difference(settings, with_peer=with_peer)
    watch.step(f"making {shape}")
    with timed(start_s, "model"):
        model = RandomModel.of(shape, settings, even=True)
    watch.step("starting the engines, and the peer" if with_peer else "starting the engines")
    started = time.perf_counter()
    with Sides.opened(model, settings, with_peer=with_peer, n_kept=work.n_kept, seed=work.effort.seed) as sides:
        start_s["engines and peer"] = time.perf_counter() - started
        with timed(start_s, "rates"):
            rates = DeviceRates.of(model.decoder)
        report = ReadsReport(
            model.describe(), machine.describe(settings.threads), {**work.as_json(), **sides.engines[ONE].describe()},
            price_per_month=price, peer=None if sides.peer is None else {"name": sides.peer.name, **sides.peer.how},
            rates=dict(asdict(rates)), difference=difference, start_s=start_s,
        )  # fmt: skip
        gc.collect()
        gc.freeze()
        for n_done, _ in enumerate(_parts(report, sides, rates, work, watch), 1):
            watch.save(report)
            watch.done(n_done / work.n_parts)
    return report


def check(shape: str, settings: EngineSettings, work: ReadsWork) -> None:
    """Raise InvalidRequest for what would fail in the midst of a run, or measure what no model reads."""
    config = config_of(shape)
    length = config.get_text_config().max_position_embeddings
    for name, form in work.forms():
        if form.width > config.canvas_length:
            raise InvalidRequest(f"a canvas of {form.width} rows; the model's have {config.canvas_length}", field=name)
        if form.n_prompt + form.width > length:
            raise InvalidRequest(f"{form} tokens in all; the model takes {length}", field="prompts")
        if form.n_rows > settings.max_request_tokens:
            most = f"{settings.max_request_tokens} at most (max_request_tokens)"
            raise InvalidRequest(f"{form} tokens in all, {most}", field="prompts")
    if (most_clients := max(work.clients, default=1)) > settings.max_queue:
        raise InvalidRequest(f"{most_clients} at once; {settings.max_queue} may wait", field="clients")


def twin_difference(settings: EngineSettings, *, with_peer: bool) -> dict[str, float]:
    """By how much label probabilities in two steps, and the peer's, differ from ours in one pass, on a tiny model of
    the same structure in float32, whose experts are chosen by the router's own weights. Raises RametError where that
    is more than rounding."""
    exact = replace(settings, dtype="float32", max_round_tokens=_TWIN_ROUND, batch_invariant=False)
    found: dict[str, float] = {}
    with Sides.opened(RandomModel.of(TWIN, exact), exact, with_peer=with_peer) as sides:
        for form in _TWIN_FORMS:
            read = sides.draw(form)
            answers = {name: turn(read) for name, turn in sides.turns.items()}
            moved = _differences(answers, most=TOLERANCE[torch.float32])
            found = {name: max(found.get(name, 0.0), value) for name, value in moved.items()}
    return found


def _parts(report: ReadsReport, sides: Sides, rates: DeviceRates, work: ReadsWork, watch: Watch) -> Iterator[None]:
    """Everything that is measured, one line after the other."""
    effort = work.effort
    for i, n_prompt in enumerate(work.prompts):
        form = CanvasForm.of(n_prompt, work.width)
        row = serial(sides, form, effort.repeats if i else work.n_reads, rates, effort, watch)
        report.latency.append(row)
        yield
        for n_clients in work.clients:
            report.loads.append(_alone(row) if n_clients == 1 else load(sides, row, form, n_clients, effort, watch))
            yield
        if work.n_questions:
            report.questions.append(questions(sides, n_prompt, work.n_questions, effort, watch))
            yield


def serial(sides: Sides, form: CanvasForm, n_reads: int, rates: DeviceRates, effort: Effort, watch: Watch) -> Row:
    """One read after the other, and what each takes at least: the notes have the engines' steps and the floors."""
    row, turns = Row(str(form)), sides.turns
    first = _warm(sides, form, row, watch)
    counts, steps = dict.fromkeys(_OURS, n_reads), dict.fromkeys(_OURS, 0)
    if PEER in turns:
        counts[PEER] = affordable(first[PEER], n_reads, effort.budget_s)
    for name in interleave(counts, _rng(form, effort)):
        watch.step(f"{form}: {name}, {len(row.samples.get(name, ())) + 1} of {counts[name]}")
        side = _OURS.get(name, name)
        engine = sides.engines.get(side)
        before = engine.stats()["rounds_total"] if engine else 0
        row.add(name, _ms(turns[side], sides.draw(form)))
        if engine:
            steps[name] += int(engine.stats()["rounds_total"] - before)
    arithmetic_ms, bytes_ms = rates.floors_ms(products(sides.model.decoder, sides.draw(form).tree))
    row.notes |= {"reads": n_reads, "steps": steps, "arithmetic_ms": arithmetic_ms, "bytes_ms": bytes_ms}
    return row


def _ms(turn: Turn, read: CanvasRead) -> float:
    started = time.perf_counter()
    turn(read)
    return (time.perf_counter() - started) * 1e3


def _warm(sides: Sides, form: CanvasForm, row: Row, watch: Watch) -> dict[str, float]:
    """First runs; the last of them is the same read for everybody, and the answers are compared. Returns the
    milliseconds that it took."""
    common, ms, answers = sides.draw(form), {}, {}
    for name, turn in sides.turns.items():
        watch.step(f"{form}: warm-up, {name}")
        for _ in range(_N_WARM[sides.model.decoder.device.type]):
            turn(sides.draw(form))
        started = time.perf_counter()
        answers[name] = turn(common)
        ms[name] = (time.perf_counter() - started) * 1e3
    row.notes["difference"] = _differences(answers)
    return ms


def _alone(row: Row) -> ReadLoad:
    """What one client gets: each of the reads that were timed one after the other is a run."""
    found = ReadLoad(row.shape, 1)
    for name, each in row.samples.items():
        for ms in each:
            found.add(name, 1e3 / ms, [ms])
    found.steps |= cast(dict[str, int], row.notes["steps"])
    return found


def load(sides: Sides, alone: Row, form: CanvasForm, n_clients: int, effort: Effort, watch: Watch) -> ReadLoad:
    """Several clients at once. alone: the same reads one after the other, by which the length of a run is chosen."""
    found, one_ms = ReadLoad(str(form), n_clients), alone.median(ONE)
    assert one_ms is not None
    n_reads = n_clients * max(2, math.ceil(_LEAST_BLOCK_S * 1e3 / (n_clients * one_ms)))

    def turn(name: str) -> _Run:
        watch.step(f"{form}: {n_clients} clients, {name}")
        if name == PEER:
            return _peers_batch(sides, form, n_clients)
        engine, trees = sides.engines[_OURS[name]], [sides.draw(form).tree for _ in range(n_reads)]
        before = engine.stats()["rounds_total"]
        rate, ms = closed_loop(engine, trees, n_clients)
        return rate, ms, int(engine.stats()["rounds_total"] - before)

    counts = {name: affordable(_run_ms(turn(name), n_reads), effort.repeats, effort.budget_s) for name in (ONE, TWO)}
    counts[AGAIN] = counts[TWO]
    peers_ms = n_clients * (alone.median(PEER) or math.inf)
    if peers_ms <= effort.budget_s * 1e3:
        counts[PEER] = affordable(_run_ms(turn(PEER), n_clients), effort.repeats, effort.budget_s)
    for name in interleave(counts, _rng(form, effort)):
        found.add(name, *turn(name))
    return found


def _run_ms(turn: _Run, n_reads: int) -> float:
    return n_reads / turn[0] * 1e3


def _peers_batch(sides: Sides, form: CanvasForm, n_clients: int) -> _Run:
    """The milliseconds are those of the batch."""
    assert sides.peer is not None
    batch = [sides.draw(form) for _ in range(n_clients)]
    started = time.perf_counter()
    sides.peer(batch)
    seconds = time.perf_counter() - started
    return n_clients / seconds, [seconds * 1e3], 0


def questions(sides: Sides, n_prompt: int, n_questions: int, effort: Effort, watch: Watch) -> Row:
    """Questions on one canvas, where each sees all others, and on a canvas each; both in one pass."""
    forms = {JOINT: CanvasForm.joint(n_prompt, n_questions), ISOLATED: CanvasForm.isolated(n_prompt, n_questions)}
    row = Row(f"{n_prompt}, {n_questions} questions", notes={"rows": {name: f.n_rows for name, f in forms.items()}})
    order = [*forms, *interleave(dict.fromkeys(forms, effort.repeats), _rng(forms[JOINT], effort))]
    for i, name in enumerate(order):  # the first of each warms up
        watch.step(f"{n_prompt}: {n_questions} questions, {name}")
        ms = _ms(sides.turns[ONE], sides.draw(forms[name]))
        if i >= len(forms):
            row.add(name, ms)
    return row


def _rng(form: CanvasForm, effort: Effort) -> random.Random:
    return random.Random(f"{effort.seed} {form}")  # noqa: S311


def _differences(answers: Mapping[str, FloatArray], most: float = math.inf) -> dict[str, float]:
    """The largest difference of a label's probability from ours in one pass, by contestant. Raises RametError where it
    is more than `most`. As measured it is reported alone: rounding sends rows to other experts."""
    if odd := [name for name, logits in answers.items() if not np.isfinite(logits).all()]:
        raise RametError(f"no figures: logits of {' and '.join(odd)} are not finite")
    return agree({"ours" if name == ONE else name: logits for name, logits in answers.items()}, most)
