"""What a pass over a state and its questions must compute between the products with weights, in floating-point
operations, whatever kernels do it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ramet.bench.shapes import Shape as Work
from ramet.layers.shape import AttentionShape, DeltaShape, Shape


def attention_flop(shape: Shape, work: Work) -> int:
    """Scores and weighted values of the keys that each row sees, over the layers of attention; behind the last layer
    that leaves something to later rows, of the rows that are read alone."""
    found = 0
    for i, layer in enumerate(shape.layers):
        mixer = layer.mixer
        if isinstance(mixer, AttentionShape):
            positions = _all_rows(work) if i + 1 < shape.n_every else _read_rows(work)
            seen = positions + 1 if not mixer.window else np.minimum(positions + 1, mixer.window)
            found += 4 * mixer.n_heads * mixer.head_dim * int(seen.sum())
    return found


def delta_flop(shape: Shape, work: Work) -> int:
    """The gated delta rule's own three products of each row and value head with a state [Dk, Dv]: what it says of the
    key, the key's correction added to it, and what it says of the query. Decays and gates are not counted, nor what a
    kernel that works in chunks spends inside them."""
    found = 0
    for i, layer in enumerate(shape.layers):
        mixer = layer.mixer
        if isinstance(mixer, DeltaShape):
            n_asked = work.n_stream if i + 1 < shape.n_every else work.n_questions
            found += 2 * mixer.n_value_heads * mixer.key_dim * mixer.value_dim * (2 * work.n_stream + n_asked)
    return found


def _all_rows(work: Work) -> npt.NDArray[np.int64]:
    """The position of each row."""
    questions = np.tile(np.arange(work.n_state, work.n_state + work.n_tokens), work.n_questions)
    return np.concatenate([np.arange(work.n_state), questions])


def _read_rows(work: Work) -> npt.NDArray[np.int64]:
    return np.full(work.n_questions, work.n_state + work.n_tokens - 1)
