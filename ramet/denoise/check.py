"""The checks of a request for a reply in canvases, before any work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

from ramet.denoise.canvas_config import CanvasConfig
from ramet.errors import InvalidRequest
from ramet.generation import OF_MASKS, GenerationRequest
from ramet.quoting import shown
from ramet.values import MAX_SEED, MIN_SEED


def check(request: GenerationRequest, settings: CanvasConfig) -> None:
    """Raise InvalidRequest, which names the field, for a request that the model cannot answer."""
    check_ids("prompt", request.prompt, settings.vocab_size)
    check_ids("logprob_ids", request.logprob_ids, settings.vocab_size)
    if not request.prompt:
        raise InvalidRequest("a prompt needs at least one token", field="prompt")
    for name in ("max_tokens", "max_steps", "canvas_length"):
        value: int | None = getattr(request, name)
        if value is not None and value < 1:
            raise InvalidRequest(f"must be at least 1, not {value}", field=name)
    if request.seed is not None and not MIN_SEED <= request.seed <= MAX_SEED:
        raise InvalidRequest(f"must be an integer of 64 bits, from {MIN_SEED} to {MAX_SEED}", field="seed")
    if not 0 <= request.n_best <= settings.vocab_size:
        raise InvalidRequest(f"must be from 0 to {settings.vocab_size}, not {request.n_best}", field="n_best")
    _check_draws(request)
    _check_canvas(request, settings)
    if request.constrained and not request.logprob_ids:
        raise InvalidRequest("logprob_ids are what may be drawn, and there are none", field="constrained")


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidRequest, which names the field, the id and the bound, for an id outside the vocabulary."""
    if odd := {kind for kind in set(map(type, ids)) if kind is bool or not issubclass(kind, SupportsIndex)}:
        raise InvalidRequest(f"ids are whole numbers, not {shown(next(i for i in ids if type(i) in odd))}", field=field)
    if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
        unknown = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidRequest(f"ids run from 0 to {vocab_size - 1}; {unknown} is none", field=field)


def width(request: GenerationRequest, settings: CanvasConfig) -> int:
    """The rows of each of the request's canvases."""
    return settings.canvas_length if request.canvas_length is None else request.canvas_length


def n_steps(request: GenerationRequest, settings: CanvasConfig) -> int:
    """The most steps of each of the request's canvases."""
    return settings.max_steps if request.max_steps is None else min(request.max_steps, settings.max_steps)


def _check_canvas(request: GenerationRequest, settings: CanvasConfig) -> None:
    w = width(request, settings)
    seed = request.seed_canvas
    if w > settings.canvas_length:
        raise InvalidRequest(f"a canvas has {settings.canvas_length} tokens at most, not {w}", field="canvas_length")
    if seed is not None:
        if len(seed) != w:
            raise InvalidRequest(f"must be as long as the canvas, {w} tokens, not {len(seed)}", field="seed_canvas")
        check_ids("seed_canvas", seed, settings.vocab_size)
    if request.pinned and seed is None:
        raise InvalidRequest("pins places of a seed_canvas, and there is none: give one", field="pinned")
    if len(request.pinned) > w:
        raise InvalidRequest(f"a canvas has {w} places, and {len(request.pinned)} are pinned", field="pinned")
    outside = next((place for place in request.pinned if not 0 <= place < w), None)
    if outside is not None:
        raise InvalidRequest(f"places run from 0 to {w - 1}; {outside} lies outside the canvas", field="pinned")


def _check_draws(request: GenerationRequest) -> None:
    """Refuse the fields by which other models draw ids: a canvas follows the model's own schedule."""
    if request.temperature not in (None, 0, 1):
        raise InvalidRequest(
            "canvases are denoised by the model's own schedule of temperatures: leave it at 1, or take 0 for the "
            "likeliest ids",
            field="temperature",
        )
    usual = GenerationRequest(request.prompt)
    for name in ("top_k", "top_p", *OF_MASKS):
        if getattr(request, name) != getattr(usual, name):
            raise InvalidRequest("has no effect on canvases: leave it away", field=name)
