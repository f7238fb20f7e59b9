"""The gated delta rule on the CPU: the compiled kernel, and a chunked plain torch path where it does not fit."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch

from ramet.cache.state import Recurrent
from ramet.ops.gated_delta.reference import CHUNK, Walk, gated_norm, log_decay, unit
from ramet.ops.native import Library, library
from ramet.round import Stream

_BATCH = 64  # pieces that the plain path takes at once: what it holds for them stays within some 100 MB


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
    """As `reference.gated_delta`. Rows of q, k, v, a, b and gate may lie apart (views of a merged projection).

    bfloat16 and float32 with head sizes that are multiples of 16, and up to 16 value heads a key head, go through the
    compiled kernel, the rest through `plain`. In the compiled one a piece's bits depend on its rows and the state that
    it begins from alone, and a piece cut at a multiple of CHUNK has the bits of the uncut one.
    """
    found = library()
    fits = q.dtype in (torch.bfloat16, torch.float32) and q.dtype == k.dtype == v.dtype == gate.dtype
    if found is None or not fits or not takes(k.shape[1], v.shape[1], k.shape[2], v.shape[2]):
        return plain(q, k, v, a, b, rate, dt_bias, stream, states, gate=gate, weight=weight, eps=eps)
    return compiled(found, q, k, v, a, b, rate, dt_bias, stream, states, gate=gate, weight=weight, eps=eps)


def takes(n_key_heads: int, n_value_heads: int, key_dim: int, value_dim: int) -> bool:
    """Whether the compiled kernel knows heads of these numbers and sizes."""
    return key_dim % 16 == 0 and value_dim % 16 == 0 and n_value_heads <= 16 * n_key_heads


class _Call(ctypes.Structure):
    """`Call` of native/delta.cpp."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (
            "q", "k", "v", "gate", "out", "a", "b", "rate", "dt_bias", "weight", "states", "starts", "lengths",
            "parents", "from_", "to",
        )),
        *((name, ctypes.c_int64) for name in (
            "q_stride", "k_stride", "v_stride", "gate_stride", "a_stride", "b_stride", "slot_stride",
        )),
        *((name, ctypes.c_int32) for name in (
            "n_pieces", "n_key_heads", "n_heads", "key_dim", "value_dim", "chunk", "is_bf16", "n_threads",
        )),
        ("eps", ctypes.c_float),
    ]  # fmt: skip


def compiled(
    found: Library,
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
    """As `gated_delta`, by the kernel in `found`."""
    q, k, v, gate = (x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous() for x in (q, k, v, gate))
    a, b = (x.float() if x.stride(1) == 1 else x.float().contiguous() for x in (a, b))
    rate, dt_bias, weight = (x.float().contiguous() for x in (rate, dt_bias, weight))
    out = torch.empty(v.shape, dtype=v.dtype)
    call = _Call(
        q=q.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), gate=gate.data_ptr(), out=out.data_ptr(), a=a.data_ptr(),
        b=b.data_ptr(), rate=rate.data_ptr(), dt_bias=dt_bias.data_ptr(), weight=weight.data_ptr(), eps=eps,
        starts=stream.piece_starts.data_ptr(), lengths=stream.piece_lengths.data_ptr(),
        parents=stream.piece_parents.data_ptr(), from_=stream.piece_from.data_ptr(), to=stream.piece_to.data_ptr(),
        q_stride=q.stride(0), k_stride=k.stride(0), v_stride=v.stride(0), gate_stride=gate.stride(0),
        a_stride=a.stride(0), b_stride=b.stride(0),
        n_pieces=len(stream.piece_starts), n_key_heads=k.shape[1], n_heads=v.shape[1], key_dim=k.shape[2],
        value_dim=v.shape[2], chunk=CHUNK, is_bf16=q.dtype == torch.bfloat16, n_threads=torch.get_num_threads(),
    )  # fmt: skip
    if states is None:
        assert not bool((stream.piece_from >= 0).any() | (stream.piece_to >= 0).any())
    else:
        assert states.state.dtype == torch.float32
        assert states.state[0].is_contiguous()
        assert int(torch.stack((stream.piece_from, stream.piece_to)).max()) < len(states.state)
        call.states, call.slot_stride = states.state.data_ptr(), states.state.stride(0)
    found.functions.ramet_gated_delta(ctypes.byref(call))
    return out


def plain(
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
    """As `gated_delta`, in torch: chunks of pieces of one depth are one batch."""
    wide, group = torch.promote_types(q.dtype, torch.float32), v.shape[1] // k.shape[1]
    q, k = (unit(x.to(wide)).repeat_interleave(group, 1) for x in (q, k))
    q, values = q * q.shape[2] ** -0.5, v.to(wide)
    gates = torch.stack((log_decay(a.to(wide), rate, dt_bias), b.to(wide).sigmoid()), -1)
    out = torch.empty(v.shape, dtype=v.dtype)
    walk = Walk(stream, states, (v.shape[1], k.shape[2], v.shape[2]), wide)
    for level in walk.levels:
        for pieces in (level[i : i + _BATCH] for i in range(0, len(level), _BATCH)):
            state = walk.begin(pieces)
            for begin in range(0, walk.lengths[pieces[0]], CHUNK):
                rows, own = _rows(walk, [p for p in pieces if walk.lengths[p] > begin], begin)
                chunk = _Chunk(*(x[rows].transpose(1, 2) * own[:, None, :, None] for x in (q, k, values, gates)))
                found, state[: len(rows)] = chunk.step(state[: len(rows)])
                out[rows[own]] = found.transpose(1, 2)[own].to(v.dtype)
            walk.end(pieces, state)
    return gated_norm(out, gate, weight, eps)


def _rows(walk: Walk, pieces: list[int], begin: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of these pieces' next chunks, filled up to the longest, and which are their own: [n, C] both."""
    n_rows = torch.tensor([walk.lengths[p] - begin for p in pieces]).clamp(max=CHUNK)
    own = torch.arange(int(n_rows[0]))[None] < n_rows[:, None]
    first = torch.tensor([walk.starts[p] + begin for p in pieces])
    return torch.where(own, first[:, None] + torch.arange(own.shape[1]), first[:, None]), own


@dataclass(frozen=True, slots=True, eq=False)
class _Chunk:
    """q, k [n, H, C, Dk] of unit length, v [n, H, C, Dv], gates [n, H, C, 2] (log decay, beta). Rows of zeros change
    nothing."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    gates: torch.Tensor

    def step(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """From the state [n, H, Dk, Dv] before: the rows returned, and the state behind. native/delta.cpp has the
        formula."""
        total = self.gates[..., 0].double().cumsum(-1)  # float32 would lose the small decays behind a large one
        weight = (total[..., :, None] - total[..., None, :]).tril().exp().to(state.dtype)
        decay, rest = (x.exp().to(state.dtype)[..., None] for x in (total, total[..., -1:] - total))
        beta = self.gates[..., 1:]
        lower = (beta * weight * (self.k @ self.k.mT)).tril(-1)
        right = beta * (self.v - decay * (self.k @ state))
        u = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
        out = decay * (self.q @ state) + (weight * (self.q @ self.k.mT)).tril() @ u
        return out, decay[..., -1:, :] * state + (rest * self.k).mT @ u
