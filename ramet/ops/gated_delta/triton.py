"""The gated delta rule in Triton, in three launches: what needs no state, the states, and the rows returned.

With S the state before a chunk, k, q and v its rows as they are given, and each scale a number a row, the rule is
x = v - scale * k S, S' = decay * S + k^T (solved x) and out = scale * q S + mixed x. `prepare` makes the scales and
`mixed`, and for chunks that something follows w = solved (scale * k) and u = solved v, so that S' = decay * S +
k^T (u - w S): with A_ij = beta_i decay_ij k_i k_j below the diagonal, solved = (I + A)^-1 beta, scaled as S' wants it,
and mixed = (decay_ij q_i k_j) (I + A)^-1 beta. `walk` goes through the chunks of a piece, two products each, one after
the other, and keeps the S before each; transposed, so that S stays where products accumulate, and each product's
result is the next one's left side. `finish` makes the rows of all chunks at once, normed and gated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ramet.cache.state import Recurrent
from ramet.ops.gated_delta.lists import BLOCK, CARRIES, ITEM, N_BLOCKS, TILE, room
from ramet.ops.gated_delta.reference import CHUNK, EPSILON
from ramet.ops.norm.triton import times_logistic
from ramet.ops.processors import processors
from ramet.ops.shape import takes_all
from ramet.round import Stream

__all__ = ["gated_delta", "room", "takes", "variants"]

_C, _B, _N = tl.constexpr(CHUNK), tl.constexpr(BLOCK), tl.constexpr(N_BLOCKS)
_TILE, _ITEM, _CARRIES = tl.constexpr(TILE), tl.constexpr(ITEM), tl.constexpr(CARRIES)
_EPSILON = tl.constexpr(EPSILON)
_COARSE, _FINE = tl.constexpr(2.0**10), tl.constexpr(2.0**28)  # the two parts of a log decay are multiples of 1 / these
_LEAST = tl.constexpr(-192.0)  # a binary log decay that leaves nothing of a float32
_LOG2_E = tl.constexpr(1.4426950408889634)


takes = takes_all


class Config(NamedTuple):
    """What the launches depend on besides shapes: value columns of a program of `walk`, the stages of its loads, how
    much of a key `finish` holds at once, warps and programs a processor of the three kernels, and whether `prepare` may
    solve in float16."""

    walk_columns: int
    walk_stages: int
    walk_warps: int
    walk_programs: int
    prepare_warps: int
    prepare_programs: int
    finish_keys: int
    finish_warps: int
    finish_programs: int
    half: bool

    @classmethod
    def of(cls, dtype: torch.dtype, key_dim: int, value_dim: int, shared_memory: int) -> Config:
        """For a card that gives a program so many bytes of shared memory."""
        keys, columns = _padded(key_dim), _padded(value_dim)
        if dtype == torch.bfloat16:
            walk_stages = 3 if shared_memory > 107_000 else 2
            return cls(min(columns, 64), walk_stages, 4, 2, 4, 2, min(keys, 64), 8, 2, True)
        return cls(min(columns, 32), 1, 16, 1, 16, 1, min(keys, 32), 16, 1, False)


def _padded(n: int) -> int:
    """The columns of a tile that holds n."""
    return max(16, int(triton.next_power_of_2(n)))


def _options(n_warps: int, n_programs: int) -> dict[str, int]:
    """Registers are named, as many as so many programs leave a thread: ptxas may take to spilling all but 32."""
    return {"num_warps": n_warps, "maxnreg": min(255, 2048 // (n_warps * n_programs) // 8 * 8)}


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    rate: torch.Tensor,
    dt_bias: torch.Tensor,
    stream: Stream,
    states: Recurrent | None,
    *,
    gate: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
) -> torch.Tensor:
    """As `reference.gated_delta`, for bfloat16 and float32. Rows of q, k, v, a, b and gate may lie apart.

    A row's bits depend on its piece's rows and the state that the piece begins from alone, and a piece cut at a
    multiple of CHUNK has the bits of the uncut one.
    """
    out = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    if not len(v):
        return out
    q, k, v, gate = (x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous() for x in (q, k, v, gate))
    a, b = (x if x.stride(1) == 1 else x.contiguous() for x in (a, b))
    config = Config.of(v.dtype, k.shape[2], v.shape[2], _shared_memory(v.device))
    tiles, items = stream.work["delta/tiles"], stream.work["delta/walk"]
    scratch = Scratch.of(config, k, v, stream)
    slots = states.state if states is not None else scratch.forks
    Hk, Dk, Hv, Dv, n = k.shape[1], k.shape[2], v.shape[1], v.shape[2], processors(v.device)
    heads = {"HV": Hv, "GROUP": Hv // Hk, "DK": Dk, "BK": _padded(Dk), "DV": Dv}
    n_tiles, n_blocks = (len(tiles) - 1) // TILE * Hv, scratch.flags.shape[1]
    _prepare[(min(config.prepare_programs * n, n_tiles),)](
        q, k, v, a, b, rate, dt_bias, scratch.mixed, scratch.known, scratch.added, scratch.scales, scratch.flags, tiles,
        items, len(v), q.stride(0), k.stride(0), v.stride(0), a.stride(0), b.stride(0), **heads, NB=n_blocks,
        BV=_padded(Dv), HALF=config.half,
        **_options(config.prepare_warps, config.prepare_programs),
    )  # fmt: skip
    _walk[(max(1, min(config.walk_programs * n, (len(items) - 2) // ITEM * Hv * n_blocks)),)](
        k, scratch.known, scratch.added, scratch.scales, scratch.states, scratch.left, slots, scratch.forks,
        scratch.flags, items, len(v), k.stride(0), slots.stride(0), **heads, NB=n_blocks, BV=config.walk_columns,
        STAGES=config.walk_stages, num_stages=config.walk_stages, **_options(config.walk_warps, config.walk_programs),
    )  # fmt: skip
    _finish[(min(config.finish_programs * n, n_tiles),)](
        q, k, v, gate, scratch.mixed, scratch.scales, scratch.states, scratch.left, slots, weight, out, tiles, len(v),
        eps, q.stride(0), k.stride(0), v.stride(0), gate.stride(0), slots.stride(0), **heads, BV=_padded(Dv),
        KEYS=config.finish_keys,
        **_options(config.finish_warps, config.finish_programs),
    )  # fmt: skip
    return out


class Scratch(NamedTuple):
    """mixed [Hv, T, CHUNK], known [Hv, T, Dk], w in `prepare`'s words: row i of a chunk's at its row of the stream.
    added [chunks, Hv, Dv, CHUNK], its u transposed; states [chunks, Hv, Dv, Dk], those before the walked chunks,
    transposed; left [F, Hv, Dv, Dk], likewise those in forks. scales float32 [Hv, T, 4]: of k, of q, the chunk's decay.
    forks float32 [F, Hv, Dk, Dv]: states that pieces leave to others alone. flags [Hv * flags + 1, blocks of columns]:
    first the next ticket, then which states are complete."""

    mixed: torch.Tensor
    known: torch.Tensor
    added: torch.Tensor
    states: torch.Tensor
    left: torch.Tensor
    scales: torch.Tensor
    forks: torch.Tensor
    flags: torch.Tensor

    @classmethod
    def of(cls, config: Config, k: torch.Tensor, v: torch.Tensor, stream: Stream) -> Scratch:
        (T, Hv, Dv), Dk, work = v.shape, k.shape[2], stream.work
        n_forks, n_items = len(work["delta/forks"]), (len(work["delta/walk"]) - 2) // ITEM
        n_chunks = len(work["delta/chunks"])

        def empty(*size: int, dtype: torch.dtype = v.dtype) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, device=v.device)

        return cls(
            empty(Hv, T, CHUNK), empty(Hv, T, Dk), empty(n_chunks, Hv, Dv, CHUNK), empty(n_chunks, Hv, Dv, Dk),
            empty(n_forks, Hv, Dv, Dk), empty(Hv, T, 4, dtype=torch.float32),
            empty(n_forks, Hv, Dk, Dv, dtype=torch.float32),
            empty(1 + n_items * Hv, triton.cdiv(Dv, config.walk_columns), dtype=torch.int32),
        )  # fmt: skip


def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have; 0 where kernels are only interpreted."""
    if device.type != "cuda":
        return 0
    return int(triton.runtime.driver.active.utils.get_device_properties(device.index or 0)["max_shared_mem"])


@triton.jit
def _left(word, chunk):
    """How many of each row's block are left, as far as the row's place in it (above 0: the row is there), [C]."""
    i = tl.arange(0, _C)
    block, counts = i // _B, word >> 3
    n = tl.where((word & 3) == 2, counts - chunk * _C - block * _B, (counts >> (5 * block)) & 31)
    return n - i % _B


@triton.jit(do_not_specialize=["a", "b", "a_stride", "b_stride", "n_rows"])
def _prepare(
    q, k, v, a, b, rate, dt_bias, mixed, known, added, scales, flags, tiles, walk, n_rows, q_stride, k_stride, v_stride,
    a_stride, b_stride,
    HV: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, DV: tl.constexpr, NB: tl.constexpr,
    BV: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """What needs no state, of all tiles and value heads; clears the flags.

    A row of a NaN makes its decay NaN, and thereby its own results and those of the rows of its piece behind it. In a
    product all rows of a tile meet, and 0 * NaN is NaN: such rows count for nothing on the right side of one.
    """
    for at in tl.range(tl.program_id(0), tl.load(tiles) * HV, tl.num_programs(0), disable_licm=True):
        tile, head = tiles + 1 + at // HV * _TILE, at % HV
        i, col, column = tl.arange(0, _C), tl.arange(0, BK), tl.arange(0, BV)
        word, chunk = tl.load(tile + 4), tl.load(tile + 5)
        carries = (word & _CARRIES) != 0
        own, rows = _left(word, 0) > 0, tl.load(tile + i // _B) + i % _B
        decay = tl.load(a + rows * a_stride + head, own, 0.0).to(tl.float32) + tl.load(dt_bias + head)
        beta = tl.load(b + rows * b_stride + head, own, 0.0).to(tl.float32)
        slope = tl.load(rate + head) * _LOG2_E
        keys = _tile(k + head // GROUP * DK, rows, k_stride, col, own, DK, BK)
        queries = _tile(q + head // GROUP * DK, rows, q_stride, col, own, DK, BK)
        if HALF:  # float32 has no room for it beside the queries
            values = _tile(v + head * DV, rows, v_stride, column, own & carries, DV, BV)
        decay = tl.where(own, slope * _softplus(decay), 0.0)
        beta = tl.where(own, tl.sigmoid(beta), 0.0)
        coarse, fine = _parts(decay)
        total, more = tl.reduce((coarse, fine), 0, _add2)

        weight = tl.dot(keys, tl.trans(keys), input_precision="ieee")
        reading = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        size = _diagonal(weight)
        key_scale = tl.rsqrt(size + _EPSILON)
        query_scale = _diagonal(tl.dot(queries, tl.trans(queries), input_precision="ieee"))
        query_scale = tl.rsqrt(query_scale + _EPSILON) * DK**-0.5
        coarse = tl.where(size + beta < float("inf"), coarse, float("nan"))
        part = i // (_B << (word & 3))
        same = (part[:, None] == part[None, :]) & (i[:, None] >= i[None, :])
        new = (i % (_B << (word & 3)) == 0).to(tl.int32)
        coarse, fine, new = tl.associative_scan((coarse, fine, new), 0, _add_since)
        good = coarse == coarse
        between = tl.where(same, coarse[:, None], weight) - coarse[None, :]  # `weight`: to lie in registers as it does
        between = tl.exp2(between + fine[:, None] - fine[None, :]) * key_scale[None, :]
        later = same & (i[:, None] > i[None, :]) & good[:, None]
        weight = tl.where(later, weight * between * (beta * key_scale)[:, None], 0.0)
        reading = _narrow(tl.where(same, reading * between * query_scale[:, None], 0.0), HALF)
        since, behind = tl.exp2(coarse + fine), tl.exp2((total - coarse) + (more - fine))
        place = scales + (head * n_rows + rows) * 4
        tl.store(place, since * key_scale, own)
        tl.store(place + 1, since * query_scale, own)
        tl.store(place + 2, since * behind, own)

        inverse = _inverse(weight, word, HALF) * tl.where(good, beta, 0.0)[None, :]
        mix = _product(reading, inverse, HALF)
        _store(mixed + head * n_rows * _C, rows, _C, i, own, mix.to(mixed.dtype.element_ty), _C, _C)
        if carries:
            inverse *= (behind * key_scale)[:, None]
            seen = (inverse * (since * key_scale)[None, :]).to(keys.dtype)
            seen = tl.dot(seen, keys, input_precision="ieee").to(known.dtype.element_ty)
            _store(known + head * n_rows * DK, rows, DK, col, own, seen, DK, BK)
            if not HALF:
                values = _tile(v + head * DV, rows, v_stride, column, own, DV, BV)
            solved = tl.dot(tl.trans(values), tl.trans(inverse.to(keys.dtype)), input_precision="ieee")
            block = added + (chunk.to(tl.int64) * HV + head) * DV * _C
            _store(block, column, _C, i, column < DV, solved.to(added.dtype.element_ty), _C, _C)
    n_flags = 1 + tl.load(walk + 1) * HV * NB
    for at in range(tl.program_id(0) * 256, n_flags, tl.num_programs(0) * 256):
        each = at + tl.arange(0, 256)
        tl.store(flags + each, 0, each < n_flags)


@triton.jit
def _diagonal(x):
    i = tl.arange(0, _C)
    return tl.sum(tl.where(i[:, None] == i[None, :], x, 0.0), 1)


@triton.jit
def _add2(a0, a1, b0, b1):
    return a0 + b0, a1 + b1


@triton.jit
def _add_since(a0, a1, a_new, b0, b1, b_new):
    """Sums that begin anew where `new` is set, with which nothing before it is taken along, not even a NaN."""
    return tl.where(b_new != 0, b0, a0 + b0), tl.where(b_new != 0, b1, a1 + b1), a_new | b_new


@triton.jit
def _softplus(x):
    """log(1 + e^x), exact for small e^x too."""
    e = tl.exp(tl.minimum(x, 20.0))
    one = 1.0 + e
    near = tl.where(one == 1.0, e, tl.log(one) * (e / tl.where(one == 1.0, 1.0, one - 1.0)))
    return tl.where(x <= 20.0, near, x)


@triton.jit
def _parts(decay):
    """A binary log decay as two numbers of which any sum of CHUNK is exact: differences of sums keep the small beside
    the large, and do not depend on what else is summed."""
    decay = tl.where(decay < _LEAST, _LEAST, decay)
    coarse = tl.floor(decay * _COARSE) * (1.0 / _COARSE)
    return coarse, tl.floor((decay - coarse) * _FINE + 0.5) * (1.0 / _FINE)


@triton.jit
def _inverse(weight, word, HALF: tl.constexpr):
    """(I + weight)^-1 of a strictly lower triangular matrix [C, C].

    Of the diagonal's blocks first, from pairs of rows on: with D the inverses of blocks and C what lies between two
    that are one of twice the size, its inverse is D - D C D, and no number on the way is larger than those of inverses
    (a geometric series would be). Then, with D the inverses of all blocks and L what is left of the matrix, it is
    D^-1 (I + D L), and D L to the power of the number of blocks is zero: of these few the series is a product.
    """
    weight = _narrow(weight, HALF)
    n = tl.arange(0, _N)
    diagonal = n[:, None, None, None] == n[None, None, :, None]
    own = tl.sum(tl.where(diagonal, tl.reshape(weight, (_N, _B, _N, _B)), 0.0).to(weight.dtype), 2)
    i = tl.arange(0, _B)
    row, column = i[None, :, None], i[None, None, :]
    solved = tl.where(row == column, 1.0, tl.where(row // 2 == column // 2, -own.to(tl.float32), 0.0))
    for size in tl.static_range(1, 4):
        joins = (row >> size != column >> size) & (row >> (size + 1) == column >> (size + 1))
        joined = _product(solved, tl.where(joins, own, 0.0), HALF)
        solved -= _product(joined, solved, HALF)
    block = tl.arange(0, _C) // _B
    diagonal = block[:, None] == block[None, :]
    solved = tl.reshape(tl.broadcast_to(solved[:, :, None, :], (_N, _B, _N, _B)), (_C, _C))
    inverse = tl.where(diagonal, solved, 0.0)
    span = (word & 3) if HALF else 2  # in float32 the compiler fails at a branch here, and needs none: L may be zero
    if span != 0:
        step = _product(inverse, tl.where(diagonal, 0.0, weight), HALF)
        inverse -= _product(step, inverse, HALF)
        inverse += _product(_product(step, step, HALF), inverse, HALF)
    return inverse


@triton.jit
def _product(x, y, HALF: tl.constexpr):
    """x @ y in float32. With HALF of float16, which is as exact as TF32: all numbers here are about 1 or below."""
    return tl.dot(_narrow(x, HALF), _narrow(y, HALF), input_precision="ieee")


@triton.jit
def _narrow(x, HALF: tl.constexpr):
    return x.to(tl.float16) if HALF else x


@triton.jit(do_not_specialize=["n_rows"])
def _walk(
    k, known, added, scales, states, left, slots, forks, flags, walk, n_rows, k_stride, slot_stride,
    HV: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, DV: tl.constexpr, NB: tl.constexpr,
    BV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The state before each walked chunk and behind each piece, for each value head and block of columns.

    Tickets are taken in the order of the items. A program waits for an item that comes earlier in it, which is done or
    in the hands of a program that runs: the first of all that are not done waits for nobody, so no program waits for
    ever, however many run at once.
    """
    n_tickets = tl.load(walk) * HV * NB
    ticket = tl.atomic_add(flags, 1, sem="relaxed")
    while ticket < n_tickets:
        item, head, lane = walk + 2 + ticket // (HV * NB) * _ITEM, ticket // NB % HV, ticket % (HV * NB)
        start, word, n_chunks = tl.load(item), tl.load(item + 1), tl.load(item + 2)
        begin, end = tl.load(item + 3), tl.load(item + 4)
        wait, flag, first = tl.load(item + 5), tl.load(item + 6), tl.load(item + 7).to(tl.int64)
        row, col = tl.arange(0, BK), ticket % NB * BV + tl.arange(0, BV)
        origin = _state(slots, forks, begin, slot_stride, HV * DK * DV) + head * DK * DV
        done = flags + 1 + lane
        _wait(done + wait * HV * NB, wait)
        state = tl.trans(_tile(origin, row, DV, col, (row < DK) & (begin != -1), DV, BV))
        carries = (word & _CARRIES) != 0
        n_steps = tl.where(carries, n_chunks, n_chunks - 1)
        before, blocks = states + (first * HV + head) * DV * DK, added + (first * HV + head) * DV * _C
        state = _chain(
            k + head // GROUP * DK, known + head * n_rows * DK, blocks, scales + head * n_rows * 4, before, start,
            word >> 3, n_steps, state, col, k_stride, HV, DK, BK, DV, STAGES,
        )  # fmt: skip
        if carries:
            if end != -1:
                target = _state(slots, forks, end, slot_stride, HV * DK * DV) + head * DK * DV
                _store(target, row, DV, col, row < DK, tl.trans(state), DV, BV)
            if end < -1:
                _keep(left + ((-2 - end).to(tl.int64) * HV + head) * DV * DK, col, row, state, DK, BK, DV)
            if flag >= 0:
                tl.debug_barrier()  # all threads have stored
                tl.atomic_xchg(done + flag * HV * NB, 1, sem="release")
        else:
            _keep(before + n_steps * (HV * DV * DK), col, row, state, DK, BK, DV)
        ticket = tl.atomic_add(flags, 1, sem="relaxed")


@triton.jit
def _chain(
    k, known, added, scales, before, start, length, n_steps, state, col, k_stride,
    HV: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, DV: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Through a piece, chunk by chunk; returns the state behind the last step, [BV, BK]."""
    i, row = tl.arange(0, _C), tl.arange(0, BK)
    for chunk in tl.range(0, n_steps, num_stages=STAGES, disable_licm=True):
        first = start + chunk * _C
        own = i < length - chunk * _C
        key = _tile(k + first * k_stride, i, k_stride, row, own, DK, BK)
        seen = _tile(known + first * DK, i, DK, row, own, DK, BK)
        new = _tile(added + chunk * (HV * DV * _C), col, _C, i, col < DV, _C, _C)
        decay = tl.load(scales + first * 4 + 2)
        now = state.to(key.dtype)
        _keep(before + chunk * (HV * DV * DK), col, row, now, DK, BK, DV)
        new = (new.to(tl.float32) - tl.dot(now, tl.trans(seen), input_precision="ieee")).to(key.dtype)
        state = tl.dot(new, key, state * decay, input_precision="ieee")
    return state


@triton.jit
def _keep(target, col, row, state, DK: tl.constexpr, BK: tl.constexpr, DV: tl.constexpr):
    _store(target, col, DK, row, col < DV, state.to(target.dtype.element_ty), DK, BK)


@triton.jit(do_not_specialize=["n_rows"])
def _finish(
    q, k, v, gate, mixed, scales, states, left, slots, weight, out, tiles, n_rows, eps, q_stride, k_stride, v_stride,
    gate_stride, slot_stride,
    HV: tl.constexpr, GROUP: tl.constexpr, DK: tl.constexpr, BK: tl.constexpr, DV: tl.constexpr, BV: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """The rows returned, for each tile and value head. Products with the state take so many KEYS at a time."""
    i, col = tl.arange(0, _C), tl.arange(0, BV)
    for at in tl.range(tl.program_id(0), tl.load(tiles) * HV, tl.num_programs(0), disable_licm=True):
        tile, head = tiles + 1 + at // HV * _TILE, at % HV
        word, chunk, begin = tl.load(tile + 4), tl.load(tile + 5), tl.load(tile + 6)
        own, rows = _left(word, 0) > 0, tl.load(tile + i // _B) + i % _B
        ours = (chunk >= 0) | (begin < -1)
        if chunk >= 0:
            kept = states + (chunk.to(tl.int64) * HV + head) * DV * DK
        else:
            kept = left + ((-2 - begin).to(tl.int64) * HV + head) * DV * DK
        origin = slots + begin.to(tl.int64) * slot_stride + head * DK * DV
        seen, read = tl.zeros((_C, BV), tl.float32), tl.zeros((_C, BV), tl.float32)
        for first in tl.static_range(0, BK, KEYS):
            row = first + tl.arange(0, KEYS)
            state = tl.trans(_tile(kept, col, DK, row, (col < DV) & ours, DK, BK))
            key = _tile(k + head // GROUP * DK, rows, k_stride, row, own, DK, BK)
            query = _tile(q + head // GROUP * DK, rows, q_stride, row, own, DK, BK)
            if first == 0:
                value = _tile(v + head * DV, rows, v_stride, col, own, DV, BV)
                mix = _tile(mixed + head * n_rows * _C, rows, _C, i, own, _C, _C)
                place = scales + (head * n_rows + rows) * 4
                key_scale, query_scale = tl.load(place, own, 0.0), tl.load(place + 1, own, 0.0)
            if ours:
                seen = tl.dot(key, state, seen, input_precision="ieee")
                read = tl.dot(query, state, read, input_precision="ieee")
            else:
                state = _tile(origin, row, DV, col, (row < DK) & (begin != -1), DV, BV).to(key.dtype)
                seen = tl.dot(key, state, seen, input_precision="ieee")
                read = tl.dot(query, state, read, input_precision="ieee")
        by = _tile(gate + head * DV, rows, gate_stride, col, own, DV, BV)
        x = (value.to(tl.float32) - seen * key_scale[:, None]).to(key.dtype)
        read *= query_scale[:, None]
        # As in `_prepare`, 0 * NaN is NaN: if there is one, each piece is taken by itself. That of a state is in all.
        n_parts = 1
        if (word & 3) < 2:
            size = tl.sum(tl.sum(tl.abs(value.to(tl.float32)), 1), 0) + tl.sum(key_scale, 0)
            n_parts = tl.where(size < float("inf"), 1, _N >> (word & 3))
        for n in tl.range(0, n_parts, disable_licm=True):
            mine = own & ((n_parts == 1) | (i // (_B << (word & 3)) == n))
            y = tl.dot(mix, tl.where(mine[:, None], x, 0.0), read, input_precision="ieee")
            y = _gated_norm(y.to(out.dtype.element_ty), by, weight, col, eps, DV)
            _store(out + head * DV, rows, HV * DV, col, mine, y, DV, BV)


@triton.jit
def _gated_norm(x, gate, weight, col, eps, DV: tl.constexpr):
    """As in reference.py; the columns behind DV are zeros."""
    wide, gate = x.to(tl.float32), gate.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 1) / DV + eps)[:, None]).to(x.dtype).to(tl.float32)
    return (tl.load(weight + col, col < DV, 0.0)[None, :] * normed * times_logistic(gate, gate)).to(x.dtype)


@triton.jit
def _state(slots, forks, code, slot_stride, size):
    """Where a state lies: see `begin` and `end` in lists.py."""
    if code >= 0:  # noqa: SIM108
        found = slots + code.to(tl.int64) * slot_stride
    else:
        found = forks + (-2 - code).to(tl.int64) * size
    return found


@triton.jit
def _wait(done, wait):
    if wait >= 0:
        while tl.atomic_add(done, 0, sem="acquire") == 0:
            pass


@triton.jit
def _tile(base, rows, stride, columns, own, N: tl.constexpr, B: tl.constexpr):
    """Rows of columns, zeros where rows are not `own` or columns not below N."""
    mask = own[:, None]
    if N % B != 0:
        mask = mask & (columns < N)[None, :]
    return tl.load(base + (rows[:, None] * stride + columns[None, :]), mask, 0.0)


@triton.jit
def _store(base, rows, stride, columns, own, value, N: tl.constexpr, B: tl.constexpr):
    mask = own[:, None]
    if N % B != 0:
        mask = mask & (columns < N)[None, :]
    tl.store(base + (rows[:, None] * stride + columns[None, :]), value, mask)


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """The kernels as Qwen3.5 uses them, for tests that compile."""
    for dtype, name, Hv, Hk in ((torch.bfloat16, "bf16", 32, 16), (torch.float32, "fp32", 16, 16)):
        config = Config.of(dtype, 128, 128, 228_000)
        shape = {"HV": Hv, "GROUP": Hv // Hk, "DK": 128, "BK": 128, "DV": 128}
        walk = shape | {"NB": 128 // config.walk_columns, "BV": config.walk_columns}
        own = walk | {"BV": 128, "HALF": config.half}
        yield _prepare, _signature(_prepare, own, name), own, _options(config.prepare_warps, config.prepare_programs)
        own = walk | {"STAGES": config.walk_stages}
        options = _options(config.walk_warps, config.walk_programs) | {"num_stages": config.walk_stages}
        yield _walk, _signature(_walk, own, name), own, options
        own = shape | {"BV": 128, "KEYS": config.finish_keys}
        yield _finish, _signature(_finish, own, name), own, _options(config.finish_warps, config.finish_programs)


def _signature(kernel: Any, constants: dict[str, Any], dtype: str) -> dict[str, str]:
    given, made = ("q", "k", "v", "gate", "a", "b"), ("mixed", "known", "added", "states", "left", "out")
    types = dict.fromkeys(given + made, f"*{dtype}")
    types |= dict.fromkeys(("rate", "dt_bias", "weight", "scales", "slots", "forks"), "*fp32") | {"eps": "fp32"}
    types |= dict.fromkeys(("flags", "tiles", "walk"), "*i32") | dict.fromkeys(constants, "constexpr")
    return {name: types.get(name, "i32") for name in kernel.arg_names}
