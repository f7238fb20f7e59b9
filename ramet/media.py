"""Media: pictures, sound, video and files, which no model reads here. This is the one place that says what they are.

They come as a field of their own beside a state, a prompt or a message (`FIELDS`); as a part, which is an object whose
`type` is a name of `PARTS` and which has one of that name's keys with something in it; or as a text that is nothing but
a data URL of a picture, of sound or of video. Other objects with a `type` are JSON like any other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ramet.quoting import shown

FIELDS = (
    "assets", "attachments", "audio", "audios", "file", "files", "image", "image_url", "image_urls", "images",
    "input_audio", "input_image", "media", "multi_modal_data", "video", "videos",
)  # fmt: skip

_PICTURE = ("image", "image_url", "url", "path", "source", "data", "data_base64", "base64", "part", "file_id")
_SOUND = ("audio", "audio_url", "input_audio", "url", "path", "source", "data", "base64", "file_id")
_VIDEO = ("video", "video_url", "frames", "url", "path", "source", "data", "base64", "file_id")
_FILE = ("file_id", "file_data", "file_url", "source")
PARTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("image", "image_url", "image_pil", "image_embeds", "input_image"), (*_PICTURE, "image_pil",
                                                                                         "image_embeds")),
    **dict.fromkeys(("audio", "audio_url", "audio_embeds", "input_audio"), (*_SOUND, "audio_embeds")),
    **dict.fromkeys(("video", "video_url", "input_video"), _VIDEO),
    **dict.fromkeys(("input_file", "document"), _FILE),
    "file": ("file_id", "file_data", "file_url"),
}  # fmt: skip

WHY = "pictures, sound, video and files are not read here yet, and an answer would not be about them"
_DATA_URL = re.compile(r"\s*data:(?:image|audio|video)/[\w.+-]+(?:;[\w=.+-]+)*,\S*\s*", re.IGNORECASE)


def is_empty(value: Any) -> bool:
    """Whether a field is empty: null, "", [] or {}."""
    return value is None or (isinstance(value, (str, bytes, list, tuple, dict)) and not value)


def part_fault(value: Mapping[Any, Any]) -> str | None:
    """Why a model cannot read an object; None where it is no part of media."""
    kind = value.get("type")
    if not isinstance(kind, str):
        return None
    keys = PARTS.get(kind, ())
    held = any(not is_empty(value.get(key)) for key in keys) or (kind == "file" and isinstance(value.get(kind), dict))
    return (
        f"is a part of the type {shown(kind)}: {WHY}; send JSON that shall be read as it stands as text"
        if held
        else None
    )


def text_fault(text: str) -> str | None:
    """Why a model cannot read a text; None where it is no data URL."""
    if "data:" not in text[:64].lower() or not _DATA_URL.fullmatch(text):
        return None
    return f"is a data URL: {WHY}"
