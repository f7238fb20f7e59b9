"""ROUTES: the endpoints of a server. A new route is one more of them."""

from __future__ import annotations

from ramet.server.endpoint import Endpoint
from ramet.server.openai.chat import Chat
from ramet.server.openai.completions import Completions
from ramet.server.systemone import SystemOne

ROUTES: tuple[type[Endpoint], ...] = (SystemOne, Chat, Completions)
