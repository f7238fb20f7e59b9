"""Sizes: the numbers of a configuration, looked at on their own before a layer, a list or a name is made of them, and
beside what lies in the files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from ramet.errors import CheckpointError
from ramet.foreign import MOST_INT32, Fields, check_numbers, is_whole
from ramet.quoting import cut, shown

_FROM_ONE = frozenset({
    "global_head_dim", "head_dim", "hidden_size", "linear_conv_kernel_dim", "linear_key_head_dim",
    "linear_num_key_heads", "linear_num_value_heads", "linear_value_head_dim", "max_position_embeddings",
    "num_attention_heads", "num_global_key_value_heads", "num_hidden_layers", "num_key_value_heads", "vocab_size",
    "vocab_size_per_layer_input",
})  # fmt: skip
_FROM_NONE = frozenset({
    "block_length", "block_size", "canvas_length", "first_k_dense_replace", "hidden_size_per_layer_input",
    "intermediate_size", "moe_intermediate_size", "n_group", "num_experts", "num_experts_per_tok",
    "num_kv_shared_layers", "num_shared_experts", "original_max_position_embeddings",
    "shared_expert_intermediate_size", "sliding_window", "top_k_experts", "topk_group",
})  # fmt: skip
_REALS = frozenset({
    "factor", "final_logit_softcapping", "partial_rotary_factor", "query_pre_attn_scalar", "rms_norm_eps", "rope_theta",
    "routed_scaling_factor",
})  # fmt: skip
_IDS = frozenset({"bos_token_id", "eos_token_id", "mask_token_id", "pad_token_id"})
_ROWS = frozenset({  # what no parameter has as a dimension, so that 32 bits are all that limits it
    "block_length", "block_size", "canvas_length", "max_position_embeddings", "original_max_position_embeddings",
    "sliding_window",
})  # fmt: skip
_LAYERS = frozenset({"depth", "n_layer", "n_layers", "num_hidden_layers", "num_kv_shared_layers", "num_layers"})
_COUNTS = re.compile(r"^num_|(_size|_dim)$|_experts$")  # by which transformers, too, makes lists


@dataclass(frozen=True)
class Held:
    """What lies in a checkpoint's files: so many tensors, and the largest dimension of them all."""

    n_tensors: int
    largest: int

    @classmethod
    def of(cls, shapes: Iterable[tuple[int, ...]]) -> Self:
        listed = [*shapes]
        return cls(len(listed), max((size for shape in listed for size in shape), default=0))

    def most(self, key: str) -> tuple[int, str]:
        """The most that a number called `key` may be, and why."""
        if key in _ROWS:
            return MOST_INT32, "32 bits hold"
        if key in _LAYERS:
            return self.n_tensors, "the files hold tensors"
        return max(self.largest, self.n_tensors), "any dimension of the tensors in the files"


def check_sizes(raw: Mapping[str, Any], held: Held | None, where: str) -> None:
    """Look at what a configuration, which `where` names, says of sizes, at every depth: each is a whole number, and no
    layer, head or row of a matrix is counted that the files cannot have; `held` None leaves that to who reads them.
    Raises CheckpointError."""
    check_numbers(raw, where)
    _check(Fields(raw, where), held)


def _check(fields: Fields, held: Held | None) -> None:
    for key, value in fields.items():
        if isinstance(value, Mapping):
            _check(fields.inner(key), held)
        elif key in _FROM_ONE or key in _FROM_NONE:
            fields.whole(key, least=1 if key in _FROM_ONE else 0)
        elif key in _REALS:
            fields.real(key)
        elif key in _IDS:
            _check_ids(fields, key)
        if held is not None and is_whole(value) and (key in _LAYERS or _COUNTS.search(key)):
            _check_held(fields, key, held)


def _check_held(fields: Fields, key: str, held: Held) -> None:
    most, why = held.most(key)
    if fields[key] > most:
        raise CheckpointError(
            f"{fields.where}: {cut(key)} is {shown(fields[key])}, more than {why} ({most}): the configuration and the "
            "weights belong to different models; download both again"
        )


def _check_ids(fields: Fields, key: str) -> None:
    """-1 stands for none in published configurations."""
    value = fields[key]
    listed = [] if value is None else value if isinstance(value, list) else [value]
    if not all(is_whole(i) and -1 <= i <= MOST_INT32 for i in listed):
        raise fields.wrong(key, f"an id from 0 to {MOST_INT32}, or a list of such ids")
