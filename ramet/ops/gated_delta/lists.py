"""The work lists of the gated delta rule in Triton: chunks of rows, and who waits for whom (native/plan_recurrent.cpp).

An item is a piece in chunks of CHUNK rows, or short pieces that begin from one state and leave none, together in
one tile, each at a multiple of its span: the least of BLOCK, 2 * BLOCK and CHUNK that holds them. Its word is
log2(span / BLOCK), with CARRIES, and above these 3 bits its rows (span CHUNK) or the rows in each block,
5 bits a block. begin and end: a slot, -2 - n for the nth state that only this round needs, -1: zeros, nowhere.
"delta/walk": the number of items and of flags, then the items of several chunks and those that something follows,
parents before children and else the longest first. wait: the flag of the piece that it begins from, flag: its own
(-1: none). "delta/tiles": the number of tiles, then the chunks of all items, in their words what is left of the
rows; chunk: the number of those that are walked (-1: others). "delta/forks": as long as this round's own states
are many; "delta/chunks": as the walked chunks are.
"""

from __future__ import annotations

from ramet.ops.gated_delta.reference import CHUNK
from ramet.round import Capacity

BLOCK = 16  # rows: a piece lies in its chunk at a multiple of it
TILE = 7  # int32 places of a tile in "delta/tiles": the rows at which its blocks begin, a word, chunk, begin
ITEM = 8  # of an item in "delta/walk": its first row, a word, chunks, begin, end, wait, flag, its first chunk
CARRIES = 4  # in a word: something follows the tile's rows
N_BLOCKS = CHUNK // BLOCK


def room(capacity: Capacity) -> dict[str, int]:
    """How long the lists get at most. capacity.forks bounds the pieces that something follows."""
    return {
        "delta/tiles": 1 + TILE * capacity.rows,
        "delta/walk": 2 + ITEM * capacity.rows,
        "delta/forks": capacity.forks,
        "delta/chunks": min(capacity.rows, 2 * (capacity.rows // CHUNK) + capacity.forks),
    }
