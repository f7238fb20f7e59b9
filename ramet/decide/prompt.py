"""The words of a question: the one place where wording lives.

The content of the one user turn is the state, a blank line, ``Question:`` and, behind a space, what
is asked. A tree's trunk ends right behind ``Question:`` and a question's segment begins with the
space, so that no token spans the cut: the ids of both together are those of the whole prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramet.request import Question, as_json, is_blank
from ramet.text.chat import Frame

QUESTION = "Question:"
ANSWER = "Answer:"  # begins an option's reply, and ends the prompt of a model without a chat template

# asked where a question has no instructions of its own
DEFAULTS = {"noul": "Is it true?", "choice": "Which option fits best?", "score": "Which level fits best?"}
CLOSINGS = {
    "noul": "Answer with yes or no only.",
    "choice": "Answer with the letter of one option only.",
    "score": "Answer with the number of one level only.",
}
TOGETHER = "What are the answers to the questions below?"
CLOSING_TOGETHER = (
    'Answer with one line for each question, "number: answer", and nothing else. '
    "An answer is the letter of one option, yes or no, or the number of one level."
)


def trunk_text(frame: Frame, state: str) -> str:
    """What the prompt holds from the frame's head to the cut, the state inside; an empty state leaves no blank line."""
    content = f"{state}\n\n{QUESTION}" if state else QUESTION
    text: str = frame.opening + (content.lstrip() if frame.trims else content)
    return text


def lasting(state: str) -> str:
    """The part of a state that stays when it grows: without the brackets and quotes that close a JSON text, and
    without the last word, which may go on."""
    open_end = state.rstrip("]}\"' \t\r\n")
    return open_end[: open_end.rfind(" ", 0) + 1].rstrip()


def suffix_text(frame: Frame, words: str) -> str:
    """What the prompt holds from the cut to the frame's tail. `words` must not be blank."""
    content = f" {words}" if frame.tail else f" {words}\n{ANSWER}"
    text: str = (content.rstrip() if frame.trims else content) + frame.closing
    return text


def instructions(question: Question) -> str:
    """The question's instructions as text, or the fixed default of its type where they are missing or blank."""
    asked = question.instructions
    return DEFAULTS[question.type] if is_blank(asked) else as_json(asked)


def listing(asked: str, lines: Sequence[str]) -> str:
    """The words of the method "letters": the instructions, and a line an option."""
    return "\n".join([asked, *lines])


def alone(question: Question, listed: str) -> str:
    """The words of a listing that is all that is asked: with how to answer it."""
    return f"{listed}\n{CLOSINGS[question.type]}"


def together(listings: Sequence[str], first: int) -> str:
    """The words of listings that are answered in one reply, numbered from `first` on."""
    numbered = [f"Question {number}: {listed}" for number, listed in enumerate(listings, first)]
    return "\n\n".join([TOGETHER, *numbered, CLOSING_TOGETHER])


def line(label: str, *texts: str) -> str:
    """One option of a listing, ``A: name - description``, empty texts left out; a bare label where nothing is said."""
    said = " - ".join(text for text in texts if text)
    return f"{label}: {said}" if said else label
