"""What an engine is told, and what it resolves "auto" to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import torch

from ramet.errors import InvalidRequest
from ramet.ops import check_card

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
PAGE_SIZE = 16


_AT_LEAST_ONE = (
    "max_round_tokens", "max_request_tokens", "max_queue", "cache_bytes", "disk_cache_bytes", "checkpoint_spacing",
    "threads", "max_model_len", "max_round_requests", "canvas_length", "max_denoising_steps", "block_size",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine; None and "auto" are resolved once, by `resolved`.

    max_round_tokens: rows of one round. max_request_tokens: rows of one request, all branches counted.
    max_queue: requests waiting before further ones are refused. cache_bytes: keys, values and recurrent states
    kept on the device, of running requests and of states that may come again; what must leave goes to
    memory_cache_bytes of main memory, and from there to disk_cache_bytes in the directory disk_cache (None: nowhere).
    checkpoint_spacing: tokens between checkpoints of a long state, for models with recurrent layers. batch_invariant:
    every answer has the bits of its question asked alone. threads: of the CPU's. ops: op -> implementation.
    max_model_len: tokens of a prompt with its reply (None: as many positions as the model has). max_round_requests:
    requests under way at once (None: as many as fit). prefix_caching: whether states are kept for later requests.
    Of diffusion models, canvas_length: rows of a canvas at most, and max_denoising_steps (None: the model's own);
    single_pass_reads: whether a canvas is read in the round that ends its prompt, where that has room for it.
    block_size: rows of a block, of models that fill in masks (None: as the checkpoint says).
    """

    device: str = "auto"
    dtype: str = "auto"
    max_round_tokens: int | None = None
    max_request_tokens: int = 65536
    max_queue: int = 1024
    cache_bytes: int | None = None
    memory_cache_bytes: int = 0
    disk_cache: str | Path | None = None
    disk_cache_bytes: int = 10 << 30
    checkpoint_spacing: int = 1024
    batch_invariant: bool = False
    threads: int | None = None
    ops: Mapping[str, str] = field(default_factory=dict)
    max_model_len: int | None = None
    max_round_requests: int | None = None
    prefix_caching: bool = True
    canvas_length: int | None = None
    max_denoising_steps: int | None = None
    single_pass_reads: bool = True
    block_size: int | None = None

    def __post_init__(self) -> None:
        for name in (*_AT_LEAST_ONE, "memory_cache_bytes"):
            value, least = getattr(self, name), 0 if name == "memory_cache_bytes" else 1
            if value is not None and value < least:
                raise InvalidRequest(f"must be at least {least}, not {value}", field=name)

    def resolved(self) -> EngineSettings:
        """With every "auto" and None replaced by what this machine gives."""
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = self.dtype
        if dtype == "auto":
            dtype = "bfloat16" if device != "cpu" or has_bfloat16_units() else "float32"
        if dtype not in DTYPES:
            raise InvalidRequest(f"{dtype!r} is none of auto, {', '.join(DTYPES)}", field="dtype")
        known = _known(device)
        return replace(
            self,
            device=str(known),
            dtype=dtype,
            max_round_tokens=self.max_round_tokens or (4096 if known.type == "cpu" else 16384),
            cache_bytes=self.cache_bytes or _cache_bytes(known),
            threads=self.threads or torch.get_num_threads(),
        )


def has_bfloat16_units() -> bool:
    """Whether the CPU multiplies bfloat16 itself (AVX512-BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _cache_bytes(device: torch.device) -> int:
    """A part of the device's memory that leaves room for a model of ordinary size."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(4 << 30, free // 8)
    return min(1 << 30, int(psutil.virtual_memory().total) // 8)


def _known(device: str) -> torch.device:
    try:
        known = torch.device(device)
    except RuntimeError as error:
        raise InvalidRequest(f"{device!r} is no device: use auto, cpu or cuda:N", field="device") from error
    if known.type == "cuda" and not torch.cuda.is_available():
        raise InvalidRequest("no CUDA device is available here; --device cpu works", field="device")
    if known.type == "cuda" and (known.index or 0) >= torch.cuda.device_count():
        raise InvalidRequest(f"{device!r}: there are {torch.cuda.device_count()} here", field="device")
    if known.type == "cuda":
        check_card(known)
    return known
