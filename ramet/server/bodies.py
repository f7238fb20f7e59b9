"""Request bodies: read whole, decompressed, both within a cap.

The compressed body is kept as it arrives, up to the cap; then it is decompressed by pulling at most
one byte more than the cap, so a bomb costs no more memory than an honest body. zstd comes from the
standard library where Python has it (3.14), else from `backports.zstd`, the same code.
"""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from starlette.requests import Request

from ramet.errors import Cancelled
from ramet.quoting import shown
from ramet.server.errors import BodyTimeout, BodyTooLarge, MalformedBody, Unavailable, UnsupportedBody

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DRAIN_BYTES = 64 << 20  # of a body over the cap, read and dropped, so that the client gets to read the answer
MAX_BODIES = 64  # of the largest there may be, which all requests' bodies together may take
MAX_MEMBERS = 1024  # of gzip, or frames of zstd; tools that work in parallel make one of 64 KiB and more
MIN_WINDOW_LOG, MAX_WINDOW_LOG = 23, 27  # of zstd: 8 MiB, which RFC 8878 wants of every reader, and its default

_PIECE = 1 << 16  # bytes that a decoder gets at a time
_PADDING = 0  # may follow what gzip made
Take = Callable[[int], None]


class _Decoder(Protocol):
    """It decompresses one member of gzip, or one frame of zstd."""

    @property
    def eof(self) -> bool:
        """Whether it has met the end."""

    @property
    def unused_data(self) -> bytes:
        """The bytes behind the end."""

    def decompress(self, data: memoryview, max_length: int, /) -> bytes:
        """At most `max_length` bytes more."""


class Room:
    """The bodies of all requests, as they were sent, take at most `most` bytes together."""

    def __init__(self, most: int) -> None:
        self._left = most

    @contextmanager
    def share(self) -> Iterator[Take]:
        """The share of one request, which it gives back at the end of the block. The function that this yields takes
        some more bytes, and raises Unavailable where there are none."""
        n_taken = 0

        def take(n_bytes: int) -> None:
            nonlocal n_taken
            if n_bytes > self._left:
                raise Unavailable("the server holds as many bytes of request bodies as it may; try again")
            self._left -= n_bytes
            n_taken += n_bytes

        try:
            yield take
        finally:
            self._left += n_taken


async def read_body(request: Request, take: Take, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body as it was sent. Raises BodyTooLarge, BodyTimeout, Cancelled when the client disconnects, and what `take`
    raises."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _collect(request, take, max_bytes)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None


async def _collect(request: Request, take: Take, max_bytes: int) -> bytes:
    body, size, more = bytearray(), 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client went away while sending its body")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= max_bytes:
            take(len(chunk))
            body += chunk
        elif size > max_bytes + DRAIN_BYTES:
            break
        else:
            body.clear()
    if size > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes")
    return bytes(body)


def encoding_of(header: str | None) -> str | None:
    """The one encoding that a Content-Encoding header names; None for an identity. Raises UnsupportedBody."""
    encoding = (header or "identity").strip().lower()
    if encoding == "identity":
        return None
    if encoding not in _DECODERS:
        raise UnsupportedBody(f"Content-Encoding {shown(encoding)} is not supported; use zstd, gzip or none")
    return encoding


def decompress(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """The body without its encoding. Raises BodyTooLarge beyond the cap, MalformedBody when it is broken, or has more
    than MAX_MEMBERS members or frames, each of which costs time even where it holds nothing."""
    plain, at = bytearray(), 0
    try:
        for _ in range(MAX_MEMBERS):
            at += _unpack(memoryview(body)[at:], _DECODERS[encoding](max_bytes), plain, max_bytes)
            if at == len(body) or (body[at] == _PADDING and encoding != "zstd" and body.count(0, at) == len(body) - at):
                return bytes(plain)
    except (EOFError, zlib.error, zstd.ZstdError) as error:
        raise MalformedBody(f"the body is not valid {encoding}: {error}") from error
    raise MalformedBody(f"the body is not valid {encoding} here: it has more than {MAX_MEMBERS} members")


def _unpack(body: memoryview, decoder: _Decoder, plain: bytearray, max_bytes: int) -> int:
    """Append the content of the first member or frame, and return its length. The decoder gets pieces, since it copies
    what a piece has behind the end."""
    for at in range(0, len(body), _PIECE):
        piece = body[at : at + _PIECE]
        plain += decoder.decompress(piece, max_bytes + 1 - len(plain))
        if len(plain) > max_bytes:
            raise BodyTooLarge(f"the body has more than {max_bytes} bytes after decompression")
        if decoder.eof:
            return at + len(piece) - len(decoder.unused_data)
    raise EOFError("it ends too early")


def _gzip(_max_bytes: int) -> _Decoder:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


def _zstd(max_bytes: int) -> _Decoder:
    """A decoder that refuses a frame whose window is much larger than the cap."""
    window_log = min(MAX_WINDOW_LOG, max(MIN_WINDOW_LOG, max_bytes.bit_length()))
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window_log}
    return zstd.ZstdDecompressor(options=options)


_DECODERS: Mapping[str, Callable[[int], _Decoder]] = {"gzip": _gzip, "x-gzip": _gzip, "zstd": _zstd}
