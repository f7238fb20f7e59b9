"""Authentication: one optional key, as a bearer token."""

from __future__ import annotations

import hmac
from typing import Annotated

from fastapi import Depends
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.requests import Request

from ramet.server.errors import Unauthenticated

_BEARER = HTTPBearer(auto_error=False, description="The server's key, where it has one.")


class Authentication:
    """Checks requests against a key; None lets all pass, whatever they send."""

    def __init__(self, key: SecretStr | None) -> None:
        self._key = None if key is None else key.get_secret_value().encode()

    async def check_request(self, request: Request) -> None:
        """What `check` does, for a route without dependencies. Raises Unauthenticated."""
        if self._key is not None:
            await self.check(await _BEARER(request))

    async def check(self, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]) -> None:
        """Dependency of every guarded route. Raises Unauthenticated."""
        if self._key is None:
            return
        if credentials is None:
            raise Unauthenticated("an API key is needed: send it as `Authorization: Bearer <key>`")
        given = credentials.credentials.encode("latin-1")  # the bytes on the wire, as ASGI servers decode them
        if not hmac.compare_digest(given, self._key):
            raise Unauthenticated("the API key is wrong")
