"""Connection: what comes before and after a body is bounded, and an honest client never notices."""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Callable

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine

from ramet.server.connection import MAX_HEAD_BYTES

BODY = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}
HEAD = b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n"
PIECE = b"v" * 1000
MAX_PIECES = 4096  # a few megabytes: also what the system holds on the way

ENDLESS: dict[str, tuple[bytes, Callable[[int], bytes]]] = {
    "address": (b"POST /", lambda _: PIECE),
    "value": (HEAD + b"X-Long: ", lambda _: PIECE),
    "headers": (HEAD, lambda n: b"X-%d: %s\r\n" % (n, PIECE)),
    "trailers": (CHUNKED + b"0\r\n", lambda n: b"X-%d: %s\r\n" % (n, PIECE)),
    "trailer": (CHUNKED + b"0\r\nX-Long: ", lambda _: PIECE),
    "extension": (CHUNKED + b"1;", lambda _: PIECE),
}


def send_on(client: socket.socket, piece: Callable[[int], bytes]) -> None:
    """Sends until the server ends the connection."""
    for n in range(MAX_PIECES):
        client.sendall(piece(n))
    raise AssertionError("the server takes whatever is sent")


@pytest.mark.parametrize("part", ENDLESS)
def test_what_never_ends_ends_the_connection(serve: Serve, part: str) -> None:
    server = serve(StubEngine())
    start, piece = ENDLESS[part]
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(start)
        with pytest.raises(ConnectionError):
            send_on(client, piece)
    assert httpx2.post(f"{server.url}/v1/systemone", json=BODY).status_code == 200


def test_a_head_beyond_the_bound_is_refused_and_one_within_it_is_read(serve: Serve) -> None:
    url = f"{serve(StubEngine()).url}/v1/systemone"
    statuses = []
    for n_bytes in (MAX_HEAD_BYTES - 1000, MAX_HEAD_BYTES):
        statuses.append(httpx2.post(url, json=BODY, headers={"x-long": "v" * n_bytes}).status_code)
    assert statuses == [200, 400]


def test_the_bound_is_for_each_request_not_for_the_connection(serve: Serve) -> None:
    with httpx2.Client() as client:
        url = f"{serve(StubEngine()).url}/v1/systemone"
        headers = {"x-long": "v" * (MAX_HEAD_BYTES // 2)}
        assert [client.post(url, json=BODY, headers=headers).status_code for _ in range(4)] == [200] * 4


def test_a_body_in_many_small_chunks_is_no_head(serve: Serve) -> None:
    url = f"{serve(StubEngine()).url}/v1/systemone"
    body = b'{"state": "%s", "questions": {"q": {"type": "noul", "instructions": "x"}}}' % (b"v" * 3 * MAX_HEAD_BYTES)
    pieces = (body[i : i + 7] for i in range(0, len(body), 7))
    assert httpx2.post(url, content=pieces).status_code == 200


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABk\r\n"


def replies(client: socket.socket, n: int) -> bytes:
    """What the server sends until n replies are there whole, or the connection ends."""
    found = b""
    while found.count(b'"x_timing"') < n and (piece := client.recv(1 << 16)):
        found += piece
    return found


@pytest.mark.parametrize("cut", ["whole", "body apart", "head's last byte apart", "in bytes"])
def test_a_request_that_offers_another_protocol_keeps_its_body(serve: Serve, cut: str) -> None:
    """As Java's client sends it."""
    body = json.dumps(BODY).encode()
    head = HEAD + UPGRADE + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
    at = {"whole": [], "body apart": [len(head)], "head's last byte apart": [len(head) - 1]}
    cuts = [0, *at.get(cut, range(1, len(head + body))), len(head + body)]
    with socket.create_connection(("127.0.0.1", serve(StubEngine()).port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n in (1, 2):  # the second on the same connection
            for a, b in itertools.pairwise(cuts):
                client.sendall((head + body)[a:b])
                time.sleep(0.02 if len(cuts) == 3 else 0)
            found = replies(client, 1)
            assert found.startswith(b"HTTP/1.1 200"), n
            assert found.count(b"HTTP/1.1") == 1


def test_such_an_offer_behind_a_request_that_is_not_answered_yet(serve: Serve) -> None:
    body = json.dumps(BODY).encode()
    plain = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    offer = HEAD + UPGRADE + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", serve(StubEngine()).port)) as client:
        client.sendall(plain + offer)
        assert b"HTTP/1.1 400" in replies(client, 9)
