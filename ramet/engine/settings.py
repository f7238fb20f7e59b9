"""The settings of an engine, and the values that "auto" stands for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import get_args

import torch

from ramet.denoise.elastic import AUTO, BLOCK, MIN_SIZE, ChunkTiers
from ramet.denoise.running import Mode
from ramet.denoise.unmask_policy import Strategy, check_used
from ramet.errors import InvalidRequest
from ramet.machine import allowance
from ramet.ops import check_card
from ramet.quoting import shown

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
PAGE_SIZE = 16

# What passes for a setting at all, whatever the model and the machine are: beyond it are slips of the keyboard, and
# counts that arrays of 32 bits do not hold.
_MOST = {
    "max_round_tokens": 1 << 20, "max_request_tokens": 1 << 30, "max_queue": 1 << 20, "disk_cache_bytes": 1 << 50,
    "checkpoint_spacing": 1 << 30, "threads": 4096, "max_model_len": 1 << 30, "max_round_requests": 1 << 20,
    "cache_bytes": 1 << 50, "memory_cache_bytes": 1 << 50,
    "canvas_length": 1 << 20, "max_denoising_steps": 1 << 16, "block_size": 4096, "denoising_steps": 1 << 16,
}  # fmt: skip
_ANY_BLOCK = 1 << 30  # larger than those that there are: a block's own limit is known once the model is

_LEAST = dict.fromkeys(_MOST, 1) | {"memory_cache_bytes": 0}
_DIRECTORIES = ("disk_cache", "latency_cache")


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of an engine; None and "auto" are resolved once, by `resolved`.

    max_round_tokens: rows of one round. max_request_tokens: rows of one request, all branches counted.
    max_queue: requests waiting before further ones are refused. cache_bytes: keys, values and recurrent states
    kept on the device, of running requests and of states that may come again; what must leave goes to
    memory_cache_bytes of main memory, and from there to disk_cache_bytes in the directory disk_cache (None: nowhere).
    checkpoint_spacing: tokens between checkpoints of a long state, for models with recurrent layers. batch_invariant:
    every answer has the bits that its question gets alone. threads: of the CPU. ops: op -> implementation.
    max_model_len: positions that one prompt and all that is laid behind it may take: a reply's tokens, an option's
    text, whole canvases, the masks that fill up a block (None: as many as the model has). max_round_requests:
    requests under way at once (None: as many as fit). prefix_caching: whether states are kept for later requests.
    Of diffusion models, canvas_length: rows of a canvas at most, and max_denoising_steps (None: the model's own);
    single_pass_reads: whether a canvas is read in the round that ends its prompt, where that has room for it.

    Of models that fill in masks, block_size: rows of a block (None: as the checkpoint says). mode: a reply's step runs
    a chunk of its block's rows, or "block": all of them, the plain way that chunks are measured by. chunk_size: rows of
    a chunk at most: "block", all of the block's, whose replies are those of the mode "block" in fewer passes; a number;
    or "auto", what gains the most tokens a second, which is the block for a reply that nothing runs beside, and for one
    with a seed; chunk_tiers: by the number of replies instead, such as "4:32,32:16,256:8". What masks become depends on
    those that run beside them, so with batch_invariant, where the load decides nothing, "auto" is the block. ahead: the
    largest chunks may reach into the next block, which are then no whole blocks. A request may have an
    unmasking_strategy, confidence_threshold and denoising_steps (None: as many as the block has rows) of its own.
    latency_cache: directory of what passes were measured to take (None: in the user's cache directory).
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
    mode: Mode = "chunk"
    chunk_size: str = BLOCK
    chunk_tiers: str | None = None
    ahead: bool = False
    unmasking_strategy: Strategy = "low_confidence_dynamic"
    confidence_threshold: float = 0.9
    denoising_steps: int | None = None
    latency_cache: str | Path | None = None

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise InvalidRequest(f"is a whole number, not {shown(value)}", field=name)
            if value is not None and value < least:
                raise InvalidRequest(f"must be at least {least}, not {shown(value)}", field=name)
            if value is not None and value > _MOST[name]:
                raise InvalidRequest(f"must be at most {_MOST[name]}, not {shown(value)}", field=name)
        for name in _DIRECTORIES:
            value = getattr(self, name)
            if isinstance(value, str) and (not value.strip() or "\0" in value):  # of "" a Path makes the current one
                raise InvalidRequest(f"{shown(value)} names no directory: name one, or leave it away", field=name)
        self._check_chunks()
        self._check_kept()
        for name, kind in (("mode", Mode), ("unmasking_strategy", Strategy)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise InvalidRequest(f"{value!r} is none of {', '.join(get_args(kind))}", field=name)
        if not 0 <= self.confidence_threshold <= 1:
            raise InvalidRequest(f"{self.confidence_threshold} is not from 0 to 1", field="confidence_threshold")
        for name in ("confidence_threshold", "denoising_steps"):
            if getattr(self, name) != _DEFAULTS[name]:
                check_used(name, self.unmasking_strategy)

    def _check_chunks(self) -> None:
        told = self.chunk_size
        if self.gives_chunks and not (told.isdecimal() and len(told) < 10 and int(told) >= MIN_SIZE):
            wanted = f"auto, block and a number from {MIN_SIZE} to the block's rows"
            raise InvalidRequest(f"{shown(told)} is none of {wanted}", field="chunk_size")
        if self.chunk_tiers is not None:
            ChunkTiers.parse(self.chunk_tiers, _ANY_BLOCK)
            if self.gives_chunks:
                raise InvalidRequest("says what chunk_size says: give one of them", field="chunk_tiers")
            if self.batch_invariant:
                raise InvalidRequest("go by the load: with batch_invariant give a chunk_size", field="chunk_tiers")
        given = {"chunk_size": self.gives_chunks, "chunk_tiers": self.chunk_tiers is not None, "ahead": self.ahead}
        for name in (name for name, is_given in given.items() if is_given and self.mode == "block"):
            raise InvalidRequest("has no effect where mode is block, which has no chunks", field=name)
        measured = not (self.mode == "block" or self.batch_invariant or given["chunk_size"] or given["chunk_tiers"])
        if self.latency_cache is not None and not measured:
            raise InvalidRequest(
                'has no effect: passes are measured for chunk_size "auto" alone, without chunk_tiers, mode block and '
                "batch_invariant; leave it away",
                field="latency_cache",
            )

    def _check_kept(self) -> None:
        """Where nothing is kept for later requests, or nothing on disk, settings of that have no effect."""
        if not self.prefix_caching:
            for name in ("memory_cache_bytes", "disk_cache"):
                if getattr(self, name) != _DEFAULTS[name]:
                    raise InvalidRequest("has no effect without prefix_caching: leave one of them away", field=name)
        if self.disk_cache is None and self.disk_cache_bytes != _DEFAULTS["disk_cache_bytes"]:
            raise InvalidRequest("has no effect without disk_cache, a directory: give one", field="disk_cache_bytes")

    @property
    def gives_chunks(self) -> bool:
        """Whether chunk_size is a number."""
        return self.chunk_size not in (AUTO, BLOCK)

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
        found = replace(
            self,
            device=str(known),
            dtype=dtype,
            max_round_tokens=self.max_round_tokens or (4096 if known.type == "cpu" else 16384),
            cache_bytes=self.cache_bytes or _cache_bytes(known),
            threads=self.threads or _threads(),
        )
        found._check_memory(known)
        return found

    def _check_memory(self, device: torch.device) -> None:
        """Raise InvalidRequest for what this machine has no memory for, whatever else is in it."""
        memory, cached = allowance().n_bytes, self.cache_bytes or 0
        if device.type == "cuda" and cached > (there := torch.cuda.mem_get_info(device)[1]):
            raise InvalidRequest(f"must be at most {there}, the memory of {device}, not {cached}", field="cache_bytes")
        if device.type == "cpu" and cached > memory:
            raise InvalidRequest(f"must be at most {memory}, the memory here, not {cached}", field="cache_bytes")
        left = memory - (cached if device.type == "cpu" else 0)
        if self.memory_cache_bytes > left:
            what = "the memory here" if left == memory else f"the memory here without cache_bytes, {cached}"
            raise InvalidRequest(
                f"must be at most {left}, {what}, not {self.memory_cache_bytes}", field="memory_cache_bytes"
            )


_DEFAULTS = {each.name: each.default for each in fields(EngineSettings)}


def has_bfloat16_units() -> bool:
    """Whether the CPU multiplies bfloat16 itself (AVX512-BF16 or AMX)."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _cache_bytes(device: torch.device) -> int:
    """A part of the device's memory that leaves room for a model of ordinary size."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return min(4 << 30, free // 8)
    return min(1 << 30, allowance().n_bytes // 8)


def _threads() -> int:
    """Torch's own choice, as far as this process has processors; a person's OMP_NUM_THREADS holds as it is."""
    chosen = torch.get_num_threads()
    return chosen if os.environ.get("OMP_NUM_THREADS") else min(chosen, allowance().n_threads)


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
