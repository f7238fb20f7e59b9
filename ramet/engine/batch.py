"""Batch: what runs in one round, and whose it is. Knows no tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from ramet.cache.pages import Path
from ramet.denoise.running import Chunks
from ramet.engine.job import Job, Task
from ramet.merge import merge
from ramet.tree import IntArray, Reads, Tree
from ramet.units import Unit, Units


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A job's part of a unit: the places of its reads, what it holds until the commit (the path that it wrote or read,
    and slots of states by the position behind which they are), the leading rows for the prefix index, and the tasks
    that follow."""

    job: Job
    places: IntArray
    path: Path
    states: list[tuple[int, int]]
    n_keep: int
    then: list[Task]


@dataclass(frozen=True, slots=True, eq=False)
class DecodingStep:
    """A step of running replies: the rows of their chunks, as a round takes them. mask: an id that none of them draws
    (-1: none). states [N]: the slots that they leave their recurrent states in (None: they have none)."""

    jobs: list[Job]
    chunks: Chunks
    units: Units
    mask: int
    states: IntArray | None = None


@dataclass(slots=True, eq=False)
class Batch:
    """The units of a round, the parts of each, in the order of their reads, and the pages to copy before it; and a step
    of the running replies. `leading` are the jobs that bring a piece of a trunk or a prompt into pages, `whole`
    the trees that run in one piece and leave their trunk there. Units get `room` rows, all in all."""

    units: list[Unit] = field(default_factory=list)
    parts: list[list[Part]] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    leading: list[Job] = field(default_factory=list)
    whole: list[Job] = field(default_factory=list)
    n_tokens: int = 0
    step: DecodingStep | None = None
    room: int = 0
    _alike: dict[object, int] = field(default_factory=dict)
    _joined: dict[int, list[Tree]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is anything to run."""
        return bool(self.n_tokens)

    @property
    def left(self) -> int:
        """Rows that units may still get."""
        return self.room - self.n_tokens

    @property
    def jobs(self) -> list[Job]:
        """Those of the units, each once, in order."""
        return list({part.job: None for parts in self.parts for part in parts})

    @property
    def all_jobs(self) -> list[Job]:
        """Those of the units and of the step."""
        return [*self.jobs, *(self.step.jobs if self.step else [])]

    @property
    def has_reads(self) -> bool:
        """Whether a unit's logits are read."""
        return any(len(unit.tree.read_rows) for unit in self.units)

    def has_like(self, job: Job) -> bool:
        """Whether it has rows of another tree, or, where the job writes a reply, of another prompt."""
        return any((part.job.reply is None) == (job.reply is None) for parts in self.parts for part in parts)

    def add(self, unit: Unit, part: Part) -> None:
        """Bring a unit in; one that begins like another, and keeps no more, joins it."""
        at = self._alike.setdefault(_beginning(unit, part), len(self.units))
        if at == len(self.units):
            self.units.append(unit)
            self.parts.append([part])
            self.n_tokens += unit.tree.n_tokens
            return
        self._joined.setdefault(at, [self.units[at].tree]).append(unit.tree)
        self.parts[at].append(replace(part, n_keep=0))  # the first of them keeps the rows for all
        self.n_tokens += unit.tree.n_tokens - int(unit.tree.lengths[0])

    def seal(self, step: DecodingStep | None) -> None:
        """Merge the trees of the units that joined, and add the step: the batch is complete."""
        for at, trees in self._joined.items():
            self.units[at] = replace(self.units[at], tree=merge(trees))
        self.step = step
        self.n_tokens = sum(unit.tree.n_tokens for unit in self.units) + (0 if step is None else len(step.units.tokens))

    def split(self, results: list[Reads]) -> Iterator[tuple[Part, Reads]]:
        """Each part and its share of the units' reads."""
        for parts, reads in zip(self.parts, results, strict=True):
            if len(parts) == 1:
                yield parts[0], reads
                continue
            at = 0
            for part in parts:
                yield part, reads.part(at, at + len(part.places))
                at += len(part.places)


def _beginning(unit: Unit, part: Part) -> object:
    """Equal for units of one tenant that keep as much, whose first roots are the same rows after the same rows, with
    forks at the same places: these decide in which order a row's keys are added up."""
    if not part.n_keep or part.then or part.job.alone or unit.tree.steps:
        return object()
    root = unit.tree.tokens[: unit.tree.lengths[0]].tobytes()
    context = (unit.n_context, unit.context.tobytes(), unit.state)
    place = (unit.continues, unit.forks.tobytes(), int(unit.tree.blocks[0]))
    return (part.job.salt, part.job.n_keep, *context, *place, root)
