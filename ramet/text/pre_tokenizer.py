"""PreTokenizer: cuts a text into words before byte-pair merges, in GGUF files, which keep its name alone."""

from __future__ import annotations

from dataclasses import dataclass

# How the splits of most models go on behind letters and digits.
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """The steps that a name in `tokenizer.ggml.pre` stands for, as the models' tokenizer.json has them.

    split: the regular expression of a word; None is GPT-2's own. digits: whether each digit is cut off before the
    split. whole_words: whether a word of the vocabulary is taken whole, whatever the merges are. nfc: whether texts are
    normalised to NFC. adds_bos: whether a text begins with BOS where the file has no add_bos_token.
    """

    split: str | None = None
    digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    adds_bos: bool = False
