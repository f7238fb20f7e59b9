"""Attention on CUDA: one persistent launch for each width of tile, and one that joins what was parted.

The lists of what there is to do come with the round (lists.py). A row's sums depend on its own path: they walk its
blocks of keys in order, and a block of which a row sees nothing changes none of its bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ramet.cache.kv import KeyValue
from ramet.ops.attention.lists import ITEM, JOIN, KEYS, NARROW, RUN, SEGMENT, SPAN, WIDE, QueryTiling, name, room
from ramet.ops.processors import processors
from ramet.ops.shape import takes_all
from ramet.round import Queries, Stream
from ramet.tree import MAX_ANCESTORS

__all__ = ["attention", "keep", "room", "takes", "variants"]

_LOG2_E = 1.4426950408889634
_ITEM = tl.constexpr(len(ITEM))
_JOIN = tl.constexpr(len(JOIN))
_RUN = tl.constexpr(len(RUN))
_SEGMENT = tl.constexpr(len(SEGMENT))
_CHAIN = tl.constexpr(MAX_ANCESTORS + 1)
_JOINED = 4  # rows a program joins at a time
_JOINING = 8  # programs of a processor that join
_KEPT = 8  # rows a program stores


takes = takes_all


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    stream: Stream,
    queries: Queries,
    pages: KeyValue | None,
    *,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """As `reference.attention`, for bfloat16 and float32 and head sizes that are multiples of 16, up to 512.

    `scale` is above 0. Rows and heads of q, k and v may lie apart. Takes its lists from `stream.work` (see plan.plan).
    Rows that are in no segment stay undefined.
    """
    n, n_heads, head_dim = q.shape
    n_kv_heads = k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not n:
        return out
    assert scale > 0
    assert q.stride(2) == k.stride(2) == v.stride(2) == 1
    tiling = QueryTiling.of(n_heads, n_kv_heads, head_dim, processors(q.device))
    prefix = name(n_heads, n_kv_heads, head_dim, window=window, read=queries is stream.read, invariant=False)
    invariant = f"{prefix}/invariant/runs" in stream.work
    lists = f"{prefix}/invariant" if invariant else prefix
    runs, segments, joins = (stream.work[f"{lists}/{each}"] for each in ("runs", "segments", "joins"))
    n_slots = min(tiling.max_slots, n * n_heads * tiling.max_pieces)
    sums = torch.empty(n_slots, head_dim, dtype=torch.float32, device=q.device)
    tops = torch.empty(n_slots, 2, dtype=torch.float32, device=q.device)
    paged = pages is not None
    page_keys, page_values = (pages.keys, pages.values) if pages is not None else (k, v)
    for width, programs in zip(tiling.widths[::-1], tiling.programs[::-1], strict=True):
        items = stream.work.get(f"{lists}/items{width}")
        if items is None:
            continue
        tile = choose_tile(q.dtype, head_dim, tiling.group, width, _capability(q.device), invariant)
        n_parts = tile.parts(tiling, width)
        n_programs = min(programs, (len(items) // len(ITEM) - 1) * n_kv_heads * n_parts)
        n_whole = 2 * n_programs * tile.rows if invariant else 0
        whole = torch.empty(n_whole, head_dim, dtype=torch.float32, device=q.device)
        _attend[(n_programs,)](
            q, k, v, out, page_keys, page_values, queries.rows, stream.positions, stream.context_pages, items,
            len(items) // len(ITEM) - 1, runs, segments, sums, tops, whole, q.stride(0), q.stride(1), k.stride(0),
            k.stride(1), v.stride(0), v.stride(1), page_keys.stride(-3), page_keys.stride(-2), scale * _LOG2_E, window,
            **_constants(tiling, head_dim, tile, n_parts, page_keys.shape[1] if paged else 0, window, invariant),
            num_warps=tile.n_warps, num_stages=tile.n_stages,
        )  # fmt: skip
    n_chunks = -(-max(tiling.widths) // _JOINED)  # of one entry and key head
    _join[(min(_JOINING * tiling.processors, tiling.max_pieces // 2 * n_kv_heads * n_chunks),)](
        out, joins, sums, tops, n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim,
        block_d=triton.next_power_of_2(head_dim), n_chunks=n_chunks, block_r=_JOINED, num_warps=4,
    )  # fmt: skip
    return out


def keep(pages: KeyValue, k: torch.Tensor, v: torch.Tensor, stream: Stream) -> None:
    """Store the rows stream.kept_rows of k and v [T, Hk, D] in the slots stream.kept_slots of pages.

    A slot is page * page_size + offset; one below 0 is passed over. Rows and heads may lie apart.
    """
    n, n_kv_heads, head_dim = len(stream.kept_rows), k.shape[1], k.shape[2]
    assert pages.keys.is_contiguous()
    assert pages.values.is_contiguous()
    if n:
        _keep[(triton.cdiv(n, _KEPT), n_kv_heads)](
            pages.keys, pages.values, k, v, stream.kept_rows, stream.kept_slots, n,
            k.stride(0), k.stride(1), v.stride(0), v.stride(1), n_kv_heads=n_kv_heads, head_dim=head_dim,
            block_d=triton.next_power_of_2(head_dim), block_r=_KEPT, num_warps=4,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AttentionTile:
    """What one program works on at a time: `rows` rows against `keys` keys, and how it is compiled."""

    rows: int
    keys: int
    n_warps: int
    n_stages: int

    def parts(self, tiling: QueryTiling, width: int) -> int:
        """How many of them a list's tile of `width` rows takes."""
        return -(-(width // tiling.group) // (self.rows // tiling.group))


def choose_tile(
    dtype: torch.dtype, head_dim: int, group: int, width: int, capability: tuple[int, int] | None, invariant: bool
) -> AttentionTile:  # fmt: skip
    """For lists whose tiles have `width` rows. Keys and values of the stages and the queries fit the shared memory of
    the card: 227 KB from 9.0 to 11.x, 163 KB on 8.0, 99 KB on others. Without a capability, where kernels are
    interpreted, nothing binds. With `invariant` every width takes the same number of keys at a time: how sums round
    depends on it, and in which width of tile a row comes depends on the load."""
    padded = triton.next_power_of_2(head_dim)
    if capability is None:
        return AttentionTile(width, KEYS, 4, 1)
    if dtype == torch.float32:
        return AttentionTile(max(32, triton.next_power_of_2(group)), 16, 8, 1)
    is_large, is_middle = (9, 0) <= capability < (12, 0), capability in ((8, 0), (8, 7))
    if padded > 256:
        return AttentionTile(width, 32 if is_large else 16, 8, 2)
    if padded > 128:
        rows = width if is_large or is_middle or group > NARROW else NARROW
        if is_large and (rows > NARROW or invariant):
            return AttentionTile(rows, 64, 8, 2)
        return AttentionTile(rows, 32, rows // 16, 2)
    return AttentionTile(width, 64, width // 16, 3 if is_large else 2)


def _capability(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def _constants(
    tiling: QueryTiling, head_dim: int, tile: AttentionTile, n_parts: int, page_size: int, window: int, invariant: bool
) -> dict[str, Any]:
    return {
        "n_kv_heads": tiling.n_kv_heads, "group": tiling.group, "head_dim": head_dim,
        "block_d": triton.next_power_of_2(head_dim), "block_m": tile.rows, "block_n": tile.keys, "keys": KEYS,
        "n_parts": n_parts, "page_size": page_size, "windowed": window > 0, "span": SPAN if invariant else 0,
        "n_stages": tile.n_stages,
    }  # fmt: skip


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """What differs in kind, for compilation without a card: (kernel, signature, constants, options)."""
    bf16 = torch.bfloat16
    yield _variant(bf16, (8, 2, 256), NARROW, 16, 0, True, (8, 0))
    yield _variant(bf16, (8, 2, 256), WIDE, 16, 0, False, (9, 0))
    yield _variant(bf16, (8, 1, 512), NARROW, 0, 512, False, (9, 0))
    yield _variant(torch.float32, (9, 3, 64), NARROW, 16, 0, False, (9, 0))
    heads = {"n_kv_heads": 2, "head_dim": 256, "block_d": 256}
    joining = {**heads, "n_heads": 8, "n_chunks": WIDE // _JOINED, "block_r": _JOINED}
    yield *_typed(_join, "bf16", joining), {"num_warps": 4}
    yield *_typed(_keep, "bf16", {**heads, "block_r": _KEPT}), {"num_warps": 4}


def _variant(
    dtype: torch.dtype, heads: tuple[int, int, int], width: int, page_size: int, window: int, invariant: bool,
    card: tuple[int, int],
) -> tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]:  # fmt: skip
    n_heads, n_kv_heads, head_dim = heads
    tiling = QueryTiling.of(n_heads, n_kv_heads, head_dim, 1)
    tile = choose_tile(dtype, head_dim, tiling.group, width, card, invariant)
    constants = _constants(tiling, head_dim, tile, tile.parts(tiling, width), page_size, window, invariant)
    typed = _typed(_attend, "bf16" if dtype == torch.bfloat16 else "fp32", constants)
    return *typed, {"num_warps": tile.n_warps, "num_stages": tile.n_stages}


_FLOATS = ("q", "k", "v", "out", "page_keys", "page_values")
_SUMS = ("sums", "tops", "whole")


def _typed(kernel: Any, dtype: str, constants: dict[str, Any]) -> tuple[Any, dict[str, str], dict[str, Any]]:
    types = dict.fromkeys(constants, "constexpr") | dict.fromkeys(_FLOATS, f"*{dtype}") | dict.fromkeys(_SUMS, "*fp32")
    types |= {"scale": "fp32", "window": "i32", "n": "i32", "n_most": "i32"}
    numbers = {name: "i32" for name in kernel.arg_names if name.endswith(("_row", "_head"))}
    return kernel, {name: (types | numbers).get(name, "*i32") for name in kernel.arg_names}, constants


@triton.jit(do_not_specialize=["n_most"])
def _attend(
    q: tl.tensor, k: tl.tensor, v: tl.tensor, out: tl.tensor, page_keys: tl.tensor, page_values: tl.tensor,
    rows: tl.tensor, positions: tl.tensor, context_pages: tl.tensor, items: tl.tensor, n_most: tl.tensor,
    runs: tl.tensor, segments: tl.tensor, sums: tl.tensor, tops: tl.tensor, whole: tl.tensor, q_row: tl.tensor,
    q_head: tl.tensor, k_row: tl.tensor, k_head: tl.tensor, v_row: tl.tensor, v_head: tl.tensor, page_row: tl.tensor,
    page_head: tl.tensor, scale: tl.tensor, window: tl.tensor, n_kv_heads: tl.constexpr, group: tl.constexpr,
    head_dim: tl.constexpr, block_d: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, keys: tl.constexpr,
    n_parts: tl.constexpr, page_size: tl.constexpr, windowed: tl.constexpr, span: tl.constexpr,
    n_stages: tl.constexpr,
) -> None:  # fmt: skip
    """Every program takes units, an item's rows for one key head, there and back so that long and short ones mix.

    The list has room for n_most items: the first is read while their number is still on its way."""
    pid, n_programs = tl.program_id(0), tl.num_programs(0)
    n_units = tl.load(items) * (n_kv_heads * n_parts)
    d, m = tl.arange(0, block_d), tl.arange(0, block_m)
    in_head = d < head_dim
    part_queries: tl.constexpr = block_m // group
    unit = pid
    begin, all_queries, of, left, run, key, step, slot, n_above = _item(items, unit // (n_kv_heads * n_parts), n_most)
    for turn in range(tl.cdiv(n_units, n_programs)):
        head = unit % n_kv_heads
        skipped = unit // n_kv_heads % n_parts * part_queries
        n_queries = tl.minimum(all_queries - skipped, part_queries)
        left = tl.where((unit < n_units) & (n_queries > 0), left, 0)
        if left > 0:
            first, segment = begin + skipped, segments + of * _SEGMENT
            block, anchor, context_end = tl.load(segment), tl.load(segment + 1), tl.load(segment + 2)
            chain = segment + 3
            query = first + tl.minimum(m // group, n_queries - 1)
            heads = head * group + m % group
            q_at = q + query.to(tl.int64) * q_row + heads * q_head
            asked = tl.load(q_at[:, None] + d[None, :], mask=in_head[None, :], other=0.0)
            at = tl.load(positions + tl.load(rows + query))
            begins = at // block * block
            high = begins + (block - 1)
            high = tl.where(m // group < n_above - skipped, tl.minimum(high, anchor - 1), high)
            low = tl.maximum(begins, anchor) - window + 1
            lowest_high = tl.load(positions + tl.load(rows + first)) // block * block + (block - 1)
            lowest_high = tl.where(n_above > skipped, tl.minimum(lowest_high, anchor - 1), lowest_high)
            last_at = tl.load(positions + tl.load(rows + first + n_queries - 1))
            highest_low = tl.maximum(last_at // block * block, anchor) - window + 1
            real = m < n_queries * group
            target = out + (query.to(tl.int64) * (n_kv_heads * group) + heads) * head_dim
            place = slot + (head * all_queries + skipped) * group + m
            if span:
                so_far = whole + (2 * pid * block_m + m) * head_dim
                so_far_top = tl.full([block_m], float("-inf"), tl.float32)
                so_far_total = tl.zeros([block_m], tl.float32)
                is_first = True
                while left > 0:
                    n_blocks = _blocks_in_span(runs, run, key, step, left, context_end, chain, keys, span)
                    top, total, acc, run, key, step = _walk(
                        asked, k, v, page_keys, page_values, context_pages, runs, run, key, step, n_blocks,
                        context_end, chain, high, low, lowest_high, highest_low, head, k_row, k_head, v_row, v_head,
                        page_row, page_head, scale, head_dim, block_d, block_m, block_n, keys, page_size, windowed,
                        span, n_stages,
                    )  # fmt: skip
                    left -= n_blocks
                    if is_first & (left == 0):
                        _finish(acc, top, total, target, sums, tops, slot, place, real, in_head, d, head_dim)
                    else:
                        latest = so_far + tl.where(is_first, 0, block_m * head_dim)
                        tl.store(latest[:, None] + d[None, :], acc, mask=in_head[None, :])
                        tl.debug_barrier()
                        if is_first:
                            so_far_top, so_far_total = top, total
                        else:
                            so_far_top, so_far_total = _gather(
                                so_far, so_far_top, so_far_total, top, total, head_dim, block_m, block_d
                            )
                        if left == 0:
                            _copy(
                                so_far, so_far_top, so_far_total, target, sums, tops, slot, place, real,
                                head_dim, block_d,
                            )  # fmt: skip
                        is_first = False
            else:
                top, total, acc, run, key, step = _walk(
                    asked, k, v, page_keys, page_values, context_pages, runs, run, key, step, left,
                    context_end, chain, high, low, lowest_high, highest_low, head, k_row, k_head, v_row, v_head,
                    page_row, page_head, scale, head_dim, block_d, block_m, block_n, keys, page_size, windowed,
                    span, n_stages,
                )  # fmt: skip
                _finish(acc, top, total, target, sums, tops, slot, place, real, in_head, d, head_dim)
        unit = (turn + 1) * n_programs + tl.where(turn % 2 == 0, n_programs - 1 - pid, pid)
        item = unit // (n_kv_heads * n_parts)
        begin, all_queries, of, left, run, key, step, slot, n_above = _item(items, item, n_most)


@triton.jit
def _item(items: tl.tensor, i: tl.tensor, n_most: tl.tensor) -> tuple[tl.tensor, ...]:
    """The fields of ITEM; of the last that the list has room for, where i lies behind it."""
    item = items + (1 + tl.minimum(i, n_most - 1)) * _ITEM
    return (
        tl.load(item), tl.load(item + 1), tl.load(item + 2), tl.load(item + 3), tl.load(item + 4), tl.load(item + 5),
        tl.load(item + 6), tl.load(item + 7), tl.load(item + 8),
    )  # fmt: skip


@triton.jit
def _finish(
    acc: tl.tensor, top: tl.tensor, total: tl.tensor, target: tl.tensor, sums: tl.tensor, tops: tl.tensor,
    slot: tl.tensor, place: tl.tensor, real: tl.tensor, in_head: tl.tensor, d: tl.tensor, head_dim: tl.constexpr,
) -> None:  # fmt: skip
    """Store the sums of a whole tile, or of a piece."""
    stored = real[:, None] & in_head[None, :]
    if slot < 0:
        tl.store(target[:, None] + d[None, :], (acc / total[:, None]).to(target.dtype.element_ty), mask=stored)
    else:
        tl.store(sums + place.to(tl.int64)[:, None] * head_dim + d[None, :], acc, mask=stored)
        tl.store(tops + place * 2, top, mask=real)
        tl.store(tops + place * 2 + 1, total, mask=real)


@triton.jit
def _gather(
    so_far: tl.tensor, top: tl.tensor, total: tl.tensor, next_top: tl.tensor, next_total: tl.tensor,
    head_dim: tl.constexpr, block_m: tl.constexpr, block_d: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Fold the sums that lie behind those so far into them, some columns at a time."""
    width: tl.constexpr = block_d if block_d < 32 else 32
    both, kept, added = _factors(top, next_top)
    for at in tl.range(0, head_dim, width):
        d = at + tl.arange(0, width)
        here, mask = so_far[:, None] + d[None, :], (d < head_dim)[None, :]
        latest = tl.load(here + block_m * head_dim, mask=mask, other=0.0)
        tl.store(here, _fold(tl.load(here, mask=mask, other=0.0), kept[:, None], latest, added[:, None]), mask=mask)
    tl.debug_barrier()
    return both, _fold(total, kept, next_total, added)


@triton.jit
def _copy(
    so_far: tl.tensor, top: tl.tensor, total: tl.tensor, target: tl.tensor, sums: tl.tensor, tops: tl.tensor,
    slot: tl.tensor, place: tl.tensor, real: tl.tensor, head_dim: tl.constexpr, block_d: tl.constexpr,
) -> None:  # fmt: skip
    """As `_finish`, from memory."""
    width: tl.constexpr = block_d if block_d < 32 else 32
    for at in tl.range(0, head_dim, width):
        d = at + tl.arange(0, width)
        mask = (d < head_dim)[None, :]
        acc = tl.load(so_far[:, None] + d[None, :], mask=mask, other=0.0)
        _finish(acc, top, total, target, sums, tops, slot, place, real, d < head_dim, d, head_dim)
    tl.debug_barrier()


@triton.jit
def _walk(
    asked: tl.tensor, k: tl.tensor, v: tl.tensor, page_keys: tl.tensor, page_values: tl.tensor,
    context_pages: tl.tensor, runs: tl.tensor, run: tl.tensor, key: tl.tensor, step: tl.tensor, n_blocks: tl.tensor,
    context_end: tl.tensor, chain: tl.tensor, high: tl.tensor, low: tl.tensor,
    lowest_high: tl.tensor, highest_low: tl.tensor, head: tl.tensor, k_row: tl.tensor, k_head: tl.tensor,
    v_row: tl.tensor, v_head: tl.tensor, page_row: tl.tensor, page_head: tl.tensor, scale: tl.tensor,
    head_dim: tl.constexpr, block_d: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr, keys: tl.constexpr,
    page_size: tl.constexpr, windowed: tl.constexpr, span: tl.constexpr,
    n_stages: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """Sums over n_blocks blocks from `key` of `run` on: the largest score, the sum of weights and that of weighted
    values of each row; and where the next block begins. With `span` a run may lie in pages and in the stream.

    What a turn loads keys and values by is there when it begins, in registers: a load in between would keep them from
    being under way while the products of the turn before are. So runs of the stream are taken two at a time, and the
    numbers of pages are read a turn ahead."""
    top = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    acc = tl.zeros([block_m, block_d], tl.float32)
    d, n = tl.arange(0, block_d), tl.arange(0, block_n)
    in_head = (d < head_dim)[None, :]
    # Without spans a context is one run: blocks of its keys begin where pages do.
    aligned: tl.constexpr = (page_size > 0) & (span == 0) & (block_n % (page_size + (page_size == 0)) == 0)
    k_own, v_own = k + head * k_head, v + head * v_head
    k_offsets, v_offsets = n[:, None] * k_row + d[None, :], n[:, None] * v_row + d[None, :]
    k_paged, v_paged = page_keys + head * page_head, page_values + head * page_head
    while n_blocks > 0:
        position, n_keys, in_pages, pages, base = _run(runs, run)
        after, after_step = _next(run, step, context_end, chain)
        next_position, next_keys, next_in_pages, _, next_base = _run(runs, after)
        rest, next_rest = (n_keys + (keys - 1) - key) // keys, (next_keys + (keys - 1)) // keys
        here = tl.minimum(rest, n_blocks)
        n_own = here
        if page_size:
            n_paged = tl.minimum(tl.maximum((in_pages + (keys - 1) - key) // keys, 0), here)
            n_own -= n_paged
            numbers = context_pages + pages
            within = n
            if aligned:  # all but one scalar of a turn is the same for every turn
                numbers, within = numbers + n // page_size, n % page_size
                page = tl.load(numbers + key // page_size, mask=key + n < in_pages, other=0)
            else:
                page = tl.load(numbers + (position + key + n) // page_size, mask=key + n < in_pages, other=0)
            at = key
            n_turns = n_paged * (keys // block_n)
            for _ in tl.range(n_turns, num_stages=n_stages):
                own = at + n
                if not aligned:
                    within = (position + own) % page_size
                slot = page.to(tl.int64) * (page_size * page_row) + within * page_row
                k_at, v_at = k_paged + slot, v_paged + slot
                if span:
                    row = (base + own).to(tl.int64)
                    k_at = tl.where(own < in_pages, k_at, k_own + row * k_row)
                    v_at = tl.where(own < in_pages, v_at, v_own + row * v_row)
                wanted = (own < n_keys)[:, None] & in_head
                k_tile = tl.load(k_at[:, None] + d[None, :], mask=wanted, other=0.0)
                scores = tl.dot(asked, tl.trans(k_tile), input_precision="ieee")
                scores = _hide(scores, position, at, n_keys, n, high, low, lowest_high, highest_low, block_n, windowed)
                top, total, acc, weights = _weigh(scores, scale, top, total, acc, block_m, block_n, span > 0)
                v_tile = tl.load(v_at[:, None] + d[None, :], mask=wanted, other=0.0)
                acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
                at += block_n
                if aligned:
                    page = tl.load(numbers + at // page_size, mask=at + n < in_pages, other=0)
                else:
                    page = tl.load(numbers + (position + at + n) // page_size, mask=at + n < in_pages, other=0)
        is_rest = (here == rest) & (next_in_pages == 0)
        n_next = tl.where(is_rest, tl.minimum(next_rest, n_blocks - here), 0)
        at = key + (here - n_own) * keys
        end = tl.cdiv(n_keys, keys) * keys
        n_turns = (n_own + n_next) * (keys // block_n)
        for _ in tl.range(n_turns, num_stages=2 if n_stages > 2 else n_stages):  # of three, none would be under way
            done = at >= end
            at, position = tl.where(done, 0, at), tl.where(done, next_position, position)
            base, n_keys = tl.where(done, next_base, base), tl.where(done, next_keys, n_keys)
            end = tl.where(done, next_rest * keys, end)
            row = (base + at).to(tl.int64)
            wanted = (n < n_keys - at)[:, None] & in_head
            k_tile = tl.load(k_own + row * k_row + k_offsets, mask=wanted, other=0.0)
            scores = tl.dot(asked, tl.trans(k_tile), input_precision="ieee")
            scores = _hide(scores, position, at, n_keys, n, high, low, lowest_high, highest_low, block_n, windowed)
            top, total, acc, weights = _weigh(scores, scale, top, total, acc, block_m, block_n, span > 0)
            v_tile = tl.load(v_own + row * v_row + v_offsets, mask=wanted, other=0.0)
            acc = tl.dot(weights.to(v_tile.dtype), v_tile, acc, input_precision="ieee")
            at += block_n
        n_blocks -= here + n_next
        last, last_step = _next(after, after_step, context_end, chain)
        is_whole, is_next_whole = here == rest, n_next == next_rest
        key = tl.where(is_whole, tl.where(is_next_whole, 0, n_next * keys), key + here * keys)
        run = tl.where(is_whole, tl.where(is_next_whole, last, after), run)
        step = tl.where(is_whole, tl.where(is_next_whole, last_step, after_step), step)
    return top, total, acc, run, key, step


@triton.jit
def _run(runs: tl.tensor, run: tl.tensor) -> tuple[tl.tensor, ...]:
    """What RUN says, with the row at which its first key would lie, were all of them in the stream."""
    at = runs + run * _RUN
    in_pages = tl.load(at + 2)
    return tl.load(at), tl.load(at + 1), in_pages, tl.load(at + 3), tl.load(at + 4) - in_pages


@triton.jit
def _next(
    run: tl.tensor, step: tl.tensor, context_end: tl.tensor, chain: tl.tensor,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """The run behind one, and how many of the chain have begun then."""
    to_chain = run + 1 >= context_end
    below = tl.load(chain + step, mask=to_chain & (step < _CHAIN), other=0)
    return tl.where(to_chain, below, run + 1), tl.where(to_chain, step + 1, step)


@triton.jit
def _hide(
    scores: tl.tensor, position: tl.tensor, key: tl.tensor, n_keys: tl.tensor, n: tl.tensor, high: tl.tensor,
    low: tl.tensor, lowest_high: tl.tensor, highest_low: tl.tensor, block_n: tl.constexpr, windowed: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Minus infinity where a row does not see a key: most blocks are seen by every row."""
    begin = position + key
    hidden = (key + block_n > n_keys) | (begin + block_n - 1 > lowest_high)
    if windowed:
        hidden = hidden | (begin < highest_low)
    if hidden:
        last = tl.minimum(high - begin, n_keys - key - 1)
        seen = n[None, :] <= last[:, None]
        if windowed:
            seen = seen & (n[None, :] >= (low - begin)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
    return scores


@triton.jit
def _weigh(
    scores: tl.tensor, scale: tl.tensor, top: tl.tensor, total: tl.tensor, acc: tl.tensor, block_m: tl.constexpr,
    block_n: tl.constexpr, invariant: tl.constexpr,
) -> tuple[tl.tensor, ...]:  # fmt: skip
    """The weights of a block, and the sums so far below the new largest score."""
    new_top = tl.maximum(top, tl.max(scores, 1) * scale)
    base = tl.where(new_top == float("-inf"), 0.0, new_top)  # nothing seen yet: no difference of infinities
    weights = tl.exp2(scores * scale - base[:, None])
    faded = tl.exp2(top - base)
    added = weights
    if invariant:  # half by half, as where two groups of warps share a block
        added = tl.sum(tl.reshape(weights, (block_m, 2, block_n // 2)), 2)
    return new_top, total * faded + tl.sum(added, 1), acc * faded[:, None], weights


@triton.jit
def _blocks_in_span(
    runs: tl.tensor, run: tl.tensor, key: tl.tensor, step: tl.tensor, left: tl.tensor, context_end: tl.tensor,
    chain: tl.tensor, keys: tl.constexpr, span: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """How many of the next `left` blocks begin in the span in which the first of them does."""
    end = ((tl.load(runs + run * _RUN) + key) // span + 1) * span
    found = 0
    reaches_on = True
    while reaches_on:
        position, n_keys = tl.load(runs + run * _RUN), tl.load(runs + run * _RUN + 1)
        n_blocks = (n_keys + (keys - 1)) // keys
        until = tl.minimum(tl.maximum(end - position + (keys - 1), 0) // keys, n_blocks)
        found += tl.maximum(until - key // keys, 0)
        reaches_on = (until == n_blocks) & (found < left)
        key = 0
        after, after_step = _next(run, step, context_end, chain)
        run, step = tl.where(reaches_on, after, run), tl.where(reaches_on, after_step, step)
    return tl.minimum(found, left)


@triton.jit
def _factors(top: tl.tensor, next_top: tl.tensor) -> tuple[tl.tensor, ...]:
    """The larger of both, and what sums below each are multiplied by."""
    both = tl.maximum(top, next_top)
    base = tl.where(both == float("-inf"), 0.0, both)
    return both, tl.exp2(top - base), tl.exp2(next_top - base)


@triton.jit
def _fold(sums: tl.tensor, kept: tl.tensor, next_sums: tl.tensor, added: tl.tensor) -> tl.tensor:
    """By fma, so that it rounds alike wherever it is compiled."""
    product = next_sums * added
    return tl.fma(sums, tl.broadcast_to(kept, sums.shape), product)


@triton.jit
def _join(
    out: tl.tensor, joins: tl.tensor, sums: tl.tensor, tops: tl.tensor, n_heads: tl.constexpr,
    n_kv_heads: tl.constexpr, head_dim: tl.constexpr, block_d: tl.constexpr, n_chunks: tl.constexpr,
    block_r: tl.constexpr,
) -> None:  # fmt: skip
    """Fold the pieces of each parted tile, in their order."""
    group: tl.constexpr = n_heads // n_kv_heads
    d, r = tl.arange(0, block_d), tl.arange(0, block_r)
    in_head = d < head_dim
    n_joins = tl.load(joins)
    for unit in range(tl.program_id(0), n_joins * (n_kv_heads * n_chunks), tl.num_programs(0)):
        entry = joins + (1 + unit // n_kv_heads % n_joins) * _JOIN
        head, skipped = unit % n_kv_heads, unit // (n_kv_heads * n_joins) * block_r
        row = skipped + r
        first, n_queries = tl.load(entry), tl.load(entry + 1)
        slot, n_pieces = tl.load(entry + 2), tl.load(entry + 3)
        real = row < n_queries * group
        stored = real[:, None] & in_head[None, :]
        if skipped < n_queries * group:
            place = slot + head * n_queries * group + row
            top = tl.load(tops + place * 2, mask=real, other=0.0)
            total = tl.load(tops + place * 2 + 1, mask=real, other=1.0)
            acc = tl.load(sums + place.to(tl.int64)[:, None] * head_dim + d[None, :], mask=stored, other=0.0)
            for _ in tl.range(1, n_pieces, loop_unroll_factor=4):
                place += n_queries * n_heads
                latest = tl.load(sums + place.to(tl.int64)[:, None] * head_dim + d[None, :], mask=stored, other=0.0)
                top, kept, added = _factors(top, tl.load(tops + place * 2, mask=real, other=0.0))
                total = _fold(total, kept, tl.load(tops + place * 2 + 1, mask=real, other=1.0), added)
                acc = _fold(acc, kept[:, None], latest, added[:, None])
            target = out + ((first + row // group).to(tl.int64) * n_heads + head * group + row % group) * head_dim
            tl.store(target[:, None] + d[None, :], (acc / total[:, None]).to(out.dtype.element_ty), mask=stored)


@triton.jit
def _keep(
    page_keys: tl.tensor, page_values: tl.tensor, k: tl.tensor, v: tl.tensor, rows: tl.tensor, slots: tl.tensor,
    n: tl.tensor, k_row: tl.tensor, k_head: tl.tensor, v_row: tl.tensor, v_head: tl.tensor, n_kv_heads: tl.constexpr,
    head_dim: tl.constexpr, block_d: tl.constexpr, block_r: tl.constexpr,
) -> None:  # fmt: skip
    i, d, head = tl.program_id(0) * block_r + tl.arange(0, block_r), tl.arange(0, block_d), tl.program_id(1)
    slot = tl.load(slots + i, mask=i < n, other=-1).to(tl.int64)
    row = tl.load(rows + i, mask=i < n, other=0).to(tl.int64)
    stored = (slot >= 0)[:, None] & (d < head_dim)[None, :]
    target = (slot * n_kv_heads + head)[:, None] * head_dim + d[None, :]
    for_keys = tl.load(k + (row * k_row + head * k_head)[:, None] + d[None, :], mask=stored)
    for_values = tl.load(v + (row * v_row + head * v_head)[:, None] + d[None, :], mask=stored)
    tl.store(page_keys + target, for_keys, mask=stored)
    tl.store(page_values + target, for_values, mask=stored)
