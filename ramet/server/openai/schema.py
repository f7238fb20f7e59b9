"""The JSON schema of requests for text: what validators check beyond the types of fields."""

from __future__ import annotations

from typing import Any

from ramet import media
from ramet.server.openai.parameters import REFUSED, WITHOUT_EFFECT


def describe_what_passes(schema: dict[str, Any]) -> None:
    """Add what passes beyond the fields: null, which is as good as absent, and parameters without effect."""
    properties = schema["properties"]
    for name in properties.keys() - set(schema.get("required", ())):
        if _NULL not in properties[name].get("anyOf", ()):
            described = {
                key: properties[name].pop(key) for key in ("description", "default") if key in properties[name]
            }
            properties[name] = {"anyOf": [properties[name], _NULL], **described}
    for name in sorted(WITHOUT_EFFECT - properties.keys()):
        properties[name] = {"description": "Taken, and changes nothing."}
    for name in REFUSED.keys() - properties.keys():
        properties[name] = {"enum": [*REFUSED[name].neutral, None], "description": REFUSED[name].why}
    for name in media.FIELDS:
        properties.setdefault(name, {"enum": [None, "", [], {}], "description": media.WHY})
    logprobs = _TRUE if "messages" in properties else {"type": "integer"}
    needs = [*_NEEDS, *((name, value, "logprobs", logprobs) for name, value in _NEEDS_LOGPROBS if name in properties)]
    schema["additionalProperties"] = _NULL
    schema["allOf"] = [{"if": _has(name, value), "then": _has(other, needed)} for name, value, other, needed in needs]


def _has(name: str, value: Any) -> dict[str, Any]:
    return {"required": [name], "properties": {name: value}}


# What `_fits_together` checks: a field of such a value needs another one's.
_TRUE, _NULL = {"const": True}, {"type": "null"}
_NEEDS = (
    ("stream_options", {"type": "object"}, "stream", _TRUE),
    (
        "vllm_xargs",
        {"type": "object", **_has("diffusion_constrained", {"enum": [True, 1]})},
        "logprob_token_ids",
        {"type": "array"},
    ),
)
_NEEDS_LOGPROBS = (
    ("logprob_token_ids", {"type": "array"}),
    ("return_tokens_as_token_ids", _TRUE),
    ("top_logprobs", {"type": "integer", "minimum": 1}),
)
