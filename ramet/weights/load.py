"""Loading: a checkpoint's tensors merged into ours, each copied once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from ramet.errors import CheckpointError
from ramet.weights.checkpoint import Checkpoint
from ramet.weights.finite import check_finite

_LISTED = 8  # names in an error


def load(
    checkpoint: Checkpoint,
    plan: Mapping[str, tuple[str, ...]],
    *,
    dtype: torch.dtype,
    unused: tuple[str, ...] = (),
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    wide: Collection[str] = (),
    progress: bool | None = None,
) -> dict[str, torch.Tensor]:
    """Every tensor of `plan` in memory of its own, contiguous, in `dtype`, those of `wide` in float32.

    plan: our name -> the checkpoint's names, laid one behind the other along dimension 0. unused: how the names begin
    that may be there and are left alone. shapes: what some of ours must come to. progress: show a bar on stderr; None
    shows one on a terminal. Strict both ways: raises CheckpointError for a name of the plan that is missing, a name of
    the checkpoint that nothing uses, shapes that do not fit, and numbers that are not finite.
    """
    _check_names(checkpoint, plan, unused)
    merged = {ours: _shape(checkpoint, parts, (shapes or {}).get(ours)) for ours, parts in plan.items()}
    tensors: dict[str, torch.Tensor] = {}
    shown = None if progress is None else not progress  # tqdm's None: only on a terminal
    for ours, parts in tqdm(plan.items(), desc=f"Loading {checkpoint.name}", unit="tensor", disable=shown):
        tensors[ours] = torch.empty(merged[ours], dtype=torch.float32 if ours in wide else dtype)
        row = 0
        for name in parts:
            end = row + checkpoint.shape(name)[0]
            checkpoint.read(name, tensors[ours][row:end])
            check_finite(tensors[ours][row:end], name, checkpoint.name)
            row = end
    return tensors


def _check_names(checkpoint: Checkpoint, plan: Mapping[str, tuple[str, ...]], unused: tuple[str, ...]) -> None:
    used = {name for parts in plan.values() for name in parts}
    problems = []
    if missing := sorted(used - checkpoint.names):
        problems.append(f"missing are {_listed(missing)}")
    if extra := sorted(name for name in checkpoint.names - used if not name.startswith(unused)):
        problems.append(f"nothing uses {_listed(extra)}")
    if problems:
        expected = f"{checkpoint.name}: the weights are not those of a {checkpoint.model_type} model"
        raise CheckpointError(f"{expected}: {'; '.join(problems)}")


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + rest


def _shape(checkpoint: Checkpoint, parts: tuple[str, ...], expected: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape of the parts laid one behind the other, which must be the expected one."""
    found = [checkpoint.shape(name) for name in parts]
    merged = (sum(shape[0] for shape in found if shape), *found[0][1:])
    alike = all(shape and shape[1:] == merged[1:] for shape in found)  # a single number has no first dimension
    if not alike or (expected is not None and merged != tuple(expected)):
        listed = ", ".join(f"{name} {shape}" for name, shape in zip(parts, found, strict=True))
        due = f"the configuration needs {tuple(expected)}" if expected else "they do not fit one behind the other"
        remedy = "the configuration and the weights belong to different models; download both again"
        raise CheckpointError(f"{checkpoint.name}: shapes are {listed}, but {due}: {remedy}")
    return merged
