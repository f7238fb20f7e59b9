"""What two runs differ in, by the heads of their files: versions, machines, models, settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Head = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that two runs' heads say otherwise: its name, steps parted by dots, and what each run's heads say of
    it, which are several where a run was gone on with elsewhere. None: nothing."""

    name: str
    a: tuple[Any, ...]
    b: tuple[Any, ...]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "a": list(self.a), "b": list(self.b)}


def differences(a: Sequence[Head], b: Sequence[Head]) -> list[Difference] | None:
    """In the order of the heads. None where a run has none."""
    if not (a and b):
        return None
    ours, theirs = ([dict(_entries(head)) for head in heads] for heads in (a, b))
    names = dict.fromkeys(name for entries in (*ours, *theirs) for name in entries)
    found = (Difference(name, _values(ours, name), _values(theirs, name)) for name in names)
    return [each for each in found if each.a != each.b]


def _values(heads: Sequence[Mapping[str, Any]], name: str) -> tuple[Any, ...]:
    """What the heads say, each once."""
    found: list[Any] = []
    for head in heads:
        if head.get(name) not in found:
            found.append(head.get(name))
    return tuple(found)


def _entries(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for step, inner in value.items():
            yield from _entries(inner, f"{name}.{step}" if name else str(step))
    else:
        yield name, value
