"""Bodies: decompression within a cap, in unit tests and over a socket."""

from __future__ import annotations

import gzip
import json
import socket
import sys
import tracemalloc
from collections.abc import Callable

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.live_server import LiveServer
from oracles.answers import assert_close

from ramet.server.bodies import decompress, encoding_of
from ramet.server.errors import BodyTooLarge, MalformedBody, UnsupportedBody
from ramet.server.settings import ServerSettings

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MIB = 1 << 20
COMPRESS: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd.compress}
PLAIN = json.dumps(
    {
        "model": "jev-latest",
        "state": "naïve " * 700,
        "questions": {"q": {"type": "noul", "instructions": "Late?"}},
    }
).encode()


def zstd_bomb(n_mib: int) -> bytes:
    compressor = zstd.ZstdCompressor()
    zeros = bytes(MIB)
    return b"".join([*(compressor.compress(zeros) for _ in range(n_mib)), compressor.flush()])


@pytest.mark.parametrize("encoding", COMPRESS)
def test_what_was_compressed_comes_back(encoding: str) -> None:
    body = COMPRESS[encoding](PLAIN)
    assert decompress(body, encoding, max_bytes=len(PLAIN)) == PLAIN
    assert decompress(body + body, encoding, max_bytes=2 * len(PLAIN)) == PLAIN * 2  # frames and members may follow


@pytest.mark.parametrize("encoding", COMPRESS)
def test_one_byte_over_the_cap_is_too_large(encoding: str) -> None:
    with pytest.raises(BodyTooLarge, match="after decompression"):
        decompress(COMPRESS[encoding](PLAIN), encoding, max_bytes=len(PLAIN) - 1)


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize(
    "breakage",
    [
        lambda body: body[:-5],
        lambda body: body[: len(body) // 2],
        lambda body: body[:20] + bytes([body[20] ^ 255]) + body[21:],
        lambda body: body + b"trailing",
        lambda _: b"neither",
    ],
)
def test_broken_data_is_malformed(encoding: str, breakage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(MalformedBody, match=f"not valid {encoding}"):
        decompress(breakage(COMPRESS[encoding](PLAIN)), encoding, max_bytes=MIB)


def test_a_bomb_costs_no_more_memory_than_the_cap() -> None:
    bomb = zstd_bomb(512)
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            decompress(bomb, "zstd", max_bytes=MIB)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * MIB


def test_a_zstd_window_far_beyond_the_cap_is_refused() -> None:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 27})
    body = compressor.compress(PLAIN) + compressor.flush()
    with pytest.raises(MalformedBody, match="memory"):
        decompress(body, "zstd", max_bytes=16 * MIB)


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        (None, None),
        ("identity", None),
        ("GZIP", "gzip"),
        (" zstd ", "zstd"),
    ],
)
def test_encodings(header: str | None, encoding: str | None) -> None:
    assert encoding_of(header) == encoding


@pytest.mark.parametrize("header", ["br", "deflate", "gzip, zstd"])
def test_other_encodings_are_refused(header: str) -> None:
    with pytest.raises(UnsupportedBody, match="use zstd, gzip or none"):
        encoding_of(header)


def post(server: LiveServer, body: bytes, encoding: str | None = None) -> httpx2.Response:
    headers = {"content-type": "application/json"} | ({"content-encoding": encoding} if encoding else {})
    return httpx2.post(f"{server.url}/v1/systemone", content=body, headers=headers)


@pytest.mark.parametrize("encoding", COMPRESS)
def test_a_compressed_request_gets_the_answer_of_the_plain_one(live: LiveServer, encoding: str) -> None:
    plain, packed = post(live, PLAIN), post(live, COMPRESS[encoding](PLAIN), encoding)
    assert (plain.status_code, packed.status_code) == (200, 200)
    assert_close(packed.json()["answers"], plain.json()["answers"])


def test_statuses_of_bodies(live: LiveServer) -> None:
    bomb = post(live, zstd_bomb(256), "zstd")
    assert (bomb.status_code, bomb.json()["detail"]["error_type"]) == (413, "body_too_large")
    broken = post(live, b"not zstd", "zstd")
    assert (broken.status_code, broken.json()["detail"]["error_type"]) == (400, "malformed_body")
    other = post(live, PLAIN, "br")
    assert (other.status_code, other.json()["detail"]["error_type"]) == (415, "unsupported_body")
    assert other.headers["accept-encoding"] == "zstd, gzip"


def test_a_client_that_sends_too_much_gets_to_read_the_answer(serve: Serve) -> None:
    server = serve(StubEngine(), ServerSettings(max_body_bytes=2048))
    head = f"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {40 * MIB}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(head.encode() + bytes(40 * MIB))  # as many clients do: all of it, before reading
        reply = b"".join(iter(lambda: client.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in reply
    assert b"2048 bytes" in reply


def test_a_body_of_just_the_cap_is_read(serve: Serve) -> None:
    server = serve(StubEngine(), ServerSettings(max_body_bytes=len(PLAIN)))
    assert post(server, PLAIN).status_code == 200
    assert post(server, PLAIN + b" ").status_code == 413


def test_a_body_that_never_comes_times_out(serve: Serve) -> None:
    server = serve(StubEngine(), ServerSettings(body_timeout_s=0.2))
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /v1/systemone HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 10\r\n\r\n{")
        reply = b"".join(iter(lambda: client.recv(65536), b""))  # head and body may come apart
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"body_timeout" in reply


def test_a_multipart_body_is_refused(live: LiveServer) -> None:
    files = {"request": ("request", PLAIN, "application/json"), "image": ("a.png", b"png", "image/png")}
    reply = httpx2.post(f"{live.url}/v1/systemone", files=files)
    assert reply.status_code == 415
    assert "images" in reply.json()["detail"]["message"]
