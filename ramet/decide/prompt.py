"""The words of a question: the one place where wording lives.

The content of the one user turn is the state, a blank line and the question, which begins with a word or a digit. A
tree's trunk ends with the blank line, or before it, whichever no token spans: the ids of trunk and question together
are those of the whole prompt. Of the method "letters" they are those of vLLM's prompt, but for what docs/http-api.md
lists. What a request does not say, the prompt does not say either.
"""

from __future__ import annotations

from collections.abc import Sequence

from ramet.question import Question
from ramet.text.chat import Frame
from ramet.values import as_json, is_blank

QUESTION = "Question:"
ANSWER = "Answer:"  # begins an option's reply, and ends the prompt of a model without a chat template

CLOSINGS = {
    "noul": "Answer with yes or no only.",
    "choice": "Answer with the letter of one option only.",
    "score": "Answer with the number of one level only.",
}
CLOSING_LABELS = "Answer with the label of one option only."  # where letters do not suffice
TOGETHER = "What are the answers to the questions below?"
CLOSING_TOGETHER = (
    'Answer with one line for each question, "number: answer", and nothing else. '
    "An answer is the letter of one option, yes or no, or the number of one level."
)


def trunk_text(frame: Frame, state: str, lead: str = "") -> str:
    """What the prompt holds from the frame's head to the cut: the opening, the lead, the state and a blank line.
    Nothing where the state is empty, or is stripped away by the template: then the opening is each question's own."""
    content = f"{lead}{state}\n\n" if state else ""
    if frame.trims:
        content = content.lstrip()
    return f"{frame.opening}{content}" if content else ""


def lasting(state: str) -> str:
    """The part of a state that stays when it grows: without the brackets and quotes that close a JSON text, and
    without the last word, which may go on."""
    open_end = state.rstrip("]}\"' \t\r\n")
    return open_end[: open_end.rfind(" ", 0) + 1].rstrip()


def suffix_text(frame: Frame, words: str) -> str:
    """What the prompt holds from the cut to the frame's tail. `words` must not be blank."""
    content = words if frame.tail else f"{words}\n{ANSWER}"
    text: str = (content.rstrip() if frame.trims else content) + frame.closing
    return text


def instructions(question: Question) -> str:
    """The question's instructions as text; empty where they are missing or blank."""
    text = question.instructions
    return "" if text is None or is_blank(text) else as_json(text)


def listing(words: str, lines: Sequence[str]) -> str:
    """The question's words, if it has any, and the lines below them. Without both, the heading alone."""
    heading = [f"{QUESTION} {words}"] if words else []
    return "\n".join([*heading, *lines]) or QUESTION


def alone(question: Question, words: str, lines: Sequence[str], *, letters: bool = True) -> str:
    """The words of a listing that stands alone, with how to answer it. letters: whether one letter can name any option
    of a choice."""
    closing = CLOSINGS[question.type] if letters else CLOSING_LABELS
    return f"{listing(words, lines)}\n{closing}"


def unnumbered(words: str, lines: Sequence[str]) -> str:
    """A listing that stands below others, from behind its number and a colon on."""
    return "\n".join([f" {words}" if words else "", *lines])


def together(listings: Sequence[str], first: int) -> str:
    """The words of listings that one reply answers, numbered from `first` on."""
    numbered = [f"Question {number}:{listed}" for number, listed in enumerate(listings, first)]
    return "\n\n".join([f"{QUESTION} {TOGETHER}", *numbered, CLOSING_TOGETHER])


def line(label: str, *texts: str) -> str:
    """One option of a listing, ``A: name - description``, empty texts left out; a bare label where nothing is said."""
    said = " - ".join(text for text in texts if text)
    return f"{label}: {said}" if said else label
