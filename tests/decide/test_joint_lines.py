"""Lines of joint canvases in real vocabularies, and in those that cannot have them."""

from __future__ import annotations

from collections.abc import Callable
from string import ascii_uppercase, digits

import pytest
from fixtures import tiny
from fixtures.vocabularies import Greedy, qwen, smollm2
from oracles import diffusion_gemma as oracle

from ramet.decide.canvas import NOISE, Canvas
from ramet.decide.joint import MAX_JOINT, Lines
from ramet.decide.letters import VerifiedLabels
from ramet.decide.question_text import QuestionText
from ramet.decide.reply import ReplyStart
from ramet.denoise.canvas_config import CanvasConfig
from ramet.errors import CheckpointError
from ramet.text.tokenizer import Tokenizer

REPLY = ReplyStart("", (), "")
VOCABULARIES: dict[str, Callable[[], Tokenizer]] = {
    "smollm2": lambda: smollm2()[0],
    "qwen": lambda: qwen()[0],
    "tiny": lambda: Tokenizer(tiny.tokenizer()),
}


def lines(tokenizer: Tokenizer, length: int = 256) -> tuple[VerifiedLabels, Lines]:
    labels, denoising = VerifiedLabels(tokenizer, REPLY), CanvasConfig.of(oracle.config("plain", length), {})
    return labels, Lines(tokenizer, labels, Canvas(0, 1, denoising))


@pytest.mark.parametrize("name", VOCABULARIES)
def test_a_line_with_a_label_in_its_slot_is_the_lines_own_ids(name: str) -> None:
    """Of every number and label, in the midst of other lines."""
    tokenizer = VOCABULARIES[name]()
    labels, found = lines(tokenizer)
    before, behind = tokenizer.encode_each(["0: A\n", "65: no"])
    kinds = {labels.yes_no: ("yes", "no"), labels.digits: digits, labels.letters: ascii_uppercase}
    for kind, texts in kinds.items():
        assert [label.text for label in kind] == list(texts)
        for label in kind:
            form = QuestionText(("?",), labels=((label.id,),))
            numbers = range(1, MAX_JOINT + 1)
            wholes = tokenizer.encode_each([f"0: A\n{number}: {label.text}\n65: no" for number in numbers])
            for number, whole in zip(numbers, wholes, strict=True):
                line = found._line(number, form)
                spelled = [[token if i == NOISE else i for i in line] for token in found._spellings[label.id]]
                assert [*before, *spelled[0], *behind] == whole
                assert "".join(tokenizer.decode(ids) for ids in spelled[1:]) in ("", f"{number}:{label.text}\n")


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (("yes", "no"), None),
        (("yes", "no", "Q\n"), 'lines such as "1: A"'),  # a token spans the label and the newline
        (("yes", "no", "7: "), None),
        (("yes", "no", "7: n"), 'lines such as "1: yes"'),  # of one number alone
        (("yes", "no", "\n33"), 'lines such as "1: yes"'),  # a newline and a number
    ],
)
def test_vocabularies_without_lines(pieces: tuple[str, ...], message: str | None) -> None:
    toy = Greedy(*pieces)
    if message is None:
        lines(toy)  # type: ignore[arg-type]
    else:
        with pytest.raises(CheckpointError, match=message):
            lines(toy)  # type: ignore[arg-type]


def test_a_newline_of_two_tokens() -> None:
    class Wide(Greedy):
        def encode(self, text: str) -> list[int]:
            return super().encode(text.replace("\n", "\r\n"))

    with pytest.raises(CheckpointError, match="a newline is 2 tokens"):
        lines(Wide("yes", "no"))  # type: ignore[arg-type]


def test_a_line_must_fit() -> None:
    """The longest here: a number of two tokens, a colon, a space, a slot and the newline; the end and a pad follow."""
    tokenizer = VOCABULARIES["tiny"]()
    lines(tokenizer, 8)
    with pytest.raises(CheckpointError, match="a line has up to 6 tokens, and a canvas room for 5"):
        lines(tokenizer, 7)
