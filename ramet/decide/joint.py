"""Joint reads: several questions answered on one canvas, a line each, ``number: label``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

from ramet.decide import prompt
from ramet.decide.branch import Ids, QuestionBranch, Slot, grow_canvases
from ramet.decide.canvas import NOISE, Canvas
from ramet.decide.letters import Label, VerifiedLabels
from ramet.decide.question_text import QuestionText
from ramet.decision import Joint, JointCanvas
from ramet.errors import CheckpointError, InvalidRequest
from ramet.text.tokenizer import Tokenizer

MAX_JOINT = 64  # questions of a request, whose numbers' lines are verified
_GAPS = ("", " ")  # what stands between a line's colon and its label's token, which else begins with the space


@dataclass(frozen=True, slots=True)
class Sheet:
    """Questions that share canvases, numbered from `first` on; equal sheets have equal branches.

    Each of its `prompts` lists every question in one order of its options: one with fewer orders than another begins
    anew, and is read below the first prompts alone, so that each of its orders counts as much.
    """

    first: int
    forms: tuple[QuestionText, ...]

    @property
    def prompts(self) -> tuple[str, ...]:
        """The words behind the state, as of a form."""
        n_orders = max(len(form.prompts) for form in self.forms)
        each = ([form.prompts[order % len(form.prompts)] for form in self.forms] for order in range(n_orders))
        return tuple(prompt.together(words, self.first) for words in each)

    @property
    def n_characters(self) -> int:
        """Its size in characters, for the cache."""
        return sum(form.n_characters for form in self.forms)


def layout(names: Iterable[str], branches: Sequence[QuestionBranch]) -> Joint:
    """Where the named questions are read. All canvases of a sheet's branch have the layout of its first one."""
    rest = iter(names)
    canvases = [
        JointCanvas(
            questions=[next(rest) for _ in branch.grids],
            width=int(branch.lengths[1]),
            slots=branch.read_rows[: len(branch.grids)].tolist(),
        )
        for branch in branches
    ]
    return Joint(canvases=canvases)


class Lines:
    """What is written on joint canvases: of each question its number, a slot for its label, and a newline.

    A label may be spelled with the space before it or without; the likelier spelling counts. Where no token holds
    both, as of digits in most vocabularies, the space is written before the slot. Raises CheckpointError where a line
    of a number up to MAX_JOINT and of a label is not what stands before the slot, one token and the newline, or where a
    line does not fit a canvas.
    """

    def __init__(self, tokenizer: Tokenizer, labels: VerifiedLabels, canvas: Canvas) -> None:
        self._canvas = canvas
        self._newline = tokenizer.encode("\n")
        if len(self._newline) != 1:
            raise CheckpointError(f"a newline is {len(self._newline)} tokens, not one")
        numbers = range(1, MAX_JOINT + 1)
        self._begins = {gap: tokenizer.encode_each([f"{number}:{gap}" for number in numbers]) for gap in _GAPS}
        self._gaps: dict[int, str] = {}  # by a label's id
        self._spellings: dict[int, Ids] = {}
        for kind in (labels.yes_no, labels.digits, labels.letters):
            self._verify(tokenizer, kind)
        widest = max(len(begin) for begins in self._begins.values() for begin in begins) + 2
        if widest > canvas.room:
            raise CheckpointError(f"a line has up to {widest} tokens, and a canvas room for {canvas.room}")

    def check(self, form: QuestionText, field: str) -> None:
        """Raise InvalidRequest for a question with a label that no line was verified with."""
        if not self._gaps.keys() >= set(form.labels[0]):
            raise InvalidRequest("a joint read has labels for 26 options, A to Z", field=f"{field}.criteria")

    def sheets(self, forms: Sequence[QuestionText]) -> list[Sheet]:
        """The questions on the fewest canvases that hold them, spread evenly: the numbers of questions on two canvases
        differ by at most one. Raises InvalidRequest."""
        n = len(forms)
        if n > MAX_JOINT:
            raise InvalidRequest(f"there are {n}, and at most {MAX_JOINT} are read jointly", field="questions")
        ends = [0, *accumulate(len(self._line(number, form)) for number, form in enumerate(forms, 1))]
        cuts = (list(pairwise(-(-n * i // n_sheets) for i in range(n_sheets + 1))) for n_sheets in range(1, n + 1))
        chosen = next(cut for cut in cuts if all(ends[last] - ends[first] <= self._canvas.room for first, last in cut))
        return [Sheet(first + 1, tuple(forms[first:last])) for first, last in chosen]

    def branch(self, sheet: Sheet, prompts: Sequence[Ids]) -> QuestionBranch:
        """A sheet's branch, from the ids of each of its prompts."""
        written, slots = list[int](), list[Slot]()
        for number, form in enumerate(sheet.forms, sheet.first):
            line = self._line(number, form)
            labels = [[self._spellings[label] for label in order] for order in form.labels]
            slots.append(Slot(len(written) + line.index(NOISE), labels))
            written += line
        return grow_canvases(prompts, self._canvas.filled(written), sheet.forms[0].n_samples, slots)

    def _line(self, number: int, form: QuestionText) -> list[int]:
        begins = self._begins[self._gaps[form.labels[0][0]]]
        return [*begins[number - 1], NOISE, *self._newline]

    def _verify(self, tokenizer: Tokenizer, kind: Sequence[Label]) -> None:
        """Find how the labels of one kind are spelled on lines."""
        for gap in _GAPS:
            spellings = self._spelled(tokenizer, kind, gap)
            if spellings is not None:
                self._gaps |= dict.fromkeys(spellings, gap)
                self._spellings |= spellings
                return
        raise CheckpointError(f'lines such as "1: {kind[0].text}" are not a number, a colon and one token more')

    def _spelled(self, tokenizer: Tokenizer, kind: Sequence[Label], gap: str) -> dict[int, Ids] | None:
        """By the labels' ids; None where their lines are not what stands before the slot, one token and the newline."""
        spellings: dict[int, Ids] = {}
        for label in kind:
            lines = tokenizer.encode_each([f"\n{number}: {label.text}\n" for number in range(1, MAX_JOINT + 1)])
            token = lines[0][-2]
            if lines != [[*self._newline, *begin, token, *self._newline] for begin in self._begins[gap]]:
                return None
            spellings[label.id] = tuple(dict.fromkeys((token, label.id)))
        ids = list(chain.from_iterable(spellings.values()))
        return spellings if len(set(ids)) == len(ids) else None
