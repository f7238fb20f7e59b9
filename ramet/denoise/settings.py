"""How a model's canvases are denoised, as its checkpoint says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ramet.errors import CheckpointError

_SAMPLER = "EntropyBoundSamplerConfig"
_DEFAULTS = {  # transformers', for what a generation_config.json leaves open
    "max_denoising_steps": 48, "t_min": 0.4, "t_max": 0.8, "stability_threshold": 1, "confidence_threshold": 0.005,
    "max_new_tokens": 256,
}  # fmt: skip
_ENTROPY_BOUND = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Denoising:
    """A canvas of `canvas_length` ids takes `max_steps` steps at most, the first at a temperature of t_max, the last
    near t_min.

    Of what a step draws, the surest is accepted, up to `entropy_bound` nats. A canvas is finished early when its
    likeliest ids were those of `stability_threshold` steps before, and their mean entropy is below
    `confidence_threshold` nats. An id of `eos` ends a reply, of `max_new_tokens` unless a request says otherwise.
    `pad` fills what is behind an end. Raises ValueError.
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
    eos: frozenset[int] = frozenset()
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

    @classmethod
    def of(cls, config: Any, generation: Mapping[str, Any]) -> Denoising:
        """Of a transformers configuration that has a canvas_length, and what generation_config.json holds, if anything.
        Raises CheckpointError."""
        told = _DEFAULTS | {key: generation[key] for key in _DEFAULTS if generation.get(key) is not None}
        text = config.get_text_config()
        try:
            return cls(
                vocab_size=text.vocab_size,
                canvas_length=config.canvas_length,
                max_steps=told.pop("max_denoising_steps"),
                entropy_bound=_entropy_bound(generation.get("sampler_config")),
                eos=_ids(_first(generation, config, text, name="eos_token_id")),
                pad=_first(generation, config, text, name="pad_token_id"),
                **told,
            )
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"generation_config.json: {error}") from error


def _require(name: str, value: Any, *, at_least: int) -> None:
    if not isinstance(value, int) or value < at_least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number from {at_least}")


def _entropy_bound(sampler: Mapping[str, Any] | None) -> float:
    if sampler is None:
        return _ENTROPY_BOUND
    if sampler.get("_cls_name") != _SAMPLER:
        raise ValueError(f"sampler_config is of {sampler.get('_cls_name')!r}; {_SAMPLER} is the one that is known")
    return float(sampler["entropy_bound"]) if "entropy_bound" in sampler else _ENTROPY_BOUND


def _first(generation: Mapping[str, Any], *configs: Any, name: str) -> Any:
    """The first that is told: for replies, for the model, for its text."""
    found = (generation.get(name), *(getattr(config, name, None) for config in configs))
    return next((value for value in found if value is not None), None)


def _ids(value: int | list[int] | None) -> frozenset[int]:
    return frozenset([] if value is None else [value] if isinstance(value, int) else value)
