"""The method "options": each option's own text scored as a reply, options not listed in the prompt.

The reply is ``Answer:``, a space and the option's text, whose ids are those of the space and the text
encoded by themselves, whatever stands before. Its score is the sum of its tokens' log-probabilities
and of that of the reply's end, so that an option cannot win by being the beginning of another, less
a part of the same sum after an empty state: the no-context prior, which pays for an option's length
and wording. Taken off whole it would leave nothing of a question that needs no state.
"""

from __future__ import annotations

from ramet.decide import prompt
from ramet.decide.question_text import QuestionText
from ramet.decide.settings import PriorWeights, Scored
from ramet.errors import InvalidRequest
from ramet.question import Choice, Noul, Outcomes, Question, Score
from ramet.values import Text, as_json, is_blank


def form(question: Question, scored: Scored, field: str) -> QuestionText:
    """A question in words: its instructions, the heading alone where there are none, and each option's text as a reply.

    A choice's option is its description, its name or both, as `scored` says, and its name
    where it has no description. A noul with both outcomes described compares the descriptions, as a
    choice does; else "Yes" and "No", with the one described outcome said in the prompt. Raises
    InvalidRequest naming an option without text.
    """
    said: list[str] = []
    if isinstance(question, Score):
        replies = {str(i): as_json(level) for i, level in enumerate(question.criteria)}
    elif isinstance(question, Choice):
        replies = {name: _option(name, text, scored) for name, text in question.criteria.items()}
    elif len(_outcomes(question)) == 2:
        replies = {side: as_json(text) for side, text in _outcomes(question).items()}
    else:
        replies = {"true": "Yes", "false": "No"}
        said = [prompt.line(replies[side], as_json(text)) for side, text in _outcomes(question).items()]
    for name, reply in replies.items():
        if not reply:
            raise InvalidRequest("an empty option cannot be scored as a reply", field=f"{field}.criteria.{name}")
    return QuestionText((prompt.listing(prompt.instructions(question), said),), replies=tuple(replies.values()))


def prior_weight(question: Question, weights: PriorWeights) -> float:
    """How much of the prior is taken off a question; a noul with both outcomes described is a choice between them."""
    described = isinstance(question, Noul) and len(_outcomes(question)) == 2
    return weights.of("choice" if described else question.type)


def _outcomes(question: Noul) -> dict[str, Text]:
    """The outcomes that are described, by their names."""
    outcomes = question.criteria or Outcomes()
    found = {"true": outcomes.true, "false": outcomes.false}
    return {name: text for name, text in found.items() if text is not None and not is_blank(text)}


def _option(name: str, description: Text | None, scored: Scored) -> str:
    if scored == "name" or description is None or is_blank(description):
        return name
    return as_json(description) if scored == "description" else f"{name}: {as_json(description)}"
