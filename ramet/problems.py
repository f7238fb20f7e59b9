"""Problems of a request, in the caller's terms: limited in number and in size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ramet.errors import InvalidRequest, Problem
from ramet.quoting import cut, shown

Loc = tuple[str | int, ...]

MAX_PROBLEMS = 100  # listed one by one in an error; one more says that there are others
MAX_PATH = 16  # steps from a request to a value that an error names
MAX_FIELDS = 256  # of an object whose fields have meanings
QUESTION_TYPES = ("noul", "choice", "score")


def place(loc: Loc) -> Loc:
    """A path with short names; of a long one its beginning and its end."""
    steps = loc if len(loc) <= MAX_PATH else (*loc[: MAX_PATH // 2], "…", *loc[1 - MAX_PATH // 2 :])
    return tuple(cut(step) if isinstance(step, str) else step for step in steps)


def located(loc: Loc, code: str, message: str) -> ValidationError:
    """An error to be raised in a validator, which pydantic puts below the field being validated."""
    return all_located([(loc, code, message)])


def all_located(problems: Sequence[tuple[Loc, str, str]]) -> ValidationError:
    """As `located`, of several problems: of each its place, its code and its words."""
    details = [
        InitErrorDetails(type=PydanticCustomError(code, "{message}", {"message": message}), loc=place(loc), input=None)
        for loc, code, message in problems
    ]
    return ValidationError.from_exception_data("value", details)


def check_count(data: Any, most: int = MAX_FIELDS, what: str = "fields") -> Any:
    """For pydantic's BeforeValidator: refuse an object with more than `most` entries before any of them is checked."""
    if isinstance(data, dict) and len(data) > most:
        raise located((), "too_long", f"has {len(data)} {what}; at most {most} are taken")
    return data


class FewFields(BaseModel):
    """An object whose fields are counted before any is checked, since each unknown one is a problem of its own."""

    @model_validator(mode="before")
    @classmethod
    def _are_few(cls, data: Any) -> Any:
        return check_count(data)


def entry_by_entry(value: Any, check: Callable[[Any], dict[str, Any]]) -> Any:
    """For pydantic's WrapValidator of an object: check entry by entry, and stop when there are more problems than an
    error lists. Places leave out the first step below an entry's name, which is pydantic's tag of a union."""
    if not isinstance(value, dict) or not value:
        return check(value)
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, inner in value.items():
        try:
            found.update(check({name: inner}))
        except ValidationError as error:
            problems += map(_without_tag, _problems(error))
            if len(problems) > MAX_PROBLEMS:
                break
    if problems:
        raise all_located([(problem.loc, problem.code, problem.message) for problem in problems])
    return found


def _without_tag(problem: Problem) -> Problem:
    name, *rest = problem.loc
    return replace(problem, loc=(name, *(rest[1:] if rest[:1] and rest[0] in QUESTION_TYPES else rest)))


_MESSAGES = {  # pydantic's codes in the words of JSON; what is missing here keeps pydantic's message
    "missing": "Field required",
    "union_tag_not_found": "Field required: one of " + ", ".join(QUESTION_TYPES),
    "union_tag_invalid": "unknown question type {tag}; known: " + ", ".join(QUESTION_TYPES),
    "extra_forbidden": "unknown field",
    "model_type": "should be an object",
    "model_attributes_type": "should be an object",
    "dict_type": "should be an object",
    "list_type": "should be an array",
    "too_short": "should have at least {min_length} entry",
    "too_long": "should have at most {max_length} entries, and has more",
    "string_too_long": "should have at most {max_length} characters",
}


def invalid(error: ValidationError) -> InvalidRequest:
    """What pydantic found wrong, in the caller's terms."""
    problems = _problems(error)
    if len(problems) > MAX_PROBLEMS:
        problems = [*problems[:MAX_PROBLEMS], Problem((), "and more problems", "more")]
    first = problems[0]
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return InvalidRequest(first.message + more, field=".".join(map(str, first.loc)) or None, problems=problems)


def _problems(error: ValidationError) -> list[Problem]:
    return [_problem(detail) for detail in error.errors(include_url=False, include_input=False)]


def _problem(detail: ErrorDetails) -> Problem:
    """Pydantic's account of an error in the caller's terms: no class names in the message."""
    code, loc, context = detail["type"], detail["loc"], detail.get("ctx", {})
    if "message" in context:  # words of our own
        return Problem(place(loc), context["message"], code)
    if loc[-1:] == ("[key]",):
        loc = loc[:-1]
    if code.startswith("union_tag"):
        loc = (*loc, "type")
        context = {"tag": shown(context.get("tag"))}
    message = _MESSAGES[code].format(**context) if code in _MESSAGES else detail["msg"]
    return Problem(place(loc), message, code)
