"""Messages of a chat, in the form that a template takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ramet import media
from ramet.errors import RequestError
from ramet.names import is_media
from ramet.problems import Loc, located
from ramet.quoting import shown
from ramet.server.documents import parse_json

ROLES = ("system", "developer", "user", "assistant", "tool")
_TEXT = "should be text, or an array of parts with text"


def _content_schema(*kinds: str) -> dict[str, Any]:
    parts = [
        {
            "type": "object",
            "required": ["type", kind],
            "properties": {"type": {"const": kind}, kind: {"type": "string"}},
        }
        for kind in kinds
    ]
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": parts}}]}


_FUNCTION_SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string"},
        "arguments": {"anyOf": [{"type": "object"}, {"type": "string", "contentMediaType": "application/json"}]},
    },
}
_CALLS_SCHEMA = {
    "type": "array",
    "items": {"type": "object", "required": ["function"], "properties": {"function": _FUNCTION_SCHEMA}},
}
_NULL = {"type": "null"}
MESSAGE_SCHEMA = {  # what `check_messages` takes
    "type": "object",
    "required": ["role"],
    "properties": {"tool_calls": {"anyOf": [_CALLS_SCHEMA, _NULL]}},
    "anyOf": [
        {
            "required": ["content"],
            "properties": {
                "role": {"enum": [role for role in ROLES if role != "assistant"]},
                "content": _content_schema("text"),
            },
        },
        {
            "properties": {
                "role": {"const": "assistant"},
                "content": {"anyOf": [_content_schema("text", "refusal"), _NULL]},
            },
        },
    ],
}


def check_messages(messages: Any) -> list[dict[str, Any]]:
    """Validator of `messages`. Content becomes one text, whose parts line breaks join, or an empty one where an
    assistant has none; a tool call's arguments become an object. The template decides on all else that a message
    holds."""
    if not isinstance(messages, list) or not messages:
        raise located((), "messages_type", "should be an array with at least one message")
    return [_checked((i,), message) for i, message in enumerate(messages)]


def with_known_roles(messages: Sequence[dict[str, Any]], template: str) -> list[dict[str, Any]]:
    """A developer's messages are the system's, for a template that knows no developers."""
    if "developer" in template:
        return list(messages)
    return [message | {"role": "system"} if message["role"] == "developer" else message for message in messages]


def _checked(loc: Loc, message: Any) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise located(loc, "message_type", "should be an object")
    role = message.get("role")
    if role not in ROLES:
        raise located((*loc, "role"), "role", "should be one of " + ", ".join(ROLES))
    found = {key: value for key, value in message.items() if value is not None}
    for key in filter(is_media, found):
        if not media.is_empty(found[key]):
            raise located((*loc, key), "media", f"holds media: {media.WHY}; leave it away")
    if role != "assistant" or "content" in found:
        found["content"] = _content((*loc, "content"), found.get("content"), role)
    else:
        found["content"] = ""
    if "tool_calls" in found:
        found["tool_calls"] = _calls((*loc, "tool_calls"), found["tool_calls"])
    return found


def _content(loc: Loc, content: Any, role: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise located(loc, "content_type", _TEXT)
    kinds = {"text": "text", "refusal": "refusal"} if role == "assistant" else {"text": "text"}
    return "\n".join(_part((*loc, i), part, kinds) for i, part in enumerate(content))


def _part(loc: Loc, part: Any, kinds: dict[str, str]) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise located(loc, "part_type", _TEXT)
    if kind not in kinds:
        raise located(
            loc, "part_unsupported", f"parts of the type {shown(kind)} are not supported: this model reads text"
        )
    text = part.get(kinds[kind])
    if not isinstance(text, str):
        raise located((*loc, kinds[kind]), "string_type", "should be text")
    return text


def _calls(loc: Loc, calls: Any) -> list[dict[str, Any]]:
    """Templates read arguments as an object, clients send its JSON."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise located(loc, "tool_calls_type", "should be an array of objects")
    return [_call((*loc, i, "function"), call) for i, call in enumerate(calls)]


def _call(loc: Loc, call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise located(loc, "function_type", "should be an object with a name and arguments")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = parse_json(arguments.encode() or b"{}")
        except (RequestError, UnicodeEncodeError):
            arguments = None
    if not isinstance(arguments, dict):
        raise located((*loc, "arguments"), "arguments_type", "should be an object, or its JSON as text")
    return call | {"function": function | {"arguments": arguments}}
