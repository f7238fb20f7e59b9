"""How long steps take here, measured when an engine starts, or found on disk where they were measured before."""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from tqdm import tqdm  # type: ignore[import-untyped]

from ramet.denoise.latency import MAX_ERROR, MIN_SIZES, Latency, RowTiming
from ramet.denoise.profile import Profiles, Setup
from ramet.engine.identity import identity
from ramet.errors import InvalidRequest
from ramet.layers.decoder import Decoder
from ramet.ops.native.build import cache_directory
from ramet.version import __version__

_LOGGER = logging.getLogger(__name__)
Step = Callable[[int, int], float]  # seconds of a whole step of (replies, rows of each)

_BUDGET_S = 6.0
_REPEATS = 7
_TRIES = 3  # on a machine that has other work
_FLAT = 1.25  # times the least: while steps take no longer, their rows are nearly free
_SPACING = 32  # rows between points around the knee
_MOST_AROUND = 24  # such points


def latency(
    step: Step, block: int, max_batch: int, max_rows: int, setup: Setup, directory: Path | None = None
) -> Latency:
    """The fit of what was measured on this setup, now or before; `directory` None is the user's cache.

    Where the time of a step does not follow from its rows, as where others use the machine, this measures again, and
    takes the shortest of equal steps. If that does not help, it returns the fit with a warning, and does not keep it.
    Raises InvalidRequest where max_rows are too few.
    """
    setup = replace(setup, version=f"{setup.version}, blocks of {block}, {max_rows} rows at most, of ids that differ")
    profiles = Profiles(directory or cache_directory() / "profiles")
    timings = profiles.find(setup)
    if timings is not None:
        return Latency.fit(timings)
    timings = measure(step, block, max_batch, max_rows)
    if len({timing.rows for timing in timings}) < MIN_SIZES:
        raise InvalidRequest(
            f"steps of {max_rows} rows are too small to choose chunks by what they take: give a chunk_size",
            field="max_round_tokens",
        )
    fit, n_tries = Latency.fit(timings), 1
    while fit.error > MAX_ERROR and n_tries < _TRIES:
        timings = _least(timings, measure(step, block, max_batch, max_rows))
        fit, n_tries = Latency.fit(timings), n_tries + 1
    if fit.error <= MAX_ERROR:
        profiles.keep(setup, timings)
    else:
        _LOGGER.warning(
            "the time of a step is predicted from its rows with an error of %.0f %%: others use this machine, or "
            "a fixed chunk_size suits it better",
            100 * fit.error,
        )
    return fit


def setup_of(model: Decoder) -> Setup:
    """The setup for which timings of this model on this machine hold."""
    name = torch.cuda.get_device_name(model.device) if model.device.type == "cuda" else _processor()
    kernels = ", ".join(f"{op} {why}" for op, why in sorted(model.ops.why.items()))
    version = f"ramet {__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads, {kernels}"
    return Setup(identity(model), str(model.dtype).removeprefix("torch."), name, version)


def describe(fit: Latency) -> str:
    """For people."""
    first, second = (f"{knot:.0f}" for knot in fit.knots)
    slopes = ", ".join(f"{slope * 1e6:.3g}" for slope in fit.slopes)
    return f"{fit.base * 1e3:.3g} ms and {slopes} us a row up to {first}, {second}, beyond; {fit.error:.1%} off"


def measure(
    step: Step, block: int, max_batch: int, max_rows: int, *, budget_s: float = _BUDGET_S
) -> tuple[RowTiming, ...]:
    """Steps of many numbers of rows, each the shortest of several, for other work on a machine only adds. Powers of two
    first, then every _SPACING rows around the knee that those show. Steps that would take too much of the budget are
    left out, from the longest on."""
    ends = time.perf_counter() + budget_s
    coarse = _shapes(_coarse(block, max_rows), block, max_batch, max_rows)
    with tqdm(total=len(coarse) + _MOST_AROUND, desc="Measuring steps", unit="point", disable=None) as bar:
        found: list[RowTiming] = []
        for shape in coarse:
            if len({timing.rows for timing in found}) > MIN_SIZES and _is_dear(found, shape, ends):
                break
            found.append(_timed(step, *shape, budget_s / len(coarse)))
            bar.update()
        known = {timing.rows for timing in found}
        around = [rows for rows in _around(found) if rows not in known]
        for shape in _shapes(around, block, max_batch, max_rows):
            if time.perf_counter() > ends:
                break
            found.append(_timed(step, *shape, budget_s / len(coarse)))
            bar.update()
        bar.update(bar.total - bar.n)
    return tuple(found)


def _least(*measured: Sequence[RowTiming]) -> tuple[RowTiming, ...]:
    """The shortest of the steps with equal rows."""
    found: dict[int, RowTiming] = {}
    for timing in sorted((t for timings in measured for t in timings), key=lambda t: t.seconds, reverse=True):
        found[timing.rows] = timing
    return tuple(found[rows] for rows in sorted(found))


def _timed(step: Step, n_replies: int, n_rows: int, budget_s: float) -> RowTiming:
    """The shortest of a few steps, or of fewer where they are long, after one that warms up."""
    first = step(n_replies, n_rows)
    n = max(2, min(_REPEATS, int(budget_s / max(first, 1e-9))))
    return RowTiming(n_replies * n_rows, min(step(n_replies, n_rows) for _ in range(n)))


def _is_dear(found: list[RowTiming], shape: tuple[int, int], ends: float) -> bool:
    """Whether three steps of a shape, which take at least what as many rows took at the last, end too late."""
    last = found[-1]
    return time.perf_counter() + 3 * last.seconds * shape[0] * shape[1] / last.rows > ends


def _coarse(block: int, most: int) -> list[int]:
    """Powers of two, and within a block numbers between them: a fit needs several, also where little fits."""
    powers = [1 << i for i in range(1, most.bit_length())]
    return sorted({*powers, *(n + n // 2 for n in powers if 1 < n < min(block, most))})


def _shapes(rows: list[int], block: int, max_batch: int, max_rows: int) -> list[tuple[int, int]]:
    """(replies, rows of each) that make up these rows: as few replies as can be, and, where it is possible, four times
    as many too, since fewer rows of more replies are what takes the host longer."""
    found = dict[tuple[int, int], None]()
    for n in rows:
        few = -(-n // block)
        for replies in (few, 4 * few):
            if replies <= max_batch and n % replies == 0 and n // replies >= 2 and n <= max_rows:
                found[replies, n // replies] = None
    return sorted(found, key=lambda shape: shape[0] * shape[1])


def _around(found: list[RowTiming]) -> list[int]:
    """Rows from before the knee to where each surely costs, in multiples of _SPACING: close to each other up to where
    steps are seen to take longer, then four times as far apart."""
    least = min(timing.seconds for timing in found)
    knee = next((t.rows for t in sorted(found, key=lambda t: t.rows) if t.seconds > _FLAT * least), 0)
    if not knee:
        return []
    top = max(knee, 2 * _SPACING)
    spacing = _SPACING * -(-top // (_MOST_AROUND * _SPACING))
    near, far = range(max(top // 4, _SPACING), top, spacing), range(top, 4 * top, 4 * spacing)
    return [*near, *far]


def _processor() -> str:
    """The processor's name, which Linux has in /proc/cpuinfo alone."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
