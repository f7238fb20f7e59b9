from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ramet.round import pack
from ramet.tree import WHOLE, Read, Segment, Tree
from ramet.units import Unit, Units

NONE = np.zeros(0, np.int32)


def unit(n_state: int, *n_questions: int, context: int = 0) -> Unit:
    questions = [Segment(np.arange(n), 0, reads=[Read([n, 7])]) for n in n_questions]
    tree = Tree.of([Segment(np.arange(n_state), reads=[Read([5], normalize=False)]), *questions])
    return Unit(tree, np.arange(-(-context // 4), dtype=np.int32), context, np.arange(n_state, dtype=np.int32))


def test_units_lie_end_to_end_with_positions_behind_their_context() -> None:
    packed = pack(Units.of([unit(3, 2), unit(2, 1, 1, context=6)]))
    assert packed["tokens"].tolist() == [0, 1, 2, 0, 1, 0, 1, 0, 0]
    assert packed["positions"].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 8]
    assert packed["parents"].tolist() == [-1, 0, -1, 2, 2]
    assert packed["contexts"].tolist() == [-1, -1, 0, 0, 0]
    assert packed["context_lengths"].tolist() == [6]
    assert packed["kept_rows"].tolist() == [0, 1, 2, 5, 6]


def test_rows_with_positions_keep_their_places_in_all_else() -> None:
    block = [Segment([1, 2], -1, WHOLE), Segment([3, 4, 5], 0, WHOLE, [Read([7], 1)])]
    units = Units.of([Unit(Tree.of(block), np.arange(2, dtype=np.int32), 6)])
    placed = replace(units, positions=np.array([11, 9, -1, 14, 13], np.int32))
    packed = pack(Units.joined([Units.of([]), Units.of([unit(3, 2)]), placed, Units.of([unit(2, 1, context=6)])]))
    assert packed["positions"].tolist() == [0, 1, 2, 3, 4, 11, 9, 8, 14, 13, 6, 7, 8]
    assert packed["origins"].tolist() == packed["anchors"].tolist() == [0, 3, 6, 8, 6, 8]
    assert packed["read_rows"].tolist() == [2, 4, 8, 11, 12]
    assert packed.unit_reads.tolist() == [0, 2, 3, 5]


def test_units_one_by_one_are_flat_arrays() -> None:
    units = Units.of([unit(3, 2), unit(2, 1, 1, context=6)])
    assert (len(units), units.n_tokens) == (2, 9)
    assert units.counts.tolist() == [[5, 2, 2, 3, 0, 1, 3, 0, 0, 0, -1], [4, 3, 3, 5, 2, 1, 2, 0, 6, 0, -1]]
    assert units.parents.tolist() == [-1, 0, -1, 0, 0]
    assert units.widths.tolist() == [1, 2, 1, 2, 2]
    assert units.positions.tolist() == [-1] * 9
    assert units.normalize.tolist() == [False, True, False, True, True]
    assert len(Units.of([])) == 0


def test_each_unit_gets_its_own_reads_back() -> None:
    packed = pack(Units.of([unit(3, 2), unit(2, 1, 1)]))
    columns = torch.from_numpy(packed["columns"].astype(np.float32))
    norms = torch.from_numpy(packed["read_rows"][packed["read_index"]].astype(np.float32))
    first, second = packed.results(columns, norms)
    assert first.logits.tolist() == [5, 2, 7]
    assert second.logits.tolist() == [5, 1, 7, 1, 7]
    assert second.logsumexp.tolist() == [6, 7, 8]
    assert second.columns(1).tolist() == [1, 7]


def test_a_row_read_twice_is_one_query_that_is_normalised_if_either_asks() -> None:
    reads = [Read([1], normalize=False), Read([2, 3], normalize=True), Read([4], row=0, normalize=False)]
    packed = pack(Units.of([Unit(Tree.of([Segment([1, 2], reads=reads)]), NONE, 0, NONE)]))
    assert packed["read_rows"].tolist() == [0, 1]
    assert packed["read_index"].tolist() == [1, 1, 0]
    assert packed["normalize"].tolist() == [0, 1]


def test_the_stream_is_filled_up_by_a_segment_apart() -> None:
    plain, filled = pack(Units.of([unit(3, 2)])), pack(Units.of([unit(3, 2)]), 8)
    assert filled.n_tokens == 8
    assert filled["parents"].tolist() == [-1, 0, -1]
    assert filled["positions"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]
    for name in ("kept_rows", "kept_slots", "columns", "read_rows", "read_index"):
        assert filled[name].tolist() == plain[name].tolist()
    assert pack(Units.of([unit(3, 2)]), 5).n_tokens == 5


def test_uploading_keeps_every_field() -> None:
    packed = pack(Units.of([unit(3, 2), unit(2, 1, 1, context=6)]), 16)
    stream = packed.on(torch.device("cpu"))
    assert stream.positions.tolist() == packed["positions"].tolist()
    assert stream.read.rows.tolist() == packed["read_rows"].tolist()
    assert stream.every.bounds.tolist() == [*packed["starts"].tolist(), 16]
