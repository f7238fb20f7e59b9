"""Spelling: the bytes that each id stands for in a text."""

from __future__ import annotations

import re

import tokenizers

_BYTE = re.compile("<0x([0-9A-F]{2})>")  # how vocabularies of SentencePiece's kind spell a byte that is no piece
_SPACE = "▁"


class Spelling:
    """The bytes of each id of a `tokenizers.Tokenizer`. A text is their bytes, joined, so a character may be spread
    over several ids, and ids that look alike differ in their bytes. Safe to share between threads."""

    def __init__(self, full: tokenizers.Tokenizer) -> None:
        self._full = full
        self._added = {i: token.content for i, token in full.get_added_tokens_decoder().items()}
        self._byte_level = "ByteLevel" in repr(full.decoder)
        self._falls_back = "ByteFallback" in repr(full.decoder)
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token: int) -> bytes:
        """The bytes of an id. Empty for an id that the vocabulary lacks: models may have more rows than tokens."""
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._spelled(token)
        return found

    def _spelled(self, token: int) -> bytes:
        piece = self._full.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return piece.encode() if token in self._added else _from_byte_level(piece)
        byte = _BYTE.fullmatch(piece) if self._falls_back else None
        return bytes([int(byte[1], 16)]) if byte else piece.replace(_SPACE, " ").encode()


def _alphabet() -> dict[str, int]:
    """GPT-2's character for each byte: its own where that is visible, else one behind the first 256."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + n): byte for n, byte in enumerate(others)}


_ALPHABET = _alphabet()


def _from_byte_level(piece: str) -> bytes:
    try:
        return bytes(_ALPHABET[character] for character in piece)
    except KeyError:  # a piece that somebody wrote as it is
        return piece.encode()
