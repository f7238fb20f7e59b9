"""Types of the values that requests hold (text, names, seeds, temperatures), and what makes such a value invalid."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, JsonValue, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from ramet import media
from ramet.problems import QUESTION_TYPES, Loc, located

MAX_NAME = 1024  # characters
MIN_SEED, MAX_SEED = -(1 << 63), (1 << 63) - 1
MAX_NESTING = 100  # of objects and arrays where text is allowed
TEMPERATURES = (0.01, 100.0)


def _is_unicode(text: str) -> bool:
    """False for half a surrogate pair, which JSON can spell and UTF-8 cannot."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_SURROGATE = ("string_unicode", "should be Unicode text: it has an unpaired surrogate")


def _value_fault(value: Any, depth: int) -> tuple[Loc, tuple[str, str]] | None:
    """The place of what a model cannot read in a JSON value, and why it cannot; None if it can read all of it."""
    if isinstance(value, str):
        return _string_fault(value)
    if isinstance(value, float):
        return None if math.isfinite(value) else ((), ("finite_number", "should be a finite number"))
    if value is None or isinstance(value, (bool, int)):
        return None
    if not isinstance(value, (dict, list)):
        return (), ("json_type", f"should be a JSON value, not {type(value).__name__}")
    if depth == MAX_NESTING:
        return (), ("nesting", f"should be nested at most {MAX_NESTING} deep")
    if not value:
        return None
    if isinstance(value, dict) and (why := media.part_fault(value)) is not None:
        return (), ("media", why)
    return _container_fault(value, depth)


def _string_fault(text: str) -> tuple[Loc, tuple[str, str]] | None:
    if not _is_unicode(text):
        return (), _SURROGATE
    why = media.text_fault(text)
    return None if why is None else ((), ("media", why))


def _container_fault(value: dict[Any, Any] | list[Any], depth: int) -> tuple[Loc, tuple[str, str]] | None:
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(value, dict) and not isinstance(key, str):
            return (), ("json_key", f"keys should be text, not {type(key).__name__}")
        if isinstance(key, str) and not _is_unicode(key):
            return (key,), _SURROGATE
        found = _value_fault(inner, depth + 1)
        if found is not None:
            return (key, *found[0]), found[1]
    return None


def check_value(value: Any) -> None:
    """Raise, in a validator, for a JSON value that a model cannot read. The error names the place in the value."""
    fault = _value_fault(value, 0)
    if fault is not None:
        raise located(fault[0], *fault[1])


def _check_text(value: Any) -> Any:
    if not isinstance(value, (str, dict, list)):
        found = "null" if value is None else type(value).__name__
        raise located((), "text_type", f"should be text, an object or an array, not {found}")
    check_value(value)
    return value


def whole(value: Any) -> Any:
    """JSON has one kind of number: 2.0 is 2, as some clients write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_name(name: str) -> str:
    if not name:
        raise PydanticCustomError("name_empty", "a name should not be empty")
    if len(name) > MAX_NAME:
        raise located((), "name_too_long", f"a name should have at most {MAX_NAME} characters, not {len(name)}")
    if not _is_unicode(name):
        raise PydanticCustomError(*_SURROGATE)
    return name


def _check_temperature(value: Any) -> Any:
    numbers = value if isinstance(value, dict) else {"noul": value}
    low, high = TEMPERATURES
    if not set(numbers) <= set(QUESTION_TYPES) or not all(
        isinstance(n, (int, float)) and not isinstance(n, bool) and low <= n <= high for n in numbers.values()
    ):
        expected = f"from {low:g} to {high:g}, or an object of such numbers with keys among noul, choice, score"
        raise PydanticCustomError("temperature", "should be a number {expected}", {"expected": expected})
    return {key: float(n) for key, n in value.items()} if isinstance(value, dict) else float(value)


WHOLE_NUMBER = BeforeValidator(whole)
Text = Annotated[  # objects and arrays are allowed wherever text is
    str | dict[str, JsonValue] | list[JsonValue],
    PlainValidator(_check_text),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "array", "items": {}}]}),
]
Seed = Annotated[int, Field(ge=MIN_SEED, le=MAX_SEED, strict=True), WHOLE_NUMBER]
Name = Annotated[
    str,
    AfterValidator(_check_name),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MAX_NAME}),
]
_NUMBER = {"type": "number", "minimum": TEMPERATURES[0], "maximum": TEMPERATURES[1]}
Temperature = Annotated[
    dict[Literal["noul", "choice", "score"], float] | float,
    PlainValidator(_check_temperature),
    WithJsonSchema(
        {
            "anyOf": [
                _NUMBER,
                {
                    "type": "object",
                    "properties": dict.fromkeys(QUESTION_TYPES, _NUMBER),
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


def is_blank(text: Text | None) -> bool:
    """True when there is nothing to read: None, only white space, an empty object or array."""
    return not (text.strip() if isinstance(text, str) else text)


def as_json(value: Any) -> str:
    """JSON text of an object where text is allowed; text itself stays as it is."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
