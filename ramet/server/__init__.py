"""The HTTP server."""

from __future__ import annotations

from ramet.server.app import create_app, serve
from ramet.server.listener import Listener, ListenError
from ramet.server.loading import Loading
from ramet.server.settings import ServerSettings
from ramet.server.signals import Signals

__all__ = ["ListenError", "Listener", "Loading", "ServerSettings", "Signals", "create_app", "serve"]
