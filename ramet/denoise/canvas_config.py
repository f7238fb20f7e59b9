"""How a model's canvases are denoised, as its checkpoint says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ramet.errors import CheckpointError
from ramet.foreign import MOST_INT32, Fields, is_whole
from ramet.quoting import shown

_SAMPLER = "EntropyBoundSamplerConfig"
_DEFAULTS = {  # transformers', for what a generation_config.json leaves open
    "max_denoising_steps": 48, "t_min": 0.4, "t_max": 0.8, "stability_threshold": 1, "confidence_threshold": 0.005,
    "max_new_tokens": 256,
}  # fmt: skip
_ENTROPY_BOUND = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CanvasConfig:
    """How DiffusionGemma denoises a canvas of `canvas_length` ids: in `max_steps` steps at most, the first at the
    temperature t_max, the last near t_min.

    A step accepts the rows of least entropy, up to `entropy_bound` nats together. A canvas is finished early when its
    likeliest ids are the same as in the `stability_threshold` steps before, and the mean entropy of its rows is below
    `confidence_threshold` nats. An id of `stop_ids` ends a reply, which has `max_new_tokens` tokens at most unless a
    request says otherwise. `pad` fills a canvas behind an end. Raises ValueError.
    """

    vocab_size: int
    canvas_length: int
    max_steps: int
    t_min: float
    t_max: float
    entropy_bound: float
    stability_threshold: int
    confidence_threshold: float
    max_new_tokens: int
    stop_ids: frozenset[int] = frozenset()
    pad: int | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "canvas_length", "max_steps", "max_new_tokens"):
            _require(name, getattr(self, name), at_least=1)
        _require("stability_threshold", self.stability_threshold, at_least=0)
        if not 0 <= self.t_min < self.t_max:
            raise ValueError(f"t_min is {self.t_min} and t_max {self.t_max}; they are from 0, and t_max is the higher")
        for name in ("entropy_bound", "confidence_threshold"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if odd := [i for i in (*self.stop_ids, self.pad) if i is not None and not 0 <= i < self.vocab_size]:
            raise ValueError(f"{odd[0]} ends a reply or fills a canvas, but ids run from 0 to {self.vocab_size - 1}")

    @classmethod
    def of(cls, config: Any, generation: Mapping[str, Any]) -> CanvasConfig:
        """Read a configuration with a canvas_length, and generation_config.json. Raises CheckpointError."""
        own = Fields(generation, "generation_config.json")
        text = config.get_text_config()
        read = {
            key: own.whole(key) if is_whole(usual) else own.real(key, zero=True) for key, usual in _DEFAULTS.items()
        }
        values: dict[str, Any] = _DEFAULTS | {key: value for key, value in read.items() if value is not None}
        ids = [own, *(Fields(vars(each), "config.json") for each in (config, text))]
        try:
            return cls(
                vocab_size=text.vocab_size,
                canvas_length=config.canvas_length,
                max_steps=values.pop("max_denoising_steps"),
                entropy_bound=_entropy_bound(own.inner("sampler_config")),
                stop_ids=frozenset(_first(ids, "eos_token_id").ids("eos_token_id")),
                pad=_first(ids, "pad_token_id").whole("pad_token_id"),
                **values,
            )
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"generation_config.json: {error}") from error


def _require(name: str, value: Any, *, at_least: int) -> None:
    if not is_whole(value) or not at_least <= value <= MOST_INT32:
        raise ValueError(f"{name} is {shown(value)}; it must be a whole number from {at_least}")


def _entropy_bound(sampler: Fields) -> float:
    if not sampler:
        return _ENTROPY_BOUND
    if (kind := sampler.get("_cls_name")) != _SAMPLER:
        raise ValueError(f"sampler_config is of {shown(kind)}; {_SAMPLER} is the one that is known")
    return sampler.real("entropy_bound") or _ENTROPY_BOUND


def _first(fields: Sequence[Fields], key: str) -> Fields:
    """The first that has the key, or the first of all."""
    return next((each for each in fields if each.get(key) is not None), fields[0])
