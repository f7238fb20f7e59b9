"""Types of the fields that requests for text hold."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from ramet.denoise.elastic import MIN_SIZE
from ramet.problems import located
from ramet.server.openai.messages import MESSAGE_SCHEMA, check_messages
from ramet.values import WHOLE_NUMBER, whole

MAX_STOPS = 4
MAX_STOP_LENGTH = 1000
MAX_PROMPTS = 128


def _flag(value: Any) -> Any:
    """vLLM's clients send 0 and 1."""
    return bool(value) if isinstance(value, int) and value in (0, 1) else value


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _check_prompt(prompt: Any) -> list[str | list[int]]:
    """One prompt or several, each a text or ids."""
    prompt = _whole_numbers(prompt)
    single = isinstance(prompt, str) or (isinstance(prompt, list) and bool(prompt) and _is_id(prompt[0]))
    prompts = [prompt] if single else prompt
    if not isinstance(prompts, list) or not 1 <= len(prompts) <= MAX_PROMPTS:
        raise located((), "prompt_type", f"should be text, ids, or an array of up to {MAX_PROMPTS} of these")
    for i, each in enumerate(prompts):
        if not isinstance(each, str) and not (isinstance(each, list) and each and all(map(_is_id, each))):
            raise located(() if single else (i,), "prompt_type", "should be text, or an array of ids, at least one")
        if not each:
            raise located(() if single else (i,), "prompt_empty", "is empty: a prompt needs at least one token")
    return prompts


def _whole_numbers(value: Any) -> Any:
    return [_whole_numbers(each) for each in value] if isinstance(value, list) else whole(value)


def _check_size(value: Any) -> Any:
    value = whole(value)
    if value == "auto" or (_is_id(value) and value >= MIN_SIZE):
        return value
    raise located((), "chunk_size", f'should be "auto" or a whole number from {MIN_SIZE}')


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


Flag = Annotated[bool, BeforeValidator(_flag), WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": [0, 1]}]})]
ChunkSize = Annotated[
    Literal["auto"] | int,
    PlainValidator(_check_size),
    WithJsonSchema({"anyOf": [{"const": "auto"}, {"type": "integer", "minimum": MIN_SIZE}]}),
]
Count = Annotated[int, Field(ge=1), WHOLE_NUMBER]
Number = Annotated[int, Field(ge=0), WHOLE_NUMBER]
Ids = Annotated[list[Annotated[int, WHOLE_NUMBER]], Field(fail_fast=True)]
_STOP_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
Stops = Annotated[
    list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]],
    Field(max_length=MAX_STOPS),
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [_STOP_SCHEMA, {"type": "array", "items": _STOP_SCHEMA, "maxItems": MAX_STOPS}]}),
]
_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
_PROMPTS_SCHEMA = {
    "type": "array", "items": {"anyOf": [_TEXT_SCHEMA, _IDS_SCHEMA]}, "minItems": 1, "maxItems": MAX_PROMPTS,
}  # fmt: skip
_PROMPT_SCHEMA = {"anyOf": [_TEXT_SCHEMA, _IDS_SCHEMA, _PROMPTS_SCHEMA]}
Prompts = Annotated[list[str | list[int]], PlainValidator(_check_prompt), WithJsonSchema(_PROMPT_SCHEMA)]
Messages = Annotated[
    list[dict[str, Any]],
    PlainValidator(check_messages),
    WithJsonSchema({"type": "array", "minItems": 1, "items": MESSAGE_SCHEMA}),
]
