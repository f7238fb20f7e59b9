"""Request bodies: read whole, decompressed, both within a cap.

The compressed body is kept as it arrives, up to the cap; then it is decompressed by pulling at most
one byte more than the cap, so a bomb costs no more memory than an honest body. zstd comes from the
standard library where Python has it (3.14), else from `backports.zstd`, the same code: its reader
bounds its output and raises on a truncated stream, which `zstandard`'s does not.
"""

from __future__ import annotations

import asyncio
import gzip
import io
import sys
import zlib
from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.requests import Request

from ramet.errors import Cancelled
from ramet.server.errors import BodyTimeout, BodyTooLarge, MalformedBody, UnsupportedBody

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

DRAIN_BYTES = 64 << 20  # of a body over the cap, read and dropped, so that the client gets to read the answer
MIN_WINDOW_LOG, MAX_WINDOW_LOG = 23, 27  # of zstd: 8 MiB, which RFC 8878 wants of every reader, and its default


class _Reader(Protocol):
    """What the readers of both encodings have in common."""

    def read(self, size: int, /) -> bytes:
        """At most `size` bytes, fewer only at the end."""


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The body as it was sent. Raises BodyTooLarge, BodyTimeout, or Cancelled when the client goes away."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _collect(request, max_bytes)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None


async def _collect(request: Request, max_bytes: int) -> bytes:
    body, size, more = bytearray(), 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise Cancelled("the client went away while sending its body")
        chunk, more = message.get("body", b""), message.get("more_body", False)
        size += len(chunk)
        if size <= max_bytes:
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
    if encoding not in _READERS:
        raise UnsupportedBody(f"Content-Encoding {encoding!r} is not supported; use zstd, gzip or none")
    return encoding


def decompress(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """The body without its encoding. Raises BodyTooLarge beyond the cap, MalformedBody when it is broken."""
    try:
        plain = _READERS[encoding](io.BytesIO(body), max_bytes).read(max_bytes + 1)
    except (OSError, EOFError, zlib.error, zstd.ZstdError) as error:
        raise MalformedBody(f"the body is not valid {encoding}: {error}") from error
    if len(plain) > max_bytes:
        raise BodyTooLarge(f"the body has more than {max_bytes} bytes after decompression")
    return plain


def _gzip_reader(body: io.BytesIO, _max_bytes: int) -> _Reader:
    return gzip.GzipFile(fileobj=body)


def _zstd_reader(body: io.BytesIO, max_bytes: int) -> _Reader:
    """A reader that refuses a frame asking for a window much larger than the cap."""
    window_log = min(MAX_WINDOW_LOG, max(MIN_WINDOW_LOG, max_bytes.bit_length()))
    options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: window_log}
    return zstd.ZstdFile(body, options=options)


_READERS: Mapping[str, Callable[[io.BytesIO, int], _Reader]] = {
    "gzip": _gzip_reader,
    "x-gzip": _gzip_reader,
    "zstd": _zstd_reader,
}
