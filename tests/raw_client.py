"""Raw clients: requests as bytes, over a socket of the test's own."""

from __future__ import annotations

import json
import socket

from waiting import GUARD_S

BODY = json.dumps({"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}).encode()
UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"
ASK = b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n%s\r\n%s"
PLAIN, OFFER = ASK % (len(BODY), b"", BODY), ASK % (len(BODY), UPGRADE, BODY)


def connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port))
    client.settimeout(GUARD_S)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def answer(client: socket.socket) -> bytes:
    """One answer, whole; what has come of it where the connection ends."""
    found = b""
    while b"\r\n\r\n" not in found or len(found.split(b"\r\n\r\n", 1)[1]) < _n_body(found):
        piece = client.recv(1 << 16)
        if not piece:
            break
        found += piece
    return found


def _n_body(found: bytes) -> int:
    lines = found.split(b"\r\n\r\n", 1)[0].lower().split(b"\r\n")
    return next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))


def until_closed(client: socket.socket) -> bytes:
    found = b""
    try:
        while piece := client.recv(1 << 16):
            found += piece
    except ConnectionError:
        pass
    return found
