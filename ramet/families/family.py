"""What a family says of its checkpoints: how to read the configuration, and the names of the weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from ramet.errors import CheckpointError
from ramet.families.check import check_shape
from ramet.layers.shape import AttentionShape, LayerShape, MLPShape, Shape
from ramet.quoting import shown


@dataclass(frozen=True, slots=True)
class Weight:
    """The checkpoint's parameters that make one of ours, laid one behind the other along the first dimension, the
    shape that they must come to, and what is then made of them, where they are not used as they are. wide: float32,
    whatever the model's dtype."""

    parts: tuple[str, ...]
    shape: tuple[int, ...]
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None
    wide: bool = False


Plan = dict[str, Weight]  # by our name
_MOST_OF_FILES, _SPARE = 2, 1024  # parameters that a plan may have, times those of the files, and so many more
_LISTED = 8  # names in an error


THOUGHTLESS: Mapping[str, Any] = MappingProxyType({"enable_thinking": False})


def _none(*_: object) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class BlockDefaults:
    """Of models that fill in blocks of masks, what their checkpoints leave open: rows of a block (None where releases
    differ in them), the mask's id, and the texts of the control tokens that end a reply. plain: releases on the hub
    whose names tell no size, and theirs."""

    size: int | None
    mask: int
    stops: tuple[str, ...]
    plain: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Family:
    """`shape` reads transformers' configuration object (of the text model, where there are several); `plan` names
    the weights of a checkpoint of that shape that has the parameters `names`; `unused` begins the names of
    parameters that are left alone: towers for images and sound, heads for speculation; `idle` names those that a
    layer of such a shape has no use for. `blocks`: of models whose rows see their whole block, what holds where
    nothing else is said. `asked`: variables of the chat template, as the models' cards set them for replies without
    thoughts; none where a card sets none."""

    shape: Callable[[Any], Shape]
    plan: Callable[[Shape, Collection[str]], Plan]
    unused: tuple[str, ...] = ()
    idle: Callable[[Shape, Collection[str]], tuple[str, ...]] = _none
    blocks: BlockDefaults | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)

    def read(self, config: Any) -> Shape:
        """The shape that transformers' configuration of a checkpoint describes. Raises CheckpointError, also where the
        configuration holds what `shape` cannot count with."""
        try:
            shape = self.shape(config.get_text_config())
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CheckpointError(f"config.json describes no {config.model_type} model: {error}") from error
        check_shape(shape)
        return shape


def require(config: Any, key: str, *allowed: object) -> None:
    """Refuse a configuration that asks for what the family's layers do not do."""
    value = getattr(config, key, allowed[0])
    if value not in allowed:
        names = " or ".join(repr(a) for a in allowed)
        raise CheckpointError(f"config.json: {key} is {shown(value)}; {config.model_type} is implemented for {names}")


def require_whole_heads(config: Any) -> None:
    """Refuse a rotary embedding that turns a part of each head."""
    rope = getattr(config, "rope_parameters", None) or {}
    for each in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        part = each.get("partial_rotary_factor", 1)
        if part not in (None, 1) and each.get("rope_type") != "proportional":  # which has no part to it but zeros
            raise CheckpointError(
                f"config.json: partial_rotary_factor is {shown(part)}; {config.model_type} is implemented for whole "
                "heads"
            )


def window_of(config: Any, kind: str, windowed: str) -> int:
    """Of a layer of type `kind`: rows that it sees at most where that is the `windowed` one; 0 for all."""
    if kind != windowed:
        return 0
    if not (window := getattr(config, "sliding_window", None)):
        raise CheckpointError(f"config.json: layer_types has {kind}, but sliding_window is {shown(window)}")
    return int(window)


def layer_kinds(config: Any, *known: str) -> list[str]:
    """The type of each layer, which must be one of the `known`; layers without a type are of the last of these."""
    n_layers = config.num_hidden_layers
    kinds = list(getattr(config, "layer_types", None) or [known[-1]] * n_layers)
    if len(kinds) != n_layers:
        raise CheckpointError(f"config.json: layer_types has {len(kinds)} entries for num_hidden_layers {n_layers}")
    if unknown := sorted(set(kinds) - set(known)):
        listed = " and ".join(shown(kind).strip("'") for kind in unknown[:_LISTED])
        raise CheckpointError(f"config.json: layer_types has {listed}; {config.model_type} has {' and '.join(known)}")
    return kinds


def prefix(names: Collection[str]) -> str:
    """What the names of the text model's parameters begin with: a multimodal checkpoint has it inside another, one of
    an encoder and a decoder as the latter."""
    inner = ("model.language_model.", "model.decoder.")
    return next((each for each in inner if any(name.startswith(each) for name in names)), "model.")


def add_one(weight: torch.Tensor) -> torch.Tensor:
    """For norms whose checkpoints hold the difference from one; float32, in which the layers use it."""
    return weight.float() + 1


def outer_plan(
    shape: Shape,
    names: Collection[str],
    transform: Callable[[torch.Tensor], torch.Tensor] | None,
    *,
    embedding: str = "embed_tokens",
) -> Plan:
    """Embedding, final norm (with the family's `transform` of norms), and the head where the checkpoint has one."""
    at, vocabulary, hidden = prefix(names), shape.vocab_size, shape.hidden_size
    plan = {
        "embedding": Weight((f"{at}{embedding}.weight",), (vocabulary, hidden)),
        "final_norm": Weight((f"{at}norm.weight",), (hidden,), transform),
    }
    if "lm_head.weight" in names:
        plan["head"] = Weight(("lm_head.weight",), (vocabulary, hidden))
    return plan


def layers_plan(shape: Shape, names: Collection[str], own: Callable[[LayerShape, str], Plan]) -> Plan:
    """What `own` names of each layer, given its shape and what its parameters' names begin with. Raises CheckpointError
    where that comes to many more names than the checkpoint's, `names`."""
    at, n_parts = prefix(names), 0
    found: Plan = {}
    for i, layer in enumerate(shape.layers):
        plan = own(layer, f"{at}layers.{i}")
        found |= {f"{i}.{name}": weight for name, weight in plan.items()}
        n_parts += sum(len(weight.parts) for weight in plan.values())
        if n_parts > _MOST_OF_FILES * len(names) + _SPARE:
            raise CheckpointError(
                f"config.json: the first {i + 1} of num_hidden_layers {len(shape.layers)} have {n_parts} parameters, "
                f"and the files hold {len(names)} tensors: they belong to different models; download both again"
            )
    return found


def products(at: str, sizes: dict[str, tuple[tuple[str, ...], int, int]], *, bias: bool = False) -> Plan:
    """Weights of products, our name -> (the names below `at`, rows in all, columns), and their biases."""
    plan = {}
    for name, (parts, n_out, n_in) in sizes.items():
        plan[name] = Weight(tuple(f"{at}.{part}.weight" for part in parts), (n_out, n_in))
        if bias:
            plan[f"{name}_bias"] = Weight(tuple(f"{at}.{part}.bias" for part in parts), (n_out,))
    return plan


def attention_plan(hidden: int, mixer: AttentionShape, at: str) -> Plan:
    """The products of attention as nearly every checkpoint names them; with a gate the queries' has twice the rows."""
    wide, narrow = mixer.n_heads * mixer.head_dim, mixer.n_kv_heads * mixer.head_dim
    sizes = {
        "q_proj": (("q_proj",), wide * (2 if mixer.gated else 1), hidden),
        "kv_proj": (("k_proj", "v_proj"), 2 * narrow, hidden),
        "o_proj": (("o_proj",), hidden, wide),
    }
    return products(at, sizes, bias=mixer.bias)


def mlp_plan(shape: Shape, layer: LayerShape, at: str) -> Plan:
    """The gated MLP as nearly every checkpoint names it."""
    assert isinstance(layer.mlp, MLPShape)
    return gated_products(f"{at}.mlp", layer.mlp, shape.hidden_size)


def gated_products(at: str, mlp: MLPShape, hidden: int) -> Plan:
    """The products of a gated MLP."""
    size = mlp.size
    sizes = {"gate_up_proj": (("gate_proj", "up_proj"), 2 * size, hidden), "down_proj": (("down_proj",), hidden, size)}
    return products(at, sizes, bias=mlp.bias)
