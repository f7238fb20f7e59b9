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
    """In the order of the heads; None where a run has none. Of what one run alone speaks there is one difference."""
    return list(_differences("", a, b)) if a and b else None


def _differences(name: str, a: Sequence[Any], b: Sequence[Any]) -> Iterator[Difference]:
    """Of what the heads of each run say under a name."""
    if _are_said(a) and _are_said(b):
        for step in dict.fromkeys(step for said in (*a, *b) for step in said or ()):
            inner = ([None if said is None else said.get(step) for said in side] for side in (a, b))
            yield from _differences(f"{name}.{step}" if name else step, *inner)
    elif (ours := _once(a)) != (theirs := _once(b)):
        yield Difference(name, ours, theirs)


def _are_said(values: Sequence[Any]) -> bool:
    """Whether what a run says has names of its own."""
    return any(values) and all(value is None or isinstance(value, Mapping) for value in values)


def _once(values: Sequence[Any]) -> tuple[Any, ...]:
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return tuple(found)
