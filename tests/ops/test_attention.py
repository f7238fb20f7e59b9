"""Attention on the CPU against its reference in float64: the compiled kernel and the plain torch path."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from fixtures.attention_rounds import Chain, Chunks, assert_close, chain, held
from fixtures.cpu_variants import CpuVariants, kernel_paths
from fixtures.random_states import normal
from fixtures.random_trees import random_tree

from ramet.cache.kv import KeyValue
from ramet.ops import OpShape, native
from ramet.ops.attention import reference
from ramet.round import Queries, Stream, pack
from ramet.tree import MAX_ANCESTORS, WHOLE, Read, Segment, Tree
from ramet.units import Unit, Units

PAGE = 16
cpu = CpuVariants("attention")
NO_SLOTS = np.zeros(0, np.int32)


@dataclass(frozen=True)
class Scene:
    """A stream with its tensors. What no row may see is NaN: unused pages, and what lies behind a context's end."""

    stream: Stream
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pages: KeyValue

    def run(self, *, window: int = 0, queries: Queries | None = None) -> torch.Tensor:
        queries = queries or self.stream.every
        q = self.q[queries.rows.long()]
        attention = cpu.of(OpShape(q.dtype, head_dim=q.shape[2])).attention
        found: torch.Tensor = attention(q, self.k, self.v, self.stream, queries, self.pages, scale=0.3, window=window)
        return found

    def expected(self, *, window: int = 0, queries: Queries | None = None) -> torch.Tensor:
        queries = queries or self.stream.every
        q, k, v = self.q[queries.rows.long()].double(), self.k.double(), self.v.double()
        pages = KeyValue(self.pages.keys.double(), self.pages.values.double())
        return reference.attention(q, k, v, self.stream, queries, pages, scale=0.3, window=window)


def scene(
    rng: np.random.Generator,
    trees: list[Tree],
    contexts: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (3, 1),
    head_dim: int = 16,
) -> Scene:
    """`contexts`: how many rows each tree's roots continue, in pages in random order."""
    owned, pages = held(rng, contexts, PAGE, heads[1], head_dim, dtype)
    units = [Unit(tree, own, n, NO_SLOTS) for tree, n, own in zip(trees, contexts, owned, strict=True)]
    stream = pack(Units.of(units)).on(torch.device("cpu"))
    merged = normal(rng, len(stream.tokens), heads[0] + 2 * heads[1], head_dim).to(dtype)
    q, k, v = merged.split([heads[0], heads[1], heads[1]], 1)
    return Scene(stream, q, k, v, pages)


path, compiled = kernel_paths(cpu)


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    """`torch.empty` is NaN, and so is what the kernel's own working memory holds from the call before."""
    before = torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    if native.library() is not None:
        spoilt = scene(np.random.default_rng(0), [chain(300, 300)], [100], heads=(6, 2), head_dim=64)
        spoilt.q[:], spoilt.k[:], spoilt.v[:] = torch.nan, torch.nan, torch.nan
        assert not bool(spoilt.run().isfinite().any())
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(5))
def test_random_trees_in_one_round(path: str, dtype: torch.dtype, seed: int) -> None:
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, vocab_size=9, blocks=(1, 4, 32, WHOLE)) for _ in range(3)]
    contexts = [int(n) for n in rng.integers(0, 150, 3) * rng.integers(0, 2, 3)]
    heads = [(1, 1), (3, 1), (8, 2), (4, 4)][seed % 4]
    given = scene(rng, trees, contexts, dtype=dtype, heads=heads, head_dim=[16, 64][seed % 2])
    for window in (0, 1, 24):
        for queries in (given.stream.every, given.stream.read):
            found = given.run(window=window, queries=queries)
            assert_close(found, given.expected(window=window, queries=queries), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 12, 63, 65, 500])
@pytest.mark.parametrize("block", [1, 4, 32, WHOLE])
def test_odd_sizes(path: str, dtype: torch.dtype, n: int, block: int) -> None:
    given = scene(np.random.default_rng(n), [chain(n, 7, n, block=block)], [n], dtype=dtype)
    for window in (0, 40):
        assert_close(given.run(window=window), given.expected(window=window), dtype)


@pytest.mark.parametrize("block", [WHOLE, 4])
def test_a_window_reaches_back_from_the_first_row_of_the_block(path: str, block: int) -> None:
    """All rows of a canvas see the same keys above it, and all of itself, however wide it is."""
    window, n_context, n_above, width = 10, 16, 8, 20  # the canvas begins on the grid of blocks
    tree = Tree.of([Segment(np.zeros(n_above, np.int32)), Segment(np.zeros(width, np.int32), 0, block)])
    given = scene(np.random.default_rng(12), [tree], [n_context])
    for key in range(n_above + width):
        changed = given.v.clone()
        changed[key] += 1
        for attend in (Scene.run, Scene.expected):
            found = attend(given, window=window) != attend(replace(given, v=changed), window=window)
            begins = [n_above + (row // block * block) for row in range(width)]
            seen = [begin - window < key < begin + block for begin in begins]
            assert found.flatten(1).any(1)[n_above:].tolist() == seen


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 48, 80, 128, 256, 512, 528, 24])
def test_head_sizes(path: str, dtype: torch.dtype, head_dim: int) -> None:
    given = scene(np.random.default_rng(3), [chain(70, 30)], [33], dtype=dtype, heads=(4, 2), head_dim=head_dim)
    assert_close(given.run(), given.expected(), dtype)


@pytest.mark.parametrize("heads", [(1, 1), (9, 3), (4, 4), (16, 4), (71, 1)])
def test_heads_that_share_keys(path: str, heads: tuple[int, int]) -> None:
    given = scene(np.random.default_rng(4), [chain(37, 21)], [50], heads=heads)
    assert_close(given.run(), given.expected(), torch.float32)


def test_four_ancestors_below_a_context(path: str) -> None:
    given = scene(np.random.default_rng(5), [chain(5, 64, 1, 17, 130)], [81])
    assert_close(given.run(), given.expected(), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_few_rows_over_many_keys(path: str, dtype: torch.dtype) -> None:
    """Long enough that the compiled kernel cuts the keys."""
    given = scene(np.random.default_rng(6), [chain(2500, 3)], [2600], dtype=dtype)
    for window in (0, 2700):
        found = given.run(window=window, queries=given.stream.read)
        assert_close(found, given.expected(window=window, queries=given.stream.read), dtype)


def test_large_scores(compiled: None) -> None:
    """Scores up to some thousands, exact in float32: the weights of most keys vanish, wherever the largest lies."""
    given = scene(np.random.default_rng(7), [chain(300, 20)], [200], heads=(2, 2))
    given.q[:] = given.q.mul(8).round() / 8
    given.k[:] = given.k.mul(8).round()
    given.pages.keys[:] = given.pages.keys.mul(8).round()
    given.k[:150] *= 128
    given.k[200:] *= -128
    assert_close(given.run(), given.expected(), torch.float32)


def test_other_dtypes_take_the_plain_path() -> None:
    given = scene(np.random.default_rng(8), [chain(40, 9)], [20])
    half = Scene(
        given.stream, given.q.half(), given.k.half(), given.v.half(),
        KeyValue(given.pages.keys.half(), given.pages.values.half()),
    )  # fmt: skip
    found = half.run()
    assert found.dtype == torch.float16
    assert float((found.double() - half.expected()).abs().max()) < 5e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_do_not_depend_on_threads(compiled: None, dtype: torch.dtype) -> None:
    given = scene(np.random.default_rng(9), [chain(2100, 100)], [300], dtype=dtype, heads=(6, 2), head_dim=64)
    found = []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        found.append((given.run(), given.run(queries=given.stream.read)))
    for every, read in found[1:]:
        assert torch.equal(every, found[0][0])
        assert torch.equal(read, found[0][1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [1, WHOLE])
def test_bits_do_not_depend_on_what_shares_the_round(compiled: None, dtype: torch.dtype, block: int) -> None:
    """A question alone below its state, and the same among siblings and other units, some of them NaN."""
    rng = np.random.default_rng(10)
    state, question = np.zeros(203, np.int32), np.zeros(61, np.int32)
    alone = Tree.of([Segment(state, -1, block), Segment(question, 0, block, [Read([1])])])
    others = [Segment(np.zeros(n, np.int32), 0, block) for n in (5, 100)]
    shared = Tree.of([Segment(state, -1, block), *others, Segment(question, 0, block, [Read([1])])])
    one = scene(rng, [alone], [70], dtype=dtype, heads=(6, 2), head_dim=64)
    many = scene(rng, [chain(40, 3), shared, chain(30, 9)], [20, 70, 0], dtype=dtype, heads=(6, 2), head_dim=64)
    rows = torch.cat((torch.arange(203), torch.arange(203 + 105, 203 + 105 + 61))) + int(many.stream.starts[4])
    for source, target in ((one.q, many.q), (one.k, many.k), (one.v, many.v)):
        target[:] = torch.nan
        target[rows] = source
    held = many.stream.context_pages[many.stream.context_offsets[1] :].long()
    for source, target in ((one.pages.keys, many.pages.keys), (one.pages.values, many.pages.values)):
        target[:] = torch.nan
        target[held] = source[one.stream.context_pages.long()]
    for window in (0, 90):
        expected = one.run(window=window)
        assert bool(expected.isfinite().all())
        assert torch.equal(many.run(window=window)[rows], expected)


def test_nan_reaches_those_who_see_it_and_nobody_else(path: str) -> None:
    given = scene(np.random.default_rng(11), [chain(40, 30), chain(50, 8)], [0, 33])
    n = int(given.stream.starts[4])
    given.v[20] = torch.nan
    bad = given.run().isnan().flatten(1)
    assert bool(bad[40:n].all())
    assert not bool(bad[n:].any())
    given.v[20], given.k[20] = 0.0, torch.nan
    bad = given.run().isnan().flatten(1)
    assert bool(bad[20:n].all())
    assert not bool(bad[n:].any())
    if path == "compiled":  # torch adds minus infinity to the scores that it hides, and NaN stays NaN
        assert not bool(bad[:20].any())


OTHER, HEADS = chain(70, 3), (6, 2)
N_OTHER = OTHER.n_tokens


def scene_of(given: Chain, rng: np.random.Generator, begin: int, end: int, page: int) -> Scene:
    """Rows [begin, end) behind another unit, those before them in pages."""
    packed, *rest = given.round(rng, begin, end, page, OTHER)
    return Scene(packed.on(torch.device("cpu")), *rest)


def assert_pieces_equal_the_whole(given: Chain, cuts: list[int], rng: np.random.Generator, window: int) -> None:
    """Every piece's bytes, of all rows and of the rows that are read, are those of the whole."""
    n = sum(given.lengths)
    whole = scene_of(given, rng, 0, n, 1).run(window=window)[N_OTHER : N_OTHER + n]
    assert bool(whole.isfinite().all())
    for begin, end in itertools.pairwise([0, *cuts, n]):
        one = scene_of(given, rng, begin, end, int(rng.choice([1, 7, 16, 64])))
        every = one.run(window=window)
        assert torch.equal(every[N_OTHER : N_OTHER + end - begin], whole[begin:end])
        rows = one.stream.read.rows.long()
        mine = (rows >= N_OTHER) & (rows < N_OTHER + end - begin)
        read = one.run(window=window, queries=one.stream.read)
        assert int(mine.sum()) > 0
        assert torch.equal(read[mine], whole[begin:end][rows[mine] - N_OTHER])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(12))
def test_bits_do_not_depend_on_how_a_path_was_cut(compiled: None, dtype: torch.dtype, seed: int) -> None:
    """In one piece, in chunks through pages, resumed at forks and between them."""
    rng = np.random.default_rng(100 + seed)
    n = int(rng.integers(1, MAX_ANCESTORS + 2))
    lengths = [int(rng.choice([1, 5, 40, 127, 128, 129, 300])) for _ in range(n)]
    blocks = [int(rng.choice([1, 1, 4, 32, WHOLE])) for _ in range(n)]
    given = Chain.random(rng, lengths, blocks, dtype, HEADS)
    for window in (0, 1, 100):
        assert_pieces_equal_the_whole(given, given.cuts(rng, 3), rng, window)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bits_of_long_paths_depend_on_neither_cuts_nor_the_number_of_rows(compiled: None, dtype: torch.dtype) -> None:
    """Long enough that the kernel joins several parts: chunks of many rows and of few, and rows that are read."""
    rng = np.random.default_rng(12)
    given = Chain.random(rng, [2300, 60, 2100, 5], [1, 1, 4, 1], dtype, HEADS)
    cuts = [1, 3, 700, 2299, 2303, 2340, 2360, 4400, 4404, 4462]
    for window in (0, 2500):
        assert_pieces_equal_the_whole(given, cuts, rng, window)


def test_a_path_of_more_forks_than_a_tree_has_levels(compiled: None) -> None:
    """A context of many short segments: equal to rounding, and to its own chunks."""
    rng = np.random.default_rng(13)
    given = Chain.random(rng, [20] * 30, [1] * 30, torch.float32, HEADS)
    whole = scene_of(given, rng, 595, 600, 16)
    assert_close(whole.run()[N_OTHER : N_OTHER + 5], whole.expected()[N_OTHER : N_OTHER + 5], torch.float32)
    part = scene_of(given, rng, 597, 600, 7)
    assert torch.equal(part.run()[N_OTHER : N_OTHER + 3], whole.run()[N_OTHER + 2 : N_OTHER + 5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [0, 1, 70, 700])
def test_keep(path: str, dtype: torch.dtype, n: int) -> None:
    """Rows that lie apart, into slots in random order; others stay as they are."""
    rng = np.random.default_rng(n)
    tree = Tree.of([Segment(np.zeros(max(n, 1) + 3, np.int32))])
    unit = Unit(tree, slots=rng.permutation(50 * PAGE)[:n].astype(np.int32))
    stream = pack(Units.of([unit])).on(torch.device("cpu"))
    k, v = normal(rng, len(stream.tokens), 4, 24).to(dtype).split([2, 2], 1)
    pages = KeyValue(*(normal(rng, 50, PAGE, 2, 24).to(dtype) for _ in "kv"))
    expected = KeyValue(pages.keys.clone(), pages.values.clone())
    cpu.keep(pages, k, v, stream)
    reference.keep(expected, k, v, stream)
    assert torch.equal(pages.keys, expected.keys)
    assert torch.equal(pages.values, expected.values)


def test_a_slot_that_is_not_there_is_noticed(compiled: None) -> None:
    stream = pack(Units.of([Unit(chain(4), slots=np.array([1, 2, 700, 3], np.int32))])).on(torch.device("cpu"))
    pages = KeyValue(torch.zeros(2, PAGE, 1, 16), torch.zeros(2, PAGE, 1, 16))
    with pytest.raises(AssertionError):
        cpu.keep(pages, torch.ones(4, 1, 16), torch.ones(4, 1, 16), stream)
    assert int(pages.keys.any(-1).sum()) == 3


@pytest.mark.parametrize("page", [7, 16])
@pytest.mark.parametrize("size", [2, 4, 32])
def test_chunks_that_begin_and_end_in_mid_block(path: str, size: int, page: int) -> None:
    """Behind nothing, and behind contexts of every length that a block and a half have; against the rule itself."""
    rng = np.random.default_rng(size)
    starts = range(0, 3 * size // 2 + 1, max(1, size // 5))
    cases = [(n, rows) for n in starts for rows in sorted({1, size - 1, size, size + 1, 2 * size + 1})]
    given = Chunks.random(rng, size, cases, page)
    wanted, stream = given.expected(0.3), given.round.on(torch.device("cpu"))
    for module in (cpu, reference):
        for queries in (stream.every, stream.read):
            rows = queries.rows.long()
            found = module.attention(given.q[rows], given.k, given.v, stream, queries, given.pages, scale=0.3)
            assert_close(found, wanted[rows], torch.float32)
