"""PreTokenizer: what cuts a text into words before byte-pair merges, in files that keep its name alone."""

from __future__ import annotations

from dataclasses import dataclass

# How the splits of most models go on behind letters and digits.
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """What a name in `tokenizer.ggml.pre` stands for: the steps of the models' tokenizer.json.

    split: the regular expression of a word; None is GPT-2's own. digits: each digit is cut off before the split.
    whole_words: a word that is an entry of the vocabulary is taken whole, whatever the merges say. nfc: texts are
    normalised so. adds_bos: a text begins with the token for it where the file has no add_bos_token.
    """

    split: str | None = None
    digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    adds_bos: bool = False
