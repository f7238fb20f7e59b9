"""One pass over a stream: what every layer of it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from ramet.cache.store import Store
from ramet.ops import Ops
from ramet.round import Queries, Stream

Rotary = tuple[torch.Tensor, float]  # frequencies [R/2] float32, and the factor on cosines and sines


@dataclass(slots=True, eq=False)
class LayerRun:
    """A stream, the store of earlier rounds (None: nothing is kept), the dtype that products take (the residual stream
    is float32 whatever it is), and what layers leave to later ones: `keys` has the keys and values [T, Hk, D] of each
    layer that others read; `per_layer` what each layer is given besides the residual stream, [N, P] of the rows on
    which its MLP works."""

    stream: Stream
    store: Store | None
    rotaries: Sequence[Rotary]
    dtype: torch.dtype
    ops: Ops
    per_layer: Sequence[torch.Tensor] = ()
    keys: dict[int, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    _rotations: dict[tuple[int, bool], torch.Tensor] = field(default_factory=dict)
    _kinds: dict[bool, torch.Tensor] = field(default_factory=dict)

    def rotation(self, which: int, queries: Queries) -> torch.Tensor:
        """[N, 2, R/2] float32: cosines and sines of each row's angles, times the rotary scale."""
        every = queries is self.stream.every
        if (which, every) not in self._rotations:
            self._rotations[which, every] = self._rotation(which, queries, every)
        return self._rotations[which, every]

    def _rotation(self, which: int, queries: Queries, every: bool) -> torch.Tensor:
        if not every and (which, True) in self._rotations:
            return self._rotations[which, True].index_select(0, queries.rows)
        frequencies, scale = self.rotaries[which]
        positions = self.stream.positions if every else self.stream.positions.index_select(0, queries.rows)
        return self.ops.rotation(positions, frequencies, scale)

    def kinds(self, scale: torch.Tensor | None, queries: Queries) -> torch.Tensor | None:
        """Which of a scale [2] multiplies each row, [N] int32: the first, or the second for rows of a canvas. None
        where there is no such choice."""
        if scale is None or len(scale) == 1:
            return None
        every = queries is self.stream.every
        if every not in self._kinds:
            self._kinds[every] = self.stream.whole if every else self.stream.whole.index_select(0, queries.rows)
        return self._kinds[every]
