"""The method "options": each option's own text scored as the whole reply, end included."""

from __future__ import annotations

from ramet.decide import prompt
from ramet.decide.form import Form
from ramet.decide.settings import Scored
from ramet.errors import InvalidRequest
from ramet.request import Choice, Noul, Outcomes, Question, Score, Text, as_json, is_blank


def form(question: Question, scored: Scored, field: str) -> Form:
    """A question in words: its instructions alone, and the text of each option as a reply.

    A choice's option is its description, its name or both, as `scored` says, and its name where it
    has no description. A noul with both outcomes described compares the descriptions, else "Yes"
    and "No", with the one described outcome said in the prompt. Raises InvalidRequest naming an
    option without text.
    """
    asked = prompt.instructions(question)
    if isinstance(question, Score):
        replies = {str(i): as_json(level) for i, level in enumerate(question.criteria)}
    elif isinstance(question, Choice):
        replies = {name: _option(name, text, scored) for name, text in question.criteria.items()}
    elif described(question):
        replies = {side: as_json(text) for side, text in _outcomes(question).items()}
    else:
        replies = {"true": "Yes", "false": "No"}
        said = [prompt.line(replies[side], as_json(text)) for side, text in _outcomes(question).items()]
        asked = "\n".join([asked, *said])
    for name, reply in replies.items():
        if not reply:
            raise InvalidRequest("an empty option cannot be scored as a reply", field=f"{field}.criteria.{name}")
    return Form((asked,), replies=tuple(replies.values()))


def described(question: Question) -> bool:
    """Whether the caller's own texts tell the options apart: always, but for a noul that lacks one."""
    return not isinstance(question, Noul) or len(_outcomes(question)) == 2


def _outcomes(question: Noul) -> dict[str, Text]:
    """The outcomes that are described, by their names."""
    outcomes = question.criteria or Outcomes()
    found = {"true": outcomes.true, "false": outcomes.false}
    return {name: text for name, text in found.items() if text is not None and not is_blank(text)}


def _option(name: str, description: Text | None, scored: Scored) -> str:
    if scored == "name" or description is None or is_blank(description):
        return name
    return as_json(description) if scored == "description" else f"{name}: {as_json(description)}"
