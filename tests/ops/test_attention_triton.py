"""Attention on CUDA, interpreted where there is none, against its reference in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from fixtures.attention_rounds import Chain, Chunks, assert_close, chain, held
from fixtures.random_states import normal
from fixtures.random_trees import random_tree
from fixtures.triton_device import DEVICE
from oracles import attention_lists

from ramet.cache.kv import KeyValue
from ramet.ops.attention import lists as planning
from ramet.ops.attention import reference
from ramet.ops.attention import triton as attention
from ramet.round import Capacity, Queries, Round, Stream, pack
from ramet.tree import MAX_ANCESTORS, WHOLE, IntArray, Read, Segment, Tree
from ramet.units import Unit, Units

PAGE = 16
NO_SLOTS = np.zeros(0, np.int32)
WORDS = {"every": False, "read": True}
MODES = [False, True]
pytestmark = pytest.mark.filterwarnings("ignore:All-NaN slice")  # the interpreter, of rows that are all NaN


@dataclass(frozen=True)
class Scene:
    """A round with its tensors on the CPU. What no row may see is NaN: unused pages, and what lies behind a context's
    end. `padding` rows, `reads` and list entries are added to what the device sees."""

    round: Round
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    pages: KeyValue
    processors: int = 4
    padding: int = 0

    @property
    def stream(self) -> Stream:
        return self.round.on(torch.device("cpu"))

    def queries(self, kind: str) -> Queries:
        return getattr(self.stream, kind)

    def run(self, kind: str = "every", *, window: int = 0, invariant: bool = False) -> torch.Tensor:
        """[N, Hq, D], through the kernels, of the true rows."""
        stream = self._on_device(kind, window, invariant)
        queries, rows = getattr(stream, kind), self.queries(kind).rows.long()
        q = padded(self.q[rows], self.padding)
        q, k, v = (x.to(DEVICE) for x in (q, padded(self.k, self.padding), padded(self.v, self.padding)))
        pages = KeyValue(self.pages.keys.to(DEVICE), self.pages.values.to(DEVICE))
        with patch.object(attention, "processors", lambda device: self.processors):
            found = attention.attention(q, k, v, stream, queries, pages, scale=0.3, window=window)
        return found[: len(rows)].cpu()

    def _on_device(self, kind: str, window: int, invariant: bool) -> Stream:
        work = self.plan(kind, window, invariant)
        if self.padding:
            room = self.room(kind, window, invariant)
            assert work.keys() <= room.keys()
            work = {name: filled(work.get(name, NO_SLOTS), n) for name, n in room.items()}
        stream = self.round.with_work(work).on(DEVICE)
        if not self.padding:
            return stream
        grown = Queries(padded(getattr(stream, kind).rows, self.padding, 0), getattr(stream, kind).bounds)
        return replace(stream, positions=padded(stream.positions, self.padding, 0), **{kind: grown})

    def plan(self, kind: str, window: int, invariant: bool) -> dict[str, IntArray]:
        return attention_lists.plan(self.round, **self._shape(kind, window, invariant))

    def items(self, kind: str, invariant: bool) -> IntArray:
        """Rows of ITEM, of all widths."""
        lists = [value for name, value in self.plan(kind, 0, invariant).items() if "/items" in name]
        return np.concatenate([items.reshape(-1, len(planning.ITEM))[1:] for items in lists])

    def room(self, kind: str, window: int, invariant: bool) -> dict[str, int]:
        capacity = Capacity(self.round.n_tokens + self.padding, len(self.round["read_rows"]) + self.padding, 0)
        n_forks = len(self.round["context_forks"])
        return planning.room(capacity, n_forks=n_forks, **self._shape(kind, window, invariant))

    def _shape(self, kind: str, window: int, invariant: bool) -> dict[str, int | bool]:
        return {
            "n_heads": self.q.shape[1], "n_kv_heads": self.k.shape[1], "head_dim": self.q.shape[2], "window": window,
            "read": WORDS[kind], "invariant": invariant, "processors": self.processors,
        }  # fmt: skip

    def expected(self, kind: str = "every", *, window: int = 0) -> torch.Tensor:
        queries = self.queries(kind)
        q, k, v = self.q[queries.rows.long()].double(), self.k.double(), self.v.double()
        pages = KeyValue(self.pages.keys.double(), self.pages.values.double())
        return reference.attention(q, k, v, self.stream, queries, pages, scale=0.3, window=window)


def padded(x: torch.Tensor, n: int, value: float = torch.nan) -> torch.Tensor:
    return torch.cat((x, x.new_full((n, *x.shape[1:]), value)))


def filled(x: IntArray, n: int) -> IntArray:
    assert len(x) <= n
    return np.concatenate((x, np.zeros(n - len(x), np.int32)))


def scene(
    rng: np.random.Generator,
    trees: list[Tree],
    contexts: list[int],
    *,
    dtype: torch.dtype = torch.float32,
    heads: tuple[int, int] = (3, 1),
    head_dim: int = 16,
    forks: bool = False,
    **more: int,
) -> Scene:
    """`contexts`: how many rows each tree's roots continue, in pages in random order."""
    owned, pages = held(rng, contexts, PAGE, heads[1], head_dim, dtype)
    units = []
    for tree, n, own in zip(trees, contexts, owned, strict=True):
        begun = np.unique(np.append(0, rng.integers(0, n, 4))) if forks and n else np.zeros(1)
        continues = n > 0 and int((tree.parents < 0).sum()) == 1 and bool(rng.integers(2))
        units.append(Unit(tree, own, n, NO_SLOTS, begun.astype(np.int32), continues))
    packed = pack(Units.of(units))
    merged = normal(rng, packed.n_tokens, heads[0] + 2 * heads[1], head_dim).to(dtype)
    q, k, v = merged.split([heads[0], heads[1], heads[1]], 1)
    return Scene(packed, q, k, v, pages, **more)


def check(given: Scene, windows: tuple[int, ...] = (0,), invariant: bool = False) -> None:
    for window, kind in itertools.product(windows, WORDS):
        found = given.run(kind, window=window, invariant=invariant)
        assert_close(found, given.expected(kind, window=window), given.q.dtype)


@pytest.mark.parametrize("invariant", MODES)
@pytest.mark.parametrize("processors", [1, 4, 32])
def test_two_blocks_of_a_reply_share_tiles(processors: int, invariant: bool) -> None:
    rng = np.random.default_rng(processors)
    lengths = [(3, 5), (12, 20), (1, 31), (17, 3), (30, 30), (20, 1)]
    trees = [
        Tree.of([Segment(np.zeros(n, np.int32), i - 1, WHOLE, [Read([1], n // 2)]) for i, n in enumerate(pair)])
        for pair in lengths
    ]
    given = scene(rng, trees, [64, 130, 0, 7, 300, 2100], heads=(8, 2), processors=processors, padding=5)
    check(given, invariant=invariant)
    shared = [item[8] for item in given.items("every", invariant) if item[8]]
    assert {3, 12} <= set(shared)


@pytest.mark.parametrize("invariant", MODES)
@pytest.mark.parametrize("seed", range(5))
def test_random_trees_in_one_round(seed: int, invariant: bool) -> None:
    rng = np.random.default_rng(seed)
    trees = [random_tree(rng, vocab_size=9, max_segments=4, blocks=(1, 4, 32, WHOLE)) for _ in range(2)]
    heads = [(1, 1), (3, 1), (8, 2), (4, 4), (9, 3)][seed]
    given = scene(
        rng, trees, [0, int(rng.integers(1, 150))], dtype=[torch.float32, torch.bfloat16][seed % 2], heads=heads,
        head_dim=[16, 64][seed % 2], forks=True, padding=seed % 3 * 5,
    )  # fmt: skip
    check(given, ([0, 1, 24][seed % 3],), invariant)


@pytest.mark.parametrize("n", [1, 65])
@pytest.mark.parametrize("block", [1, 32, WHOLE])
def test_odd_sizes(n: int, block: int) -> None:
    given = scene(np.random.default_rng(n), [chain(n, 7, n, block=block)], [n], heads=(1, 1))
    window = 40 if block == 32 else 0
    assert_close(given.run(window=window), given.expected(window=window), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 48, 80, 128, 256, 512])
def test_head_sizes(head_dim: int, dtype: torch.dtype) -> None:
    given = scene(np.random.default_rng(3), [chain(20, 9)], [33], dtype=dtype, heads=(4, 2), head_dim=head_dim)
    assert_close(given.run(), given.expected(), dtype)


@pytest.mark.parametrize("heads", [(9, 3), (24, 4), (71, 1)])
def test_heads_that_share_keys(heads: tuple[int, int]) -> None:
    given = scene(np.random.default_rng(4), [chain(3, 5)], [50], heads=heads)
    assert_close(given.run(), given.expected(), torch.float32)


@pytest.mark.parametrize("invariant", MODES)
def test_four_ancestors_below_a_context(invariant: bool) -> None:
    given = scene(np.random.default_rng(5), [chain(5, 64, 1, 17, 66)], [81], heads=(1, 1), forks=True)
    assert_close(given.run(invariant=invariant), given.expected(), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wide_tiles_beside_narrow_ones(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_lists, "_WIDE_LOAD", 1)
    monkeypatch.setattr(planning, "MIN_BLOCKS", 8)
    given = scene(np.random.default_rng(1), [chain(150, 40)], [30], dtype=dtype, heads=(2, 1), processors=1, padding=3)
    lists = given.plan("every", 0, False)
    assert [int(lists[name][0]) for name in lists if "items" in name] == [3, 3]
    assert_close(given.run(), given.expected(), dtype)


@pytest.fixture
def short_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles are worth parting, and paths are parted, at lengths that tests can afford."""
    monkeypatch.setattr(planning, "MIN_BLOCKS", 2)
    for module in (planning, attention):
        monkeypatch.setattr(module, "SPAN", 192)


@pytest.mark.parametrize("window", [0, 600])
@pytest.mark.parametrize("invariant", MODES)
def test_few_rows_over_many_keys(short_spans: None, invariant: bool, window: int) -> None:
    """Some tiles in pieces, others not, and with a window that hides parts of them."""
    given = scene(
        np.random.default_rng(6), [chain(30, 3), chain(5)], [700, 0], dtype=torch.bfloat16, forks=True, processors=24,
        padding=7,
    )  # fmt: skip
    joins = next(value for name, value in given.plan("read", window, invariant).items() if name.endswith("joins"))
    assert int(joins[0]) >= 3
    check(given, (window,), invariant)


def test_paths_of_many_spans_in_one_program(short_spans: None) -> None:
    """More rows than pieces of the machine: what is joined is joined by the programs themselves."""
    given = scene(np.random.default_rng(7), [chain(300, 3)], [200], heads=(2, 2), forks=True, processors=1)
    joins = next(v for name, v in given.plan("every", 0, True).items() if name.endswith("joins"))
    assert int(joins[0]) == 0
    assert_close(given.run(invariant=True), given.expected(), torch.float32)
    assert_close(given.run(window=90, invariant=True), given.expected(window=90), torch.float32)


def test_a_tile_in_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in float32 on a card, where a program takes fewer rows and keys than the lists say."""
    small = attention.AttentionTile(16, 16, 4, 1)
    monkeypatch.setattr(attention, "choose_tile", lambda *_: small)
    monkeypatch.setattr(planning, "MIN_BLOCKS", 2)
    given = scene(np.random.default_rng(8), [chain(9, 12)], [150], heads=(3, 1), processors=16)
    check(given)


def test_large_scores() -> None:
    """Scores up to some thousands, exact in float32: the weights of most keys vanish, wherever the largest lies."""
    given = scene(np.random.default_rng(7), [chain(90, 20)], [100], heads=(2, 2))
    given.q[:] = given.q.mul(8).round() / 8
    given.k[:] = given.k.mul(8).round()
    given.pages.keys[:] = given.pages.keys.mul(8).round()
    given.k[:50] *= 128
    given.k[70:] *= -128
    assert_close(given.run(), given.expected(), torch.float32)


def test_nan_reaches_those_who_see_it_and_nobody_else() -> None:
    given = scene(np.random.default_rng(11), [chain(40, 30), chain(50, 8)], [0, 33], heads=(1, 1))
    n = int(given.stream.starts[4])
    given.v[20] = torch.nan
    bad = given.run().isnan().flatten(1)
    assert bool(bad[40:n].all())
    assert not bool(bad[n:].any())
    given.v[20], given.k[20] = 0.0, torch.nan
    bad = given.run().isnan().flatten(1)
    assert bool(bad[20:n].all())
    assert not bool(bad[n:].any())
    assert not bool(bad[:20].any())


def test_a_round_without_reads() -> None:
    given = scene(np.random.default_rng(9), [Tree.of([Segment(np.zeros(9, np.int32))])], [0], padding=2)
    assert len(given.run("read")) == 0
    assert_close(given.run(), given.expected(), torch.float32)


OTHER, HEADS = chain(7, 3), (3, 1)
N_OTHER = OTHER.n_tokens


def scene_of(given: Chain, rng: np.random.Generator, begin: int, end: int, page: int, **more: int) -> Scene:
    """Rows [begin, end) behind another unit, those before them in pages."""
    return Scene(*given.round(rng, begin, end, page, OTHER), **more)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(3))
def test_bits_do_not_depend_on_how_a_path_was_cut(short_spans: None, seed: int, dtype: torch.dtype) -> None:
    """In one piece, in chunks through pages, resumed at forks and between them, on small machines and on large."""
    rng = np.random.default_rng(100 + seed)
    lengths = [int(rng.choice([1, 5, 40, 64, 65, 130])) for _ in range(int(rng.integers(2, MAX_ANCESTORS + 2)))]
    given = Chain.random(rng, lengths, [int(rng.choice([1, 1, 4, 32, WHOLE])) for _ in lengths], dtype, HEADS)
    n, window = sum(lengths), [0, 100, 0][seed]
    whole = scene_of(given, rng, 0, n, 1, processors=1).run(window=window, invariant=True)[N_OTHER : N_OTHER + n]
    assert bool(whole.isfinite().all())
    for begin, end in itertools.pairwise([0, *given.cuts(rng, 2), n]):
        one = scene_of(given, rng, begin, end, int(rng.choice([1, 7, 16, 64])), processors=[1, 64][begin % 2])
        every = one.run(window=window, invariant=True)
        assert torch.equal(every[N_OTHER : N_OTHER + end - begin], whole[begin:end])
        rows = one.queries("read").rows.long()
        mine = (rows >= N_OTHER) & (rows < N_OTHER + end - begin)
        read = one.run("read", window=window, invariant=True)
        assert int(mine.sum()) > 0
        assert torch.equal(read[mine], whole[begin:end][rows[mine] - N_OTHER])


@pytest.mark.parametrize("processors", [1, 64])
def test_bits_of_long_paths_depend_on_neither_cuts_nor_load(short_spans: None, processors: int) -> None:
    """A path of several spans, walked by one program or in pieces; also where tiles are wide."""
    rng = np.random.default_rng(12)
    given = Chain.random(rng, [230, 30, 310, 5], [1, 1, 4, 1], torch.bfloat16, HEADS)
    whole = scene_of(given, rng, 0, 575, 16, processors=1).run(invariant=True)[N_OTHER : N_OTHER + 575]
    for begin, end in ((229, 268), (560, 575)):
        found = scene_of(given, rng, begin, end, 16, processors=processors).run(invariant=True)
        assert torch.equal(found[N_OTHER : N_OTHER + end - begin], whole[begin:end])


@pytest.mark.skipif(DEVICE.type == "cpu", reason="true sizes need a GPU")
@pytest.mark.parametrize(("heads", "head_dim"), [((8, 2), 256), ((8, 1), 256), ((16, 2), 128), ((8, 1), 512)])
def test_bits_at_true_sizes(heads: tuple[int, int], head_dim: int) -> None:
    """Rows of a long round, in wide tiles where there are any, and the same in short rounds over pages."""
    rng = np.random.default_rng(15)
    given = Chain.random(rng, [4000, 60], [1, 1], torch.bfloat16, heads, head_dim)
    whole = scene_of(given, rng, 0, 4060, 16, processors=132).run(invariant=True)[N_OTHER : N_OTHER + 4060]
    for begin, end in ((3500, 4060), (4000, 4060), (3990, 4010)):
        found = scene_of(given, rng, begin, end, 16, processors=132).run(invariant=True)
        assert torch.equal(found[N_OTHER : N_OTHER + end - begin], whole[begin:end])


def test_keeps_rows_in_pages() -> None:
    rng = np.random.default_rng(14)
    merged = normal(rng, 30, 6, 48).to(DEVICE)
    k, v = merged.split([3, 3], 1)
    pages = KeyValue(*torch.full((2, 4, PAGE, 3, 48), torch.nan, device=DEVICE))
    rows, slots = (torch.tensor(x, dtype=torch.int32) for x in ([3, 4, 29, 0, 0], [17, 63, 0, -1, -1]))
    stream = pack(Units.of([Unit(Tree.of([Segment(np.zeros(30, np.int32))]))])).on(DEVICE)
    attention.keep(pages, k, v, replace(stream, kept_rows=rows.to(DEVICE), kept_slots=slots.to(DEVICE)))
    for kept, source in ((pages.keys, k), (pages.values, v)):
        flat = kept.view(-1, 3, 48)
        assert torch.equal(flat[[17, 63, 0]], source[[3, 4, 29]])
        assert int(flat.isfinite().all(-1).all(-1).sum()) == 3


@pytest.mark.parametrize("invariant", MODES)
@pytest.mark.parametrize("size", [4, 32])
def test_chunks_that_begin_and_end_in_mid_block(size: int, invariant: bool) -> None:
    """Behind nothing, and behind contexts that end anywhere in a block; against the rule itself."""
    rng = np.random.default_rng(size)
    cases = [(n, rows) for n in (0, 1, size - 1, size, size + 1) for rows in (1, size, size + 1)]
    given = Chunks.random(rng, size, cases, PAGE)
    wanted = given.expected(0.3)
    of = Scene(given.round, given.q, given.k, given.v, given.pages)
    for kind in WORDS:
        rows = of.queries(kind).rows.long()
        assert_close(of.run(kind, invariant=invariant), wanted[rows], torch.float32)
