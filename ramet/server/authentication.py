"""Authentication: a request sends one of the server's keys as a bearer token."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.requests import Request

from ramet.server.errors import Unauthenticated

_BEARER = HTTPBearer(auto_error=False, description="One of the server's keys, where it has any.")


class Authentication:
    """Checks requests against the keys. Without keys it lets all requests pass, whatever they send."""

    def __init__(self, keys: Sequence[SecretStr]) -> None:
        self._digests = [sha256(key.get_secret_value().encode()).digest() for key in keys]

    @property
    def wants_key(self) -> bool:
        """Whether requests need one."""
        return bool(self._digests)

    async def check_request(self, request: Request) -> None:
        """What `check` does, for a route without dependencies. Raises Unauthenticated."""
        if self._digests:
            await self.check(await _BEARER(request))

    async def check(self, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        """Dependency of every guarded route. Raises Unauthenticated."""
        if not self._digests:
            return
        if credentials is None:
            raise Unauthenticated("an API key is needed: send it as `Authorization: Bearer <key>`")
        given = sha256(credentials.credentials.encode("latin-1")).digest()  # the bytes on the wire, as ASGI has them
        # All keys are compared, each in full: the time shows neither which key is near nor how many there are.
        if not any(hmac.compare_digest(given, digest) for digest in self._digests):
            raise Unauthenticated("the API key is wrong")


def check_key(key: str) -> str:
    """Return the key. Raises ValueError for a key that no client can send, or that guards nothing."""
    if not key.strip():
        raise ValueError("the key is empty, and guards nothing")
    if key != key.strip():
        raise ValueError("the key begins or ends with a space or a line break, which HTTP takes off what clients send")
    if not key.isprintable():
        raise ValueError("the key has control characters, which no HTTP header may have")
    return key


def read_keys(path: Path) -> list[str]:
    """The keys of a file, one a line, without empty lines and those that begin with #. Raises ValueError for a file
    that cannot be read, and for one without a key."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text in UTF-8") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    keys = [stripped for line in lines if (stripped := line.strip()) and not stripped.startswith("#")]
    if not keys:
        raise ValueError(f"{path} has no key: write one a line")
    return [check_key(key) for key in keys]
