"""The cut between a state and its questions, made so that the pieces' ids are those of the whole prompt."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Encode = Callable[[str], list[int]]


def cut(encode: Encode, trunk: str, suffixes: Sequence[str]) -> tuple[list[int], list[list[int]]]:
    """Ids of a common trunk and of each suffix, for a tokenizer whose tokens may span any cut in the text.

    Every whole text is encoded, and the cut is at the longest prefix that all share with one
    another and with the trunk alone: exact for any tokenizer, at the price of encoding the trunk
    once a suffix.
    """
    wholes = [encode(trunk + suffix) for suffix in suffixes]
    shared = _common([encode(trunk), *wholes])
    return wholes[0][:shared], [whole[shared:] for whole in wholes]


def _common(sequences: Sequence[list[int]]) -> int:
    """Length of the longest prefix common to all: that of the least and the greatest in lexical order."""
    low, high = min(sequences), max(sequences)
    for i, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return i
    return min(len(low), len(high))
