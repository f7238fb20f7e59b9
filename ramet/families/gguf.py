"""GgufArchitecture: how GGUF files hold a family's models; and the keys of such a file, read by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ramet.errors import CheckpointError
from ramet.foreign import MOST_INT32, Fields
from ramet.sizes import Held
from ramet.text.pre_tokenizer import PreTokenizer

LAYER_TENSORS = {  # GGUF's module names within a block, and transformers', as most architectures have them
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}


class GgufKeys:
    """The keys below the architecture's name in a GGUF file, which holds `held`. `size` and `real` raise
    CheckpointError for a key that is missing and has no default."""

    def __init__(self, fields: Fields, held: Held | None) -> None:
        self.fields, self.architecture, self._held = fields, str(fields["general.architecture"]), held

    def full(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def size(self, key: str, name: str, default: int | None = None) -> int:
        """A number of layers, heads, rows and the like, for which `name` is transformers' word."""
        if isinstance(self.fields.get(self.full(key)), list):
            raise self._missing(key, "differs from layer to layer, which is not served")
        most, _ = self._held.most(name) if self._held else (MOST_INT32, "")
        found = self.fields.whole(self.full(key), least=1, most=most)
        if found is None and default is None:
            raise self._missing(key, "is missing")
        return found or default or 0

    def real(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        found = self.fields.real(self.full(key))
        if found is None and default is None:
            raise self._missing(key, "is missing")
        return found or default or 0.0

    def _missing(self, key: str, state: str) -> CheckpointError:
        return CheckpointError(f"{self.fields.where}: {self.full(key)} {state}; convert the model again")


def _no_more(*_: object) -> dict[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """One value of `general.architecture`, which is `name`.

    model_type: config.json's word for the same models. layer_tensors: GGUF's module names within a block, and
    transformers'. keys: metadata keys below the name that are read besides those that all architectures have.
    config: gives what the configuration holds besides what all architectures' has, or in place of it, from the file's
    keys and from the latter. pre_tokenizers: by `tokenizer.ggml.pre`; a file of any architecture may name them.
    interleaved: rows of q and k stand in pairs that rotate together, (0, D/2, 1, D/2 + 1, ...), where transformers has
    the halves one behind the other. whole_norms: norms hold the whole weight, where transformers has its difference
    from one.
    """

    name: str
    model_type: str
    layer_tensors: Mapping[str, str]
    keys: tuple[str, ...] = ()
    config: Callable[[GgufKeys, Mapping[str, Any]], dict[str, Any]] = _no_more
    pre_tokenizers: Mapping[str, PreTokenizer] = field(default_factory=dict)
    interleaved: bool = False
    whole_norms: bool = False
