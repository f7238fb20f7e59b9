"""The HTTP server."""

from __future__ import annotations

from ramet.server.app import create_app, serve
from ramet.server.settings import ServerSettings

__all__ = ["ServerSettings", "create_app", "serve"]
