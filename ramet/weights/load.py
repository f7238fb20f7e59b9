"""Loading: merges a checkpoint's tensors into ours, and copies each number once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from ramet.errors import CheckpointError
from ramet.families.weight import Weight
from ramet.layers.shape import ModelShape
from ramet.weights.checkpoint import Checkpoint
from ramet.weights.fingerprint import Fingerprint
from ramet.weights.finite import check_finite

_LISTED = 8  # names in an error
_MOST_THREADS = 16


def load_onto(
    device: torch.device, checkpoint: Checkpoint, shape: ModelShape, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], str]:
    """Load a checkpoint's weights onto a device, as its family plans them for the shape. Returns them and the
    checkpoint's fingerprint. Raises CheckpointError."""
    family = checkpoint.family
    plan = family.plan(shape, checkpoint.names)
    unused = (*family.unused, *family.idle(shape, checkpoint.names))
    with Fingerprint(checkpoint.files) as fingerprint:  # while they are read
        weights = load(checkpoint, plan, dtype=dtype, unused=unused)
        for name, weight in plan.items():
            made = weights[name] if weight.transform is None else weight.transform(weights[name])
            weights[name] = made.to(device)
        return weights, fingerprint.result()


def load(
    checkpoint: Checkpoint,
    plan: Mapping[str, Weight],
    *,
    dtype: torch.dtype,
    unused: tuple[str, ...] = (),
    progress: bool | None = None,
) -> dict[str, torch.Tensor]:
    """Load every weight of `plan` into its own contiguous memory, before its transform; in `dtype` unless it is wide.

    unused: the beginnings of names that the checkpoint may have and that are ignored. progress: whether to show a bar
    on stderr; None shows one on a terminal. Strict both ways: raises CheckpointError for a name of the plan that is
    missing, a name of the checkpoint that nothing uses, shapes that do not fit, and numbers that are not finite.
    """
    _check_names(checkpoint, plan, unused)
    for weight in plan.values():
        _check_shape(checkpoint, weight)
    shown = None if progress is None else not progress  # tqdm's None: only on a terminal
    with _single_threads() as pool:
        read = pool.map(lambda weight: _read(checkpoint, weight, dtype), plan.values())
        bar = tqdm(read, desc=f"Loading {checkpoint.name}", total=len(plan), unit="tensor", disable=shown)
        return dict(zip(plan, bar, strict=True))


@contextlib.contextmanager
def _single_threads() -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch has, in each of which it has one. Operations as short as those that unpack a weight take
    several times as long on all of its threads at once, which wait for one another, where other programs run too."""
    n_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(min(n_threads, _MOST_THREADS), "ramet-load", torch.set_num_threads, (1,))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(n_threads)  # what threads begin with that come later


def _read(checkpoint: Checkpoint, weight: Weight, dtype: torch.dtype) -> torch.Tensor:
    """One of ours, of all its parts."""
    made, row = torch.empty(weight.shape, dtype=torch.float32 if weight.wide else dtype), 0
    for name in weight.parts:
        end = row + checkpoint.shape(name)[0]
        checkpoint.read(name, made[row:end])
        check_finite(made[row:end], name, checkpoint.name)
        row = end
    return made


def _check_names(checkpoint: Checkpoint, plan: Mapping[str, Weight], unused: tuple[str, ...]) -> None:
    used = {name for weight in plan.values() for name in weight.parts}
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


def _check_shape(checkpoint: Checkpoint, weight: Weight) -> None:
    """Raise CheckpointError for parts that, concatenated, do not have the weight's shape."""
    found = [checkpoint.shape(name) for name in weight.parts]
    merged = (sum(shape[0] for shape in found if shape), *found[0][1:])
    alike = all(shape and shape[1:] == merged[1:] for shape in found)  # a single number has no first dimension
    if not alike or merged != weight.shape:
        listed = ", ".join(f"{name} {shape}" for name, shape in zip(weight.parts, found, strict=True))
        due = f"the configuration needs {weight.shape}"
        remedy = "the configuration and the weights belong to different models; download both again"
        raise CheckpointError(f"{checkpoint.name}: shapes are {listed}, but {due}: {remedy}")
