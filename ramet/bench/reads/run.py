"""Reads of DiffusionGemma: in one pass against two steps, under load, several questions, and beside transformers.

Weights are random and of the true shape, and all sides choose experts evenly. Two engines share one model: one reads a
canvas in the round that ends its prompt, the other in a round behind it. Everything that is compared runs by turns. The
baseline of two steps is there twice, and by how much its repeat differs is the noise of all other differences.
"""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import numpy as np
import torch

from ramet.bench.core import machine
from ramet.bench.core.agreement import TOLERANCE, agree
from ramet.bench.core.canvases import CanvasForm
from ramet.bench.core.document import Watch
from ramet.bench.core.named_shapes import config_of
from ramet.bench.core.products import products
from ramet.bench.core.random_model import RandomModel
from ramet.bench.core.rates import DeviceRates
from ramet.bench.core.samples import Effort, Row, interleave
from ramet.bench.core.timing import clocked, closed_loop, timed
from ramet.bench.reads.report import AGAIN, ISOLATED, JOINT, ONE, PEER, TWO, ReadLoad, ReadsReport
from ramet.bench.reads.sides import Sides
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
    with ExitStack() as stack:
        with timed(start_s, "engines and peer"):
            opened = Sides.opened(model, settings, with_peer=with_peer, n_kept=work.n_kept, seed=work.effort.seed)
            sides = stack.enter_context(opened)
        with timed(start_s, "rates"):
            rates = DeviceRates.of(model.decoder)
        report = ReadsReport(
            model.describe(),
            machine.describe(settings.threads),
            {**asdict(work), **sides.engines[ONE].describe()},
            price_per_month=price,
            peer=None if sides.peer is None else {"name": sides.peer.name, **sides.peer.how},
            rates=asdict(rates),
            difference=difference,
            start_s=start_s,
        )
        gc.collect()
        gc.freeze()
        for n_done, _ in enumerate(_parts(report, sides, rates, work, watch), 1):
            watch.passed(report, n_done / work.n_parts)
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
    row = Row(str(form))
    turns = sides.turns
    first = _warm(sides, form, row, watch)
    counts = dict.fromkeys(_OURS, n_reads)
    steps = dict.fromkeys(_OURS, 0)
    if PEER in turns:
        counts[PEER] = effort.affordable(first[PEER], n_reads)

    def turn(name: str) -> float:
        side = _OURS.get(name, name)
        before = sides.n_rounds(side)
        ms, _ = clocked(partial(turns[side], sides.draw(form)))
        if name in steps:
            steps[name] += sides.n_rounds(side) - before
        return ms

    row.take_turns(counts, turn, watch.step, _rng(form, effort))
    arithmetic_ms, bytes_ms = rates.floors_ms(products(sides.model.decoder, sides.draw(form).tree))
    row.notes |= {"reads": n_reads, "steps": steps, "arithmetic_ms": arithmetic_ms, "bytes_ms": bytes_ms}
    return row


def _warm(sides: Sides, form: CanvasForm, row: Row, watch: Watch) -> dict[str, float]:
    """First runs; the last of them is the same read for everybody, and the answers are compared. Returns the
    milliseconds that it took."""
    common = sides.draw(form)
    ms: dict[str, float] = {}
    answers: dict[str, FloatArray] = {}
    for name, turn in sides.turns.items():
        watch.step(f"{form}: warm-up, {name}")
        for _ in range(_N_WARM[sides.model.decoder.device.type]):
            turn(sides.draw(form))
        ms[name], answers[name] = clocked(partial(turn, common))
    row.notes["difference"] = _differences(answers)
    return ms


def _alone(row: Row) -> ReadLoad:
    """What one client gets: each of the reads that were timed one after the other is a run."""
    found = ReadLoad(row.shape, 1)
    for name, each in row.samples.items():
        for ms in each:
            found.add(name, 1e3 / ms, [ms])
    found.steps |= row.notes["steps"]
    return found


def load(sides: Sides, alone: Row, form: CanvasForm, n_clients: int, effort: Effort, watch: Watch) -> ReadLoad:
    """Several clients at once. alone: the same reads one after the other, by which the length of a run is chosen."""
    found = ReadLoad(str(form), n_clients)
    one_ms = alone.median(ONE)
    assert one_ms is not None
    n_reads = n_clients * max(2, math.ceil(_LEAST_BLOCK_S * 1e3 / (n_clients * one_ms)))

    def turn(name: str) -> _Run:
        watch.step(f"{form}: {n_clients} clients, {name}")
        if name == PEER:
            return _peers_batch(sides, form, n_clients)
        side = _OURS[name]
        reads = [sides.draw(form) for _ in range(n_reads)]
        before = sides.n_rounds(side)
        rate, ms, _ = closed_loop(sides.turns[side], reads, n_clients)
        return rate, ms, sides.n_rounds(side) - before

    counts = {name: effort.affordable(n_reads / turn(name)[0] * 1e3) for name in (ONE, TWO)}
    counts[AGAIN] = counts[TWO]
    if n_clients * (alone.median(PEER) or math.inf) <= effort.budget_s * 1e3:
        counts[PEER] = effort.affordable(n_clients / turn(PEER)[0] * 1e3)
    for name in interleave(counts, _rng(form, effort)):
        found.add(name, *turn(name))
    return found


def _peers_batch(sides: Sides, form: CanvasForm, n_clients: int) -> _Run:
    """The milliseconds are those of the batch."""
    assert sides.peer is not None
    ms, _ = clocked(partial(sides.peer, [sides.draw(form) for _ in range(n_clients)]))
    return n_clients / ms * 1e3, [ms], 0


def questions(sides: Sides, n_prompt: int, n_questions: int, effort: Effort, watch: Watch) -> Row:
    """Questions on one canvas, where each sees all others, and on a canvas each; both in one pass."""
    forms = {JOINT: CanvasForm.joint(n_prompt, n_questions), ISOLATED: CanvasForm.isolated(n_prompt, n_questions)}
    row = Row(f"{n_prompt}, {n_questions} questions", notes={"rows": {name: f.n_rows for name, f in forms.items()}})

    def turn(name: str) -> float:
        return clocked(partial(sides.turns[ONE], sides.draw(forms[name])))[0]

    for name in forms:
        watch.step(f"{row.shape}: {name} warms up")
        turn(name)
    row.take_turns(dict.fromkeys(forms, effort.repeats), turn, watch.step, _rng(forms[JOINT], effort))
    return row


def _rng(form: CanvasForm, effort: Effort) -> random.Random:
    return random.Random(f"{effort.seed} {form}")  # noqa: S311


def _differences(answers: Mapping[str, FloatArray], most: float = math.inf) -> dict[str, float]:
    """The largest difference of a label's probability from ours in one pass, by contestant. Raises RametError where it
    is more than `most`. As measured it is reported alone: rounding sends rows to other experts."""
    if odd := [name for name, logits in answers.items() if not np.isfinite(logits).all()]:
        raise RametError(f"no figures: logits of {' and '.join(odd)} are not finite")
    return agree({"ours" if name == ONE else name: logits for name, logits in answers.items()}, most)
