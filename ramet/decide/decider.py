"""Decider: plans the tree of a request's questions, in one model's own frame and tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b

import numpy as np

from ramet.decide import joins, joint, letters, options, prompt
from ramet.decide.answers import planned
from ramet.decide.bounded_cache import BoundedCache
from ramet.decide.branch import QuestionBranch, Slot, grow, grow_canvases
from ramet.decide.budget import Budget
from ramet.decide.calibration import Calibration
from ramet.decide.canvas import NOISE, Canvas
from ramet.decide.encode_cache import EncodeCache
from ramet.decide.joint import Lines, Sheet
from ramet.decide.letters import VerifiedLabels
from ramet.decide.masks import masked
from ramet.decide.plan import Plan, Subtree, assemble
from ramet.decide.priors import Key, PlannedPriors, Prior
from ramet.decide.probe import PROBE
from ramet.decide.question_text import QuestionText
from ramet.decide.reply import ReplyStart
from ramet.decide.scaling import scalings
from ramet.decide.settings import DecideSettings
from ramet.decide.steps import Reading
from ramet.denoise.block_config import BlockConfig
from ramet.errors import CheckpointError, InvalidRequest
from ramet.question import Choice, Noul, Question
from ramet.request import DecisionRequest, Method
from ramet.text.chat import Frame
from ramet.text.tokenizer import WORD, Tokenizer
from ramet.tree import IntArray
from ramet.values import as_json

__all__ = ["Decider", "Plan"]

MAX_JOINED = 64  # times the tokens of a request are encoded at most where each question encodes the state again


class Decider:
    """Plans requests for one model. Built once at load; safe to use from many threads.

    Knows ids and counts, no tensors and no devices. Raises CheckpointError when the model's default
    method is "letters" and its tokenizer has no labels for it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        frame: Frame,
        settings: DecideSettings,
        canvas: Canvas | None = None,
        masking: BlockConfig | None = None,
    ) -> None:
        """`canvas` is what the replies of a diffusion model are read from; a model that fills in blocks of masks has
        its blocks instead."""
        self.settings = settings
        self._canvas, self._masking = canvas, masking
        self._tokenizer = tokenizer
        self._frame = frame
        start = ReplyStart.of(tokenizer, frame)
        self._cue = start.cue(tokenizer, frame)
        self._labels = VerifiedLabels(tokenizer, start)
        self._branches: BoundedCache[tuple[bytes, QuestionText | Sheet, str], QuestionBranch] = BoundedCache(
            settings.cached_entries
        )
        self._priors: BoundedCache[Key, Prior] = BoundedCache(settings.cached_entries)
        self._encode_cache = EncodeCache(tokenizer, settings.cached_bytes)
        if settings.method == "letters" and not self._labels.complete:
            raise CheckpointError(
                "yes and no, the digits and A to Z are not one token each where a reply begins; "
                'load with method="options"'
            )
        self._lines, self._why_no_lines = _lines(tokenizer, self._labels, canvas)

    @cached_property
    def asked(self) -> str:
        """A digest of the words in which this release asks by the model's own method, and of the priors' weights. The
        chat template is not in it: it may write the date, and the model's fingerprint has it."""
        method = self.settings.method
        forms = [self._form(question, method, PROBE, None, name) for name, question in PROBE.questions.items()]
        weights = [self._prior_weight(question, method, PROBE) for question in PROBE.questions.values()]
        said = (method, forms, weights, self._cue, self.settings.lead, self.settings.n_orders)
        return blake2b(repr(said).encode(), digest_size=16).hexdigest()

    def calibrate(self, calibration: Calibration) -> None:
        """Apply a calibration of this model and of this way to ask from now on."""
        self.settings = replace(self.settings, calibration=calibration)

    def plan(self, request: DecisionRequest, budget: Budget | None = None) -> Plan:
        """The tree that answers a request. Raises InvalidRequest naming the field, before any work is done, and,
        as soon as that is clear, RequestTooLong for more tokens than `budget` has (None: any number)."""
        budget = budget or Budget()
        state, owner = as_json(request.state), _owner(request.cache_salt)
        self._check_extent(state, request, budget)
        method = request.x_method or self.settings.method
        self._check_noise(request)
        lines = self._lines_for(request)
        forms = [self._form(q, method, request, lines, f"questions.{name}") for name, q in request.questions.items()]
        if lines is None:
            self._check_canvases(forms, budget)
        weights = [self._prior_weight(question, method, request) for question in request.questions.values()]
        subtrees = [self._subtree(state, forms if lines is None else lines.sheets(forms), owner, budget)]
        primed = [form for form, weight in zip(forms, weights, strict=True) if weight]
        priors = PlannedPriors(self._priors, owner, primed, len(self._frame.head))
        budget.spend(priors.n_kept_tokens)  # whether a request fits does not depend on who asked before
        if priors.due:
            subtrees.append(self._subtree("", priors.due, owner, budget))
        tree, cells, blanks = assemble(subtrees, self._canvas, request.noise_seed)
        trunk = len(subtrees[0].trunk)
        branches = subtrees[0].branches
        due = subtrees[1].branches if priors.due else ()
        places = priors.lay(due, sum(branch.n_cells for branch in branches))
        questions = planned(request, weights, places, branches, scalings(request, self.settings, method))
        layout = None if lines is None else joint.layout(request.questions, branches)
        read = None
        if self._canvas is not None and request.x_steps > 1:
            read = Reading(tree, blanks, self._canvas.denoising, request.x_steps)
        mark = max(0, trunk - self._mutable(state))
        loaded = self.settings.calibration
        digest = None if loaded is None else loaded.digest
        return Plan(tree, trunk, mark, cells, questions, priors, request.x_confidence, layout, read, digest)

    def _check_noise(self, request: DecisionRequest) -> None:
        """Raise InvalidRequest for fields that only a model with canvases takes."""
        if self._canvas is None:
            if request.x_samples > 1:
                raise InvalidRequest("only a diffusion model reads noise that can be drawn again", field="x_samples")
            if request.x_steps > 1:
                raise InvalidRequest("only a diffusion model reads noise that can be denoised", field="x_steps")
            if request.x_seed is not None:
                raise InvalidRequest("only a diffusion model reads noise that a seed can change", field="x_seed")
        elif request.x_steps > self._canvas.denoising.max_steps:
            n = self._canvas.denoising.max_steps
            raise InvalidRequest(f"a canvas takes at most {n} steps here, not {request.x_steps}", field="x_steps")

    def _check_extent(self, state: str, request: DecisionRequest, budget: Budget) -> None:
        """Raise RequestTooLong, before any question becomes text, for more questions or more characters than can
        fit."""
        n_questions = len(request.questions)
        budget.need(n_questions * (1 + len(self._frame.tail)), f"{n_questions} questions have ")
        method = request.x_method or self.settings.method
        n_letters = len(state) + sum(
            self.settings.orders_of(method, question, request.x_debias) * _n_letters(question)
            for question in request.questions.values()
        )
        budget.need(n_letters // self._tokenizer.longest, f"{n_letters} characters have ")

    def _check_canvases(self, forms: Sequence[QuestionText], budget: Budget) -> None:
        """Raise RequestTooLong for too many canvases: orders times samples may be hundreds a question."""
        if self._canvas is not None:
            n = sum(len(form.prompts) * form.n_samples for form in forms) * len(self._canvas.filled([NOISE]))
            budget.need(n, "the canvases have ")

    def _lines_for(self, request: DecisionRequest) -> Lines | None:
        """The lines of a joint read; None where each question is read by itself. Raises InvalidRequest."""
        if not request.joint or (self._canvas is not None and len(request.questions) == 1):
            return None
        if self._lines is None:
            raise InvalidRequest(self._why_no_lines, field="joint")
        return self._lines

    def _form(
        self, question: Question, method: Method, request: DecisionRequest, lines: Lines | None, field: str
    ) -> QuestionText:
        if method == "letters":
            n_orders = self.settings.orders_of(method, question, request.x_debias)
            form = letters.form(question, self._labels, n_orders, field, alone=lines is None)
            if lines is not None:
                lines.check(form, field)
            return replace(form, n_samples=request.x_samples)
        if self._canvas is not None or self._masking is not None:
            slot = "on a canvas with a slot" if self._masking is None else "at a mask"
            raise InvalidRequest(
                f'a diffusion model is read {slot} for one label: leave it at "letters"', field="x_method"
            )
        if (request.x_debias or 1) > 1:
            raise InvalidRequest(
                'has no effect with the method "options", whose prompts list no options in an order: leave it at 1, or '
                'set x_method to "letters"',
                field="x_debias",
            )
        return options.form(question, self.settings.scored, field)

    def _prior_weight(self, question: Question, method: Method, request: DecisionRequest) -> float:
        """How much of a question's prior is taken off. Raises InvalidRequest where the model has none."""
        if self._canvas is not None or self._masking is not None:
            if request.x_prior is not None:
                raise InvalidRequest("a diffusion model is read without a prior: leave it away", field="x_prior")
            return 0.0
        if request.x_prior is not None:
            return request.x_prior
        weights = self.settings.prior_of(method)
        return options.prior_weight(question, weights) if method == "options" else weights.of(question.type)

    def _subtree(self, state: str, forms: Sequence[QuestionText | Sheet], owner: bytes, budget: Budget) -> Subtree:
        """Trunk and branches as the model reads them. `owner` finds what the cache keeps of them."""
        subtree = self._prompts(state, forms, owner, budget)
        return subtree if self._masking is None else masked(subtree, self._masking)

    def _prompts(self, state: str, forms: Sequence[QuestionText | Sheet], owner: bytes, budget: Budget) -> Subtree:
        """A trunk that ends behind the state, and each form's branch; joined, their ids are those of whole prompts."""
        text, head = prompt.trunk_text(self._frame, state, self.settings.lead), np.array(self._frame.head, np.int32)
        if not text or self._tokenizer.splits_before_words or self._tokenizer.splits_before_breaks:
            own, lead = self._trunk(text, owner, budget)
            return Subtree(np.concatenate((head, own)), [self._ready(form, lead, owner, budget) for form in forms])
        self._tokenizer.check_length(text, budget.max_tokens)
        suffixes = [prompt.suffix_text(self._frame, words) for form in forms for words in form.prompts]
        ids, cuts = joins.cut(self._tokenizer.encode, text, suffixes, MAX_JOINED * budget.max_tokens)
        rest = iter(cuts)
        branches = [self._grown(form, [next(rest) for _ in form.prompts]) for form in forms]
        return Subtree(np.concatenate((head, np.array(ids, np.int32))), branches)

    def _trunk(self, text: str, owner: bytes, budget: Budget) -> tuple[IntArray, str]:
        """The ids of a trunk's text that no words behind it change, and the rest of the text, which is encoded with
        them."""
        if not text:
            return np.zeros(0, np.int32), self._frame.opening
        if self._tokenizer.splits_before_words:
            return self._encode_cache.encode(text + WORD, owner, budget)[:-1], ""
        body, breaks = joins.before_breaks(text)
        return self._encode_cache.encode(body, owner, budget), breaks

    def _mutable(self, state: str) -> int:
        """Tokens at the end of the trunk that a state which has grown is likely not to share."""
        lead = self.settings.lead
        whole, lasting = (prompt.trunk_text(self._frame, text, lead) for text in (state, prompt.lasting(state)))
        stays = bisect_left(range(len(lasting)), True, key=lambda n: not whole.startswith(lasting[: n + 1]))
        return len(self._tokenizer.encode(whole[stays:]))

    def _ready(self, form: QuestionText | Sheet, lead: str, owner: bytes, budget: Budget) -> QuestionBranch:
        """The branch of a form that fits behind any trunk with that lead. It is made once for an owner, and kept."""
        branch = self._branches.get((owner, form, lead))
        if branch is None:
            suffixes = [lead + prompt.suffix_text(self._frame, words) for words in form.prompts]
            for text in (*suffixes, *(form.replies if isinstance(form, QuestionText) else ())):
                self._tokenizer.check_length(text, budget.max_tokens)
            branch = self._grown(form, self._tokenizer.encode_each(suffixes))
            self._branches.put((owner, form, lead), branch, form.n_characters + len(lead) + branch.n_entries)
        budget.spend(len(branch.tokens))
        return branch

    def _grown(self, form: QuestionText | Sheet, suffixes: Sequence[Sequence[int]]) -> QuestionBranch:
        prompts = [[*ids, *self._frame.tail] for ids in suffixes]
        if isinstance(form, Sheet):
            assert self._lines is not None
            return self._lines.branch(form, prompts)
        if form.labels:
            labels = [[(label,) for label in order] for order in form.labels]
            if self._canvas is None:
                return grow(prompts, labels, None)
            return grow_canvases(prompts, self._canvas.filled([NOISE]), form.n_samples, [Slot(0, labels)])
        replies = self._tokenizer.encode_each([f" {text}" for text in form.replies])
        return grow([[*ids, *self._cue] for ids in prompts], [replies], self._frame.end)


def _owner(salt: str) -> bytes:
    """The owner of kept texts, by the salt. What is kept for one salt is not found with another, so that the time of an
    answer does not show one tenant what another has sent."""
    return blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _n_letters(question: Question) -> int:
    """Characters of a question's texts, those of its options and their names included."""
    texts = [question.instructions]
    if isinstance(question, Noul):
        texts += [] if question.criteria is None else [question.criteria.true, question.criteria.false]
    else:
        texts += [*question.criteria, *(question.criteria.values() if isinstance(question, Choice) else ())]
    return sum(len(as_json(text)) for text in texts if text is not None)


def _lines(tokenizer: Tokenizer, labels: VerifiedLabels, canvas: Canvas | None) -> tuple[Lines | None, str]:
    """The lines of joint reads; or None, and why the model has none."""
    if canvas is None:
        return None, "only a diffusion model reads several questions on one canvas"
    try:
        return Lines(tokenizer, labels, canvas), ""
    except CheckpointError as error:
        return None, f"this model reads no questions jointly: {error}"
