"""The cut between a state and its questions, made so that the pieces' ids are those of the whole prompt."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ramet.errors import RequestTooLong

Encode = Callable[[str], list[int]]
# As tokenizers see it: Python's rstrip takes four separators more.
_WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))


def before_breaks(trunk: str) -> tuple[str, str]:
    """A trunk without the white space that it ends in, and this."""
    n = len(trunk.rstrip(_WHITE))
    return trunk[:n], trunk[n:]


def cut(
    encode: Encode, trunk: str, suffixes: Sequence[str], most: int = sys.maxsize
) -> tuple[list[int], list[list[int]]]:
    """Ids of a common trunk and of each suffix, for a tokenizer whose tokens may span any cut in the text.

    Every whole text is encoded, and the cut is at the longest prefix that all share with one
    another and with the trunk alone: exact for any tokenizer, at the price of encoding the trunk
    once a suffix. Raises RequestTooLong where that is more than `most` ids in all.
    """
    wholes, n_ids = list[list[int]](), 0
    for suffix in suffixes:
        wholes.append(encode(trunk + suffix))
        n_ids += len(wholes[-1])
        if n_ids > most:
            raise RequestTooLong(
                "this model's tokens may join a state and a question, so that each question encodes the state again: "
                f"{len(suffixes)} of them take more than {most} tokens; ask fewer, or about a shorter state"
            )
    shared = _common([encode(trunk), *wholes])
    return wholes[0][:shared], [whole[shared:] for whole in wholes]


def _common(sequences: Sequence[list[int]]) -> int:
    """Length of the longest prefix common to all: that of the least and the greatest in lexical order."""
    low, high = min(sequences), max(sequences)
    for i, (a, b) in enumerate(zip(low, high, strict=False)):
        if a != b:
            return i
    return min(len(low), len(high))
