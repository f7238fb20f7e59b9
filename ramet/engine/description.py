"""What an engine resolved, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ramet.engine import latency

if TYPE_CHECKING:
    from ramet.engine.engine import Engine


def describe(engine: Engine) -> dict[str, str]:
    """By name: model, device, dtype, limits, and why each op runs as it does."""
    settings = engine.settings
    found = {
        "model": engine.name,
        "fingerprint": engine.model.fingerprint,
        "device": settings.device,
        "dtype": settings.dtype,
        "threads": str(settings.threads),
        "method": engine.decider.settings.method,
        "max_round_tokens": str(settings.max_round_tokens),
        "max_request_tokens": str(settings.max_request_tokens),
        "max_positions": str(engine.shape.max_positions),
        "max_model_len": str(engine.max_length),
        "batch_invariant": str(settings.batch_invariant),
        "cache": engine.cache.describe(),
    }
    if engine.calibration is not None:
        found["calibration"] = engine.calibration.summary()
    if engine.blocks is not None:
        found |= engine.blocks.describe()
    if engine.sizing is not None:
        found["chunk_size"] = engine.sizing.describe()
        if engine.sizing.latency is not None:
            found["latency"] = latency.describe(engine.sizing.latency)
    if engine.decoding is not None:
        found["draws"] = engine.sampling.describe()
    return found | {f"op {name}": why for name, why in engine.model.ops.why.items()}
