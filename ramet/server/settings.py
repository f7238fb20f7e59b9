"""ServerSettings: a server's settings, checked once and then fixed."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr

from ramet.server.authentication import check_key

DEFAULT_ALIASES: Mapping[str, str | None] = {"jev-latest": None}  # what official clients ask for by default

_DAY = 24 * 60 * 60


def _today() -> date:
    return datetime.now(UTC).date()


def _as_keys(given: Any) -> Any:
    """One key, several or none, as a tuple. Raises ValueError for a key that no client can send."""
    if given is None:
        return ()
    keys = [given] if isinstance(given, str | SecretStr) else list(given)
    for key in keys:
        check_key(key.get_secret_value() if isinstance(key, SecretStr) else key)
    return keys


class ServerSettings(BaseModel):
    """Frozen; an unknown name or a value out of range raises pydantic's ValidationError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address to listen on. Without a key, keep it local."
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    api_key: Annotated[tuple[SecretStr, ...], BeforeValidator(_as_keys)] = Field(
        default=(),
        description="Key, or several, one of which clients send as `Authorization: Bearer`; no check if none.",
    )
    aliases: Mapping[str, str | None] = Field(
        default_factory=lambda: dict(DEFAULT_ALIASES),
        description="Further names of the model. An alias stands for a name, or for the served model when None.",
    )
    release_date: date = Field(
        default_factory=_today, description="Release date that /v1/models reports; the day of the start by default."
    )
    max_body_bytes: int = Field(
        default=16 << 20,
        ge=1024,
        le=1 << 30,
        description="Largest request body, before and after decompression; beyond it 413.",
    )
    body_timeout_s: float = Field(
        default=60.0, gt=0, le=_DAY, description="Time a client has to send its body; beyond it 408."
    )
    head_timeout_s: float = Field(
        default=20.0, gt=0, le=_DAY, description="Time a client has to send the head of a request; beyond it 408."
    )
    send_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=_DAY,
        description="Time in which a client must take something of its answer; beyond it the connection is cut.",
    )
    max_connections: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="Most connections at once; beyond it 503. As many as files may be open if None.",
    )
    max_logprobs: int = Field(
        default=20,
        ge=-1,
        le=1 << 20,
        description="Most log-probabilities a position that a request for text may have; -1: any number.",
    )
    drain_s: int = Field(
        default=30, ge=0, le=_DAY, description="Time that running requests get to finish at shutdown; then 503."
    )
    access_log: bool = Field(default=True, description="Log a line a request, but for those of probes.")
