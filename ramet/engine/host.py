"""Host: what the processor beside a device does for each round. Chosen once, at load, by `host_for`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ramet.cache.tables import Tables
from ramet.denoise.running import Chunks, Mode
from ramet.denoise.running_blocks import RunningBlocks
from ramet.engine.compiled_blocks import CompiledBlocks
from ramet.engine.laying import compiled_lay, plain_lay
from ramet.engine.staging import Layout, Staging
from ramet.errors import InvalidRequest
from ramet.ops import kernels
from ramet.ops.native import Library, library, status
from ramet.ops.native.pack import pack
from ramet.ops.native.plan import Lists
from ramet.ops.planning import Planner
from ramet.round import Round
from ramet.round import pack as plain_pack
from ramet.tree import IntArray
from ramet.units import Units


class Host:
    """Packs rounds, and lays and takes the steps of running replies; for the passes of a card it also makes work lists
    and stages rounds. This one, in Python and NumPy, is for a CPU without a compiler, whose ops take no lists and whose
    passes are not recorded. how: the way in which it works, for people."""

    how = "Python and NumPy"

    def pack(self, units: Units, multiple: int = 1) -> Round:
        """A round of units, its rows filled up to a multiple."""
        return plain_pack(units, multiple)

    def lay(
        self, tables: Tables, chunks: Chunks, begun: IntArray | None = None, states: IntArray | None = None
    ) -> Units | None:
        """A step of running replies as units: see `engine.laying.plain_lay`."""
        return plain_lay(tables, chunks, begun, states)

    def blocks(self, block: int, mask: int, mode: Mode = "chunk", ahead: bool = False) -> RunningBlocks:
        """What steps replies in blocks of masks."""
        return RunningBlocks(block, mask, mode, ahead)

    def lists(self, planners: Sequence[Planner]) -> Callable[[Round], dict[str, IntArray]]:
        """What makes the work lists of a round, by name. Raises InvalidRequest where this host makes none."""
        if planners:
            raise InvalidRequest(f"work lists are made by ramet's C++, which is {status()[1]}", field="ops")
        return _none

    def staging(self, planners: Sequence[Planner], layouts: Sequence[Layout]) -> Staging:
        """What writes a round with its work lists into a buffer, in the first of the layouts that holds it. Raises
        InvalidRequest where this host cannot."""
        raise InvalidRequest(f"rounds are staged by ramet's C++, which is {status()[1]}", field="ops")


class CompiledHost(Host):
    """A Host with equal results in compiled code, which takes a small part of the time."""

    def __init__(self, found: Library) -> None:
        self._found, self.how = found, f"C++ ({found.isa})"

    def pack(self, units: Units, multiple: int = 1) -> Round:
        """See `Host`."""
        return pack(self._found, units, multiple)

    def lay(
        self, tables: Tables, chunks: Chunks, begun: IntArray | None = None, states: IntArray | None = None
    ) -> Units | None:
        """See `Host`."""
        return compiled_lay(self._found, tables, chunks, begun, states)

    def blocks(self, block: int, mask: int, mode: Mode = "chunk", ahead: bool = False) -> RunningBlocks:
        """See `Host`."""
        return CompiledBlocks(self._found, block, mask, mode, ahead)

    def lists(self, planners: Sequence[Planner]) -> Callable[[Round], dict[str, IntArray]]:
        """See `Host`."""
        return self._lists(planners) if planners else _none

    def staging(self, planners: Sequence[Planner], layouts: Sequence[Layout]) -> Staging:
        """See `Host`."""
        return Staging(self._lists(planners), layouts)

    def _lists(self, planners: Sequence[Planner]) -> Lists:
        return Lists(self._found, [each.task for each in planners])


def _none(_: Round) -> dict[str, IntArray]:
    return {}


def host_for(device: torch.device) -> Host:
    """Compiled where there is a compiler, or for a card what a bundle brings. Raises InvalidRequest for a card that has
    neither."""
    if device.type == "cuda":
        return CompiledHost(kernels.host_library(device))
    found = library()
    return Host() if found is None else CompiledHost(found)
