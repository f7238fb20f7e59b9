"""Reading the vocabulary on the CPU by compiled kernels: the requested columns, and a streamed logsumexp."""

from __future__ import annotations

from ctypes import c_float

import numpy as np
import numpy.typing as npt
import torch

from ramet.ops.head import reference
from ramet.ops.head.reference import Sampled, Vocabulary, is_cut, part_of
from ramet.ops.head.torch import prepare, read_by
from ramet.ops.native import IS_BF16, NativeOp, pointer
from ramet.round import Stream
from ramet.tree import Sampling

_HELD = 64  # rows whose logits are held for all entries
_COLDEST, _HOTTEST = 1e-20, 1e20  # temperatures beyond are as good as these, and have an inverse


class NativeHead(NativeOp):
    """In bfloat16 and float32. Draws of canvases are plain torch everywhere."""

    prepare = staticmethod(prepare)
    draw = staticmethod(reference.draw)

    def read(
        self, hidden: torch.Tensor, vocabulary: Vocabulary, stream: Stream, softcap: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `reference.read`. What is read of a row has the same bits whatever rows are read with it.

        Raises IndexError when a column lies outside the vocabulary.
        """
        assert hidden.dtype == vocabulary.weight.dtype
        return read_by(self.columns, self.logsumexp, hidden, vocabulary, stream, softcap)

    def sample(
        self, hidden: torch.Tensor, rows: torch.Tensor, vocabulary: Vocabulary, sampling: Sampling, *,
        excluded: int = -1, softcap: float = 0.0,
    ) -> Sampled:  # fmt: skip
        """As `reference.sample`. Holds only the logits of a few rows, those drawn from a part of the vocabulary."""
        weight = vocabulary.weight
        assert len(weight) > (0 <= excluded < len(weight))
        assert hidden.dtype == weight.dtype
        hidden, n = hidden[rows.long()].contiguous(), len(rows)
        made = Sampled(torch.empty(n, dtype=torch.int64), torch.empty(n), torch.empty(n))
        held = n if np.count_nonzero(is_cut(sampling)) <= _HELD else _HELD
        for at in range(0, n, max(1, held)):
            own = slice(at, at + held)
            part = Sampled(made.tokens[own], made.logprobs[own], made.entropy[own])
            self._draw(hidden[own], weight, part_of(sampling, own), excluded, softcap, part)
        return made

    def _draw(
        self, hidden: torch.Tensor, weight: torch.Tensor, sampling: Sampling, excluded: int, softcap: float,
        made: Sampled,
    ) -> None:  # fmt: skip
        """Write what is drawn for the rows hidden [N, C]."""
        cut = is_cut(sampling)
        which = np.flatnonzero(cut)
        warm = (sampling.temperatures > 0) & ~cut
        scales = torch.from_numpy(
            np.where(warm, 1 / sampling.temperatures.clip(_COLDEST, _HOTTEST), 0).astype(np.float32)
        )
        uniforms = torch.from_numpy(np.ascontiguousarray(sampling.uniforms, np.float32))
        places = torch.from_numpy(np.where(cut, np.cumsum(cut) - 1, -1).astype(np.int32))
        logits = torch.empty(len(which), len(weight))
        self._functions.ramet_sample(
            pointer(hidden), pointer(weight), *hidden.shape, len(weight), c_float(softcap), excluded, pointer(scales),
            pointer(uniforms), pointer(places), pointer(logits), pointer(made.tokens), pointer(made.logprobs),
            pointer(made.entropy), IS_BF16[hidden.dtype], torch.get_num_threads(),
        )  # fmt: skip
        if len(which):
            self._draw_cut(logits, part_of(sampling, which), which, excluded, made)

    def _draw_cut(
        self, logits: torch.Tensor, sampling: Sampling, which: npt.NDArray[np.int64], excluded: int, made: Sampled
    ) -> None:
        """Put into `made`, for the rows `which`, what is drawn from a part of the vocabulary by logits [N, V]."""
        tokens, below = torch.empty(len(which), dtype=torch.int64), torch.empty(len(which))
        numbers = (sampling.temperatures, sampling.uniforms, sampling.top_p)
        how = [torch.from_numpy(np.ascontiguousarray(x, np.float32)) for x in numbers]
        top_k = torch.from_numpy(np.ascontiguousarray(sampling.top_k, np.int32))
        self._functions.ramet_cut(
            pointer(logits), *logits.shape, excluded, *map(pointer, how), pointer(top_k), pointer(tokens),
            pointer(below), torch.get_num_threads(),
        )  # fmt: skip
        made.tokens[which] = tokens
        made.logprobs[which] += below

    def columns(
        self, hidden: torch.Tensor, weight: torch.Tensor, row: torch.Tensor, entries: torch.Tensor,
        softcap: float = 0.0,
    ) -> torch.Tensor:  # fmt: skip
        """hidden[row] . weight[entries], float32 [columns]; row and entries int32."""
        out = torch.empty(len(entries))
        self._functions.ramet_columns(
            pointer(hidden), pointer(weight), hidden.shape[1], pointer(row), pointer(entries), len(entries),
            c_float(softcap), pointer(out), IS_BF16[hidden.dtype], torch.get_num_threads(),
        )  # fmt: skip
        return out

    def logsumexp(self, hidden: torch.Tensor, weight: torch.Tensor, softcap: float = 0.0) -> torch.Tensor:
        """Over the vocabulary, float32 [rows]."""
        out = torch.empty(len(hidden))
        if len(hidden):
            self._functions.ramet_logsumexp(
                pointer(hidden), pointer(weight), *hidden.shape, len(weight), c_float(softcap), pointer(out),
                IS_BF16[hidden.dtype], torch.get_num_threads(),
            )  # fmt: skip
        return out
