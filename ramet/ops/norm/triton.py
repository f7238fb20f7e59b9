"""Normalisation, rotary embedding and gating on CUDA: one launch each, sums in float32.

What one program does of a row is fixed by the row's width, so that its bits depend on no other row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from ramet.cache.kv import KeyValue
from ramet.ops.attention.triton import keep
from ramet.ops.processors import processors
from ramet.ops.shape import takes_all
from ramet.round import Stream

_Launch = tuple[dict[str, Any], dict[str, int]]  # constants and options of a launch


takes = takes_all


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """As `reference.rms_norm`. Rows and heads of x may lie apart."""
    x = _dense(x)
    out = torch.empty(x.shape, dtype=dtype or x.dtype, device=x.device)
    n_vectors, n_heads, width = _vectors(x)
    constants, options = _norm_launch(n_heads, width)
    if n_vectors:
        _rms_norm_kernel[(triton.cdiv(n_vectors, constants["block_r"]),)](
            x, *_strides(x), weight, out, n_vectors, eps, weighted=weight is not None, **constants, **options
        )
    return out


def expert_norms(
    x: torch.Tensor, dense: torch.Tensor, experts: torch.Tensor, router: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `reference.expert_norms`. Rows of x may lie apart."""
    x, (n_rows, width) = _dense(x), x.shape
    assert x.dtype == torch.float32
    out = torch.empty(3, n_rows, width, dtype=router.dtype, device=x.device)
    constants, options = _row_launch(width)
    if n_rows:
        _expert_norms_kernel[_row_grid(n_rows, constants["block_r"], 3, x.device)](
            x, x.stride(0), dense, experts, router, out, n_rows, width**-0.5, eps, **constants, **options
        )
    return out[0], out[1], out[2]


def join(
    x: torch.Tensor,
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]],
    post: torch.Tensor | None,
    scale: torch.Tensor | None,
    kinds: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """As `reference.join`. Rows of x and of parts may lie apart."""
    assert len(parts) == (1 if post is None else 2)
    x, (n_rows, width) = _dense(x), x.shape
    assert x.dtype == torch.float32
    out = torch.empty(n_rows, width, dtype=x.dtype, device=x.device)
    (first, first_norm), (second, second_norm) = parts[0], parts[-1]
    first, second = _dense(first), _dense(second)
    constants, options = _join_launch(width, post is not None, scale is not None, kinds is not None)
    if n_rows:
        _join_kernel[_row_grid(n_rows, constants["block_r"], 4 if post is None else 2, x.device)](
            x, x.stride(0), first, first.stride(0), first_norm, second, second.stride(0), second_norm, post, scale,
            kinds, out, n_rows, eps, **constants, **options,
        )  # fmt: skip
    return out


def rotation(positions: torch.Tensor, frequencies: torch.Tensor, scale: float) -> torch.Tensor:
    """As `reference.rotation`."""
    n, half = len(positions), len(frequencies)
    out = torch.empty(n, 2, half, dtype=torch.float32, device=positions.device)
    constants, options = _rotation_launch(half)
    if out.numel():
        _rotation_kernel[(triton.cdiv(n, constants["block_r"]),)](
            positions, frequencies, scale, out, n, **constants, **options
        )
    return out


def rotate(
    qkv: torch.Tensor,
    rotation: torch.Tensor,
    n_heads: int,
    n_kv_heads: int,
    q_norm: torch.Tensor | None,
    k_norm: torch.Tensor | None,
    eps: float,
    pages: KeyValue | None = None,
    stream: Stream | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `reference.rotate`. Rows of qkv may lie apart. q and k are views of a new tensor, v of qkv, which is
    unchanged."""
    qkv, n_turned = _dense(qkv), n_heads + n_kv_heads
    width = qkv.shape[1] // (n_turned + n_kv_heads)
    out = torch.empty(len(qkv), n_turned, width, dtype=qkv.dtype, device=qkv.device)
    kernel, constants, options = _rotate_launch(
        n_heads, n_kv_heads, width, 2 * rotation.shape[2], q_norm is not None, k_norm is not None
    )
    n_vectors = len(qkv) * n_turned
    here = pages is not None and stream is not None and kernel is _turn_kernel  # kept by the same launch
    if n_vectors and kernel is _turn_kernel:
        _turn(qkv, rotation, q_norm, k_norm, out, eps, pages, stream, constants, options)
    elif n_vectors:
        kernel[(triton.cdiv(n_vectors, constants["block_r"]),)](
            qkv, qkv.stride(0), rotation.contiguous(), q_norm, k_norm, out, n_vectors, eps, **constants, **options
        )
    q, k = out.split([n_heads, n_kv_heads], 1)
    v = qkv[:, n_turned * width :].unflatten(1, (n_kv_heads, width))
    if pages is not None and stream is not None and not here:
        keep(pages, k, v, stream)
    return q, k, v


def _turn(
    qkv: torch.Tensor, rotation: torch.Tensor, q_norm: torch.Tensor | None, k_norm: torch.Tensor | None,
    out: torch.Tensor, eps: float, pages: KeyValue | None, stream: Stream | None, constants: dict[str, Any],
    options: dict[str, int],
) -> None:  # fmt: skip
    """Turn heads of which all is rotated; what is kept is turned once more, straight into its pages."""
    n_vectors, block, kept = out.shape[0] * out.shape[1], constants["block_r"], None
    if pages is not None and stream is not None:
        assert pages.keys.is_contiguous()
        assert pages.values.is_contiguous()
        kept = pages.keys, pages.values, stream.kept_rows, stream.kept_slots
    n_kept = 0 if kept is None else len(kept[2]) * constants["n_kv_heads"]
    n_programs = triton.cdiv(n_vectors, block)
    _turn_kernel[(n_programs + triton.cdiv(n_kept, block),)](
        qkv, qkv.stride(0), rotation.contiguous(), q_norm, k_norm, out, n_vectors, *(kept or (None,) * 4), n_kept,
        n_programs, eps, keeps=kept is not None, **constants, **options,
    )  # fmt: skip


def gated(gate_up: torch.Tensor, activation: str) -> torch.Tensor:
    """As `reference.gated`. Rows of gate_up may lie apart."""
    gate, up = _dense(gate_up).chunk(2, -1)
    return _gate(up, gate, activation)


def sigmoid_mul(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """As `reference.sigmoid_mul`. Rows of x and gate may lie apart; gate may be one column, expanded."""
    return _gate(_dense(x), gate if gate.stride(-1) == 0 else _dense(gate), "sigmoid")


def variants() -> Iterator[tuple[Any, dict[str, str], dict[str, Any], dict[str, int]]]:
    """Every kernel in the shapes that differ, for compilation without a card."""
    for dtype, n_heads, width in (("bf16", 1, 1024), ("bf16", 1, 2560), ("bf16", 16, 128), ("fp32", 3, 576)):
        constants, options = _norm_launch(n_heads, width)
        weighted = {**constants, "weighted": width != 576}
        stream = ["x_ptr"] if n_heads == 1 else []
        yield _rms_norm_kernel, _types(_rms_norm_kernel, dtype, weighted, stream), weighted, options
    for dtype, width in (("bf16", 2816), ("fp32", 65)):
        constants, options = _row_launch(width)
        yield _expert_norms_kernel, _types(_expert_norms_kernel, dtype, constants, ("x_ptr",)), constants, options
    for dtype, width, *kind in (
        ("bf16", 2816, True, True, True), ("bf16", 2816, False, False, False), ("fp32", 65, True, True, False),
    ):  # fmt: skip
        constants, options = _join_launch(width, *kind)
        types = _types(_join_kernel, dtype, constants, ("x_ptr", "out_ptr", "scale_ptr"))
        yield _join_kernel, types, constants, options
    for dtype, shape in _ROTATED:
        for normed in ((True, True), (False, False), (True, False)):
            kernel, constants, options = _rotate_launch(*shape, *normed)
            if kernel is _turn_kernel:
                constants = constants | {"keeps": shape[1] > 0}
            yield kernel, _types(kernel, dtype, constants), constants, options
    for dtype, activation in (("bf16", "silu"), ("bf16", "gelu_tanh"), ("fp32", "sigmoid")):
        constants, options = _gate_launch(3584, activation, 1)
        yield _gate_kernel, _types(_gate_kernel, dtype, constants), constants, options
    constants, options = _rotation_launch(32)
    yield _rotation_kernel, _types(_rotation_kernel, "fp32", constants), constants, options


# Query heads, key heads, their size, and how much of it is rotated.
_ROTATED = (
    ("bf16", (8, 0, 256, 64)), ("bf16", (32, 8, 128, 128)), ("bf16", (4, 1, 512, 512)), ("fp32", (2, 1, 80, 0)),
)  # fmt: skip


def _norm_launch(n_heads: int, width: int) -> _Launch:
    """A program has about 1024 numbers, 16 bytes of bfloat16 a thread."""
    block_c = triton.next_power_of_2(width)
    block_r = max(1, 1024 // block_c)
    constants = {"n_heads": n_heads, "width": width, "block_r": block_r, "block_c": block_c}
    return constants, {"num_warps": min(8, max(1, block_r * block_c // 256))}


def _row_launch(width: int) -> _Launch:
    constants, options = _norm_launch(1, width)
    return {name: constants[name] for name in ("width", "block_r", "block_c")} | {"n_stages": 3}, options


def _row_grid(n_rows: int, block_r: int, n_programs: int, device: torch.device) -> tuple[int]:
    """At most so many programs as fit a processor at a time."""
    return (min(triton.cdiv(n_rows, block_r), n_programs * processors(device)),)


def _join_launch(width: int, doubled: bool, scaled: bool, by_kind: bool) -> _Launch:
    constants, options = _row_launch(width)
    return constants | {"doubled": doubled, "scaled": scaled, "by_kind": by_kind}, options


def _rotate_launch(
    n_heads: int, n_kv_heads: int, width: int, rotary: int, q_normed: bool, k_normed: bool
) -> tuple[Any, dict[str, Any], dict[str, int]]:
    """The kernel, and its constants and options: where all of a head is rotated, a thread has both halves of it."""
    constants = {
        "n_heads": n_heads, "n_kv_heads": n_kv_heads, "width": width,
        "q_normed": q_normed and n_heads > 0, "k_normed": k_normed and n_kv_heads > 0,
    }  # fmt: skip
    halves = rotary == width and width == triton.next_power_of_2(width) and width > 1
    block_d = triton.next_power_of_2(width)
    block_r = max(1, (2048 if halves else 1024) // block_d)
    if halves:
        return _turn_kernel, constants | {"block_r": block_r}, {"num_warps": max(1, block_r * block_d // 512)}
    options = {"num_warps": max(1, block_r * block_d // 256)}
    return _rotate_kernel, constants | {"rotary": rotary, "block_r": block_r, "block_d": block_d}, options


def _rotation_launch(half: int) -> _Launch:
    """Sines of large angles take long, so that a thread has few of them."""
    block_h = max(1, triton.next_power_of_2(half))
    return {"half": half, "block_r": max(1, 256 // block_h), "block_h": block_h}, {"num_warps": 4}


def _gate_launch(width: int, activation: str, gate_step: int) -> _Launch:
    """A program has a piece of one row."""
    block = min(1024, triton.next_power_of_2(width))
    constants = {"width": width, "activation": activation, "gate_step": gate_step, "block": block}
    return constants, {"num_warps": max(1, block // 256)}


def _gate(x: torch.Tensor, gate: torch.Tensor, activation: str) -> torch.Tensor:
    """activation(gate) * x, both [T, C]."""
    n_rows, width = x.shape
    out = torch.empty(n_rows, width, dtype=x.dtype, device=x.device)
    constants, options = _gate_launch(width, activation, int(gate.stride(1) != 0))
    if n_rows:
        _gate_kernel[(n_rows * triton.cdiv(width, constants["block"]),)](
            x, x.stride(0), gate, gate.stride(0), out, **constants, **options
        )
    return out


def _dense(x: torch.Tensor) -> torch.Tensor:
    """The same, with numbers side by side along the last dimension."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _vectors(x: torch.Tensor) -> tuple[int, int, int]:
    """How many vectors x [T, C] or [T, H, C] holds, how many of them are a row's, and how long each is."""
    n_heads = x.shape[1] if x.dim() == 3 else 1
    return x.shape[0] * n_heads, n_heads, x.shape[-1]


def _strides(x: torch.Tensor) -> tuple[int, int]:
    """From row to row of [T, C] or [T, H, C], and from head to head."""
    return x.stride(0), x.stride(1) if x.dim() == 3 else 0


def _types(kernel: Any, dtype: str, constants: dict[str, Any], wide: Sequence[str] = ()) -> dict[str, str]:
    """The types of a kernel's arguments, by their names; those of `wide` are float32."""
    given = (
        "x_ptr", "gate_ptr", "out_ptr", "first_ptr", "second_ptr", "router_ptr", "scale_ptr", "page_keys_ptr",
        "page_values_ptr",
    )  # fmt: skip
    listed = ("positions_ptr", "kinds_ptr", "kept_rows_ptr", "kept_slots_ptr")
    kinds = dict.fromkeys(given, f"*{dtype}") | dict.fromkeys(listed, "*i32") | dict.fromkeys(wide, "*fp32")
    kinds |= {"eps": "fp32", "scale": "fp32", "factor": "fp32"} | dict.fromkeys(constants, "constexpr")
    return {name: kinds.get(name, "*fp32" if name.endswith("_ptr") else "i32") for name in kernel.arg_names}


@triton.jit
def times_logistic(x: tl.tensor, u: tl.tensor) -> tl.tensor:
    """x / (1 + exp(-u)) in six instructions, half of what exp and a division take for the sake of denormal numbers: the
    square of a root is the reciprocal, and overflows nowhere."""
    root = tl.rsqrt(1.0 + tl.exp2(u * -1.4426950408889634))
    return x * root * root


@triton.jit
def _scale_of(x: tl.tensor, eps: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """1 / sqrt(mean(x^2) + eps) of each row of x, zero behind its width."""
    return tl.rsqrt(tl.sum(x * x, 1) / width + eps)


@triton.jit
def _weights(
    pointer: tl.tensor, c: tl.tensor, known: tl.tensor, block_r: tl.constexpr, block_c: tl.constexpr
) -> tl.tensor:
    """Numbers c of a weight, zero where not known, as often as a program has rows: a thread loads what it needs, so
    that nothing is passed around.

    A barrier follows in each kernel, and then the load of what is summed: the assembler keeps the loads before it in
    front, so that all wait for memory together. It would put them off, behind the sum, until they are needed."""
    at = tl.broadcast_to((pointer + c)[None, :], (block_r, block_c))
    return tl.load(at, mask=tl.broadcast_to(known[None, :], (block_r, block_c)), other=0.0)


@triton.jit
def _vector_places(stride: tl.tensor, head_stride: tl.tensor, i: tl.tensor, n_heads: tl.constexpr) -> tl.tensor:
    """Where vectors i of [T, H, C] begin."""
    row = i // n_heads
    return row.to(tl.int64) * stride + (i - row * n_heads).to(tl.int64) * head_stride


@triton.jit(do_not_specialize=["n_vectors"])
def _rms_norm_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, x_head: tl.tensor, weight_ptr: tl.tensor, out_ptr: tl.tensor,
    n_vectors: tl.tensor, eps: tl.tensor, weighted: tl.constexpr, n_heads: tl.constexpr, width: tl.constexpr,
    block_r: tl.constexpr, block_c: tl.constexpr,
) -> None:  # fmt: skip
    i, c = tl.program_id(0) * block_r + tl.arange(0, block_r), tl.arange(0, block_c)
    inside = (i < n_vectors)[:, None] & (c < width)[None, :]
    at = _vector_places(x_row, x_head, i, n_heads)
    weight = 1.0
    if weighted:
        weight = _weights(weight_ptr, c, c < width, block_r, block_c)
        tl.debug_barrier()
    x = tl.load(x_ptr + at[:, None] + c[None, :], mask=inside, other=0.0).to(tl.float32)
    out = x * _scale_of(x, eps, width)[:, None] * weight
    tl.store(out_ptr + i.to(tl.int64)[:, None] * width + c[None, :], out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _normed(x: tl.tensor, weight: tl.tensor, eps: tl.tensor, width: tl.constexpr) -> tl.tensor:
    """The norm of each row of x."""
    return x * _scale_of(x, eps, width)[:, None] * weight


@triton.jit(do_not_specialize=["n_rows"])
def _expert_norms_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, dense_ptr: tl.tensor, experts_ptr: tl.tensor, router_ptr: tl.tensor,
    out_ptr: tl.tensor, n_rows: tl.tensor, factor: tl.tensor, eps: tl.tensor, width: tl.constexpr,
    block_r: tl.constexpr, block_c: tl.constexpr, n_stages: tl.constexpr,
) -> None:  # fmt: skip
    """Programs take rows after rows: they load the weights once, and the next rows while they sum these."""
    c = tl.arange(0, block_c)
    dense = _weights(dense_ptr, c, c < width, block_r, block_c)
    experts = _weights(experts_ptr, c, c < width, block_r, block_c)
    router = _weights(router_ptr, c, c < width, block_r, block_c).to(tl.float32)
    tl.debug_barrier()
    for start in tl.range(tl.program_id(0) * block_r, n_rows, tl.num_programs(0) * block_r, num_stages=n_stages):
        i = start + tl.arange(0, block_r)
        inside, row = (i < n_rows)[:, None] & (c < width)[None, :], i.to(tl.int64)[:, None]
        x = tl.load(x_ptr + row * x_row + c[None, :], mask=inside, other=0.0).to(tl.float32)
        normed = x * _scale_of(x, eps, width)[:, None]
        seen = normed * (router * factor)
        at, behind = out_ptr + row * width + c[None, :], n_rows.to(tl.int64) * width
        tl.store(at, (normed * dense).to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(at + behind, (normed * experts).to(out_ptr.dtype.element_ty), mask=inside)
        tl.store(at + 2 * behind, seen.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n_rows"])
def _join_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, first_ptr: tl.tensor, first_row: tl.tensor, first_norm_ptr: tl.tensor,
    second_ptr: tl.tensor, second_row: tl.tensor, second_norm_ptr: tl.tensor, post_ptr: tl.tensor,
    scale_ptr: tl.tensor, kinds_ptr: tl.tensor, out_ptr: tl.tensor, n_rows: tl.tensor, eps: tl.tensor,
    width: tl.constexpr, block_r: tl.constexpr, block_c: tl.constexpr, doubled: tl.constexpr, scaled: tl.constexpr,
    by_kind: tl.constexpr, n_stages: tl.constexpr,
) -> None:  # fmt: skip
    """Programs go on from rows to rows, as those of `_expert_norms_kernel`."""
    c = tl.arange(0, block_c)
    first_weight = _weights(first_norm_ptr, c, c < width, block_r, block_c)
    if doubled:
        second_weight = _weights(second_norm_ptr, c, c < width, block_r, block_c)
        post = _weights(post_ptr, c, c < width, block_r, block_c)
    tl.debug_barrier()
    for start in tl.range(tl.program_id(0) * block_r, n_rows, tl.num_programs(0) * block_r, num_stages=n_stages):
        i = start + tl.arange(0, block_r)
        inside, row = (i < n_rows)[:, None] & (c < width)[None, :], i.to(tl.int64)[:, None]
        x = tl.load(x_ptr + row * x_row + c[None, :], mask=inside, other=0.0).to(tl.float32)
        made = tl.load(first_ptr + row * first_row + c[None, :], mask=inside, other=0.0).to(tl.float32)
        weight = first_weight
        if doubled:
            second = tl.load(second_ptr + row * second_row + c[None, :], mask=inside, other=0.0).to(tl.float32)
            made = _normed(made, first_weight, eps, width) + _normed(second, second_weight, eps, width)
            weight = post
        out = x + _normed(made, weight, eps, width)
        if scaled:
            kind = tl.load(kinds_ptr + i, mask=i < n_rows, other=0) if by_kind else tl.zeros((block_r,), tl.int32)
            out = out * tl.load(scale_ptr + kind)[:, None]
        tl.store(out_ptr + row * width + c[None, :], out, mask=inside)


@triton.jit(do_not_specialize=["n"])
def _rotation_kernel(
    positions_ptr: tl.tensor, frequencies_ptr: tl.tensor, scale: tl.tensor, out_ptr: tl.tensor, n: tl.tensor,
    half: tl.constexpr, block_r: tl.constexpr, block_h: tl.constexpr,
) -> None:  # fmt: skip
    i, h = tl.program_id(0) * block_r + tl.arange(0, block_r), tl.arange(0, block_h)
    inside = (i < n)[:, None] & (h < half)[None, :]
    positions = tl.load(positions_ptr + i, mask=i < n, other=0).to(tl.float32)
    frequencies = tl.load(frequencies_ptr + h, mask=h < half, other=0.0)
    angles = positions[:, None] * frequencies[None, :]
    at = out_ptr + i.to(tl.int64)[:, None] * (2 * half) + h[None, :]
    tl.store(at, tl.cos(angles) * scale, mask=inside)
    tl.store(at + half, tl.sin(angles) * scale, mask=inside)


@triton.jit
def _head_weights(
    q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor, is_q: tl.tensor, d: tl.tensor, known: tl.tensor,
    q_normed: tl.constexpr, k_normed: tl.constexpr, block_r: tl.constexpr, block_d: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Numbers d of each head's weight, ones for a kind without."""
    q, k = 1.0, 1.0
    if q_normed:
        q = _weights(q_norm_ptr, d, known, block_r, block_d)
    if k_normed:
        k = _weights(k_norm_ptr, d, known, block_r, block_d)
    return tl.where(is_q[:, None], q, k)


@triton.jit(do_not_specialize=["n_vectors"])
def _rotate_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, rotation_ptr: tl.tensor, q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor,
    out_ptr: tl.tensor, n_vectors: tl.tensor, eps: tl.tensor, n_heads: tl.constexpr, n_kv_heads: tl.constexpr,
    width: tl.constexpr, rotary: tl.constexpr, q_normed: tl.constexpr, k_normed: tl.constexpr,
    block_r: tl.constexpr, block_d: tl.constexpr,
) -> None:  # fmt: skip
    half: tl.constexpr = rotary // 2
    i, d = tl.program_id(0) * block_r + tl.arange(0, block_r), tl.arange(0, block_d)
    row = i // (n_heads + n_kv_heads)
    head = i - row * (n_heads + n_kv_heads)
    is_q = head < n_heads
    inside = (i < n_vectors)[:, None] & (d < width)[None, :]
    at = x_ptr + (row.to(tl.int64) * x_row + head * width)[:, None]
    if rotary > 0:
        # Each number's other half, read once more: neighbours of it are a thread's neighbours too.
        other, turned = (d + half) % rotary, inside & (d < rotary)[None, :]
        pair = tl.load(at + other[None, :], mask=turned, other=0.0).to(tl.float32)
        angle = rotation_ptr + row.to(tl.int64)[:, None] * rotary + (d % half)[None, :]
        cos = tl.load(angle, mask=turned, other=1.0)
        sin = tl.load(angle + half, mask=turned, other=0.0)
    if q_normed or k_normed:
        weight = _head_weights(q_norm_ptr, k_norm_ptr, is_q, d, d < width, q_normed, k_normed, block_r, block_d)
        if rotary > 0:
            pair_weight = _head_weights(
                q_norm_ptr, k_norm_ptr, is_q, other, d < rotary, q_normed, k_normed, block_r, block_d
            )
        tl.debug_barrier()
    out = tl.load(at + d[None, :], mask=inside, other=0.0).to(tl.float32)
    if q_normed or k_normed:
        normed = tl.where(is_q, q_normed, k_normed)
        scale = tl.where(normed, _scale_of(out, eps, width), 1.0)[:, None]
        out = out * scale * weight
        if rotary > 0:
            pair = pair * scale * pair_weight
    if rotary > 0:
        sin = tl.where(d < half, -1.0, 1.0)[None, :] * sin
        out = out * cos + pair * sin
    tl.store(out_ptr + i.to(tl.int64)[:, None] * width + d[None, :], out.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _turned(
    x_ptr: tl.tensor, x_row: tl.tensor, rotation_ptr: tl.tensor, q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor,
    row: tl.tensor, head: tl.tensor, known: tl.tensor, eps: tl.tensor, n_heads: tl.constexpr, width: tl.constexpr,
    q_normed: tl.constexpr, k_normed: tl.constexpr, block_r: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:  # fmt: skip
    """Both halves of heads of rows, normed and rotated."""
    half: tl.constexpr = width // 2
    d = tl.arange(0, half)
    is_q, inside = head < n_heads, tl.broadcast_to(known[:, None], (block_r, half))
    at = x_ptr + (row.to(tl.int64) * x_row + head * width)[:, None] + d[None, :]
    angle = rotation_ptr + row.to(tl.int64)[:, None] * width + d[None, :]
    cos = tl.load(angle, mask=inside, other=1.0)
    sin = tl.load(angle + half, mask=inside, other=0.0)
    if q_normed or k_normed:
        first_weight = _head_weights(q_norm_ptr, k_norm_ptr, is_q, d, d < half, q_normed, k_normed, block_r, half)
        second_weight = _head_weights(
            q_norm_ptr, k_norm_ptr, is_q, half + d, d < half, q_normed, k_normed, block_r, half
        )
        tl.debug_barrier()
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(at + half, mask=inside, other=0.0).to(tl.float32)
    if q_normed or k_normed:
        scale = tl.rsqrt(tl.sum(first * first + second * second, 1) / width + eps)
        scale = tl.where(tl.where(is_q, q_normed, k_normed), scale, 1.0)[:, None]
        first, second = first * scale * first_weight, second * scale * second_weight
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _store_halves(at: tl.tensor, first: tl.tensor, second: tl.tensor, known: tl.tensor, half: tl.constexpr) -> None:
    """Of heads that begin at `at`."""
    at = at[:, None] + tl.arange(0, half)[None, :]
    tl.store(at, first.to(at.dtype.element_ty), mask=known[:, None])
    tl.store(at + half, second.to(at.dtype.element_ty), mask=known[:, None])


@triton.jit(do_not_specialize=["n_vectors", "n_kept", "n_programs"])
def _turn_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, rotation_ptr: tl.tensor, q_norm_ptr: tl.tensor, k_norm_ptr: tl.tensor,
    out_ptr: tl.tensor, n_vectors: tl.tensor, page_keys_ptr: tl.tensor, page_values_ptr: tl.tensor,
    kept_rows_ptr: tl.tensor, kept_slots_ptr: tl.tensor, n_kept: tl.tensor, n_programs: tl.tensor, eps: tl.tensor,
    keeps: tl.constexpr, n_heads: tl.constexpr, n_kv_heads: tl.constexpr, width: tl.constexpr,
    q_normed: tl.constexpr, k_normed: tl.constexpr, block_r: tl.constexpr,
) -> None:  # fmt: skip
    """As `_rotate_kernel` of heads of which all is rotated. Behind the first n_programs come those of rows that are
    kept: keys are turned into their pages, and values copied."""
    half: tl.constexpr = width // 2
    pid = tl.program_id(0)
    if not keeps or pid < n_programs:
        i = pid * block_r + tl.arange(0, block_r)
        row = i // (n_heads + n_kv_heads)
        head, known = i - row * (n_heads + n_kv_heads), i < n_vectors
        first, second = _turned(
            x_ptr, x_row, rotation_ptr, q_norm_ptr, k_norm_ptr, row, head, known, eps, n_heads, width, q_normed,
            k_normed, block_r,
        )  # fmt: skip
        _store_halves(out_ptr + i.to(tl.int64) * width, first, second, known, half)
    else:
        i = (pid - n_programs) * block_r + tl.arange(0, block_r)
        head = i % n_kv_heads
        slot = tl.load(kept_slots_ptr + i // n_kv_heads, mask=i < n_kept, other=-1)
        known = slot >= 0  # one below 0 is passed over
        row = tl.load(kept_rows_ptr + i // n_kv_heads, mask=known, other=0)
        first, second = _turned(
            x_ptr, x_row, rotation_ptr, q_norm_ptr, k_norm_ptr, row, n_heads + head, known, eps, n_heads, width,
            q_normed, k_normed, block_r,
        )  # fmt: skip
        target = (slot.to(tl.int64) * n_kv_heads + head) * width
        _store_halves(page_keys_ptr + target, first, second, known, half)
        value = x_ptr + row.to(tl.int64) * x_row + (n_heads + n_kv_heads + head) * width
        at = value[:, None] + tl.arange(0, half)[None, :]
        first_value, second_value = tl.load(at, mask=known[:, None]), tl.load(at + half, mask=known[:, None])
        _store_halves(page_values_ptr + target, first_value, second_value, known, half)


@triton.jit
def _gate_kernel(
    x_ptr: tl.tensor, x_row: tl.tensor, gate_ptr: tl.tensor, gate_row: tl.tensor, out_ptr: tl.tensor,
    width: tl.constexpr, activation: tl.constexpr, gate_step: tl.constexpr, block: tl.constexpr,
) -> None:  # fmt: skip
    n_blocks: tl.constexpr = (width + block - 1) // block
    row = (tl.program_id(0) // n_blocks).to(tl.int64)
    c = (tl.program_id(0) % n_blocks) * block + tl.arange(0, block)
    x = tl.load(x_ptr + row * x_row + c, mask=c < width, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_row + c * gate_step, mask=c < width, other=0.0).to(tl.float32)
    if activation == "gelu_tanh":  # (1 + tanh(u)) / 2 = sigmoid(2 u), which does not cancel
        out = times_logistic(gate, 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)) * x
    elif activation == "silu":
        out = times_logistic(gate, gate) * x
    else:
        out = times_logistic(x, gate)
    tl.store(out_ptr + row * width + c, out.to(out_ptr.dtype.element_ty), mask=c < width)
