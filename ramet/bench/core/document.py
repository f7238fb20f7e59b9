"""What a run has found so far, and who watches it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from ramet.bench.core.samples import JsonObject
from ramet.files import replacing

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")


@dataclass(slots=True)
class Document(ABC):
    """The JSON of a run: the model in words, the machine, the settings, and what the bench of that name found."""

    bench: ClassVar[str]
    model: str
    machine: dict[str, str]
    settings: JsonObject

    @abstractmethod
    def found(self) -> JsonObject:
        """What the bench adds to the JSON."""

    @abstractmethod
    def tables(self) -> Iterator[Table]:
        """What people read of it."""

    def about(self) -> dict[str, Any]:
        """What was measured, and on what."""
        return {"model": self.model, **self.machine, **self.settings}

    def as_json(self) -> JsonObject:
        about = {"bench": self.bench, "model": self.model, "machine": self.machine, "settings": self.settings}
        return about | self.found()

    def write(self, path: Path) -> None:
        """Write the JSON beside the file and then in its place. A run does so again and again, so that one that is
        ended at any time keeps what it has."""
        with replacing(path) as made:
            made.write_text(json.dumps(self.as_json(), indent=1, allow_nan=False) + "\n")


def from_row(made: type[T], row: Mapping[str, Any]) -> T:
    """A dataclass from its JSON, which may have more besides. Raises TypeError where a field is missing."""
    names = [field.name for field in fields(made)]  # type: ignore[arg-type]
    return made(**{name: row[name] for name in names if name in row})


@dataclass(frozen=True, slots=True)
class Watch:
    """How a run reports: `step` gets what begins now, `done` what part is through, `save` the document so far."""

    step: Callable[[str], None]
    done: Callable[[float], None]
    save: Callable[[Document], None]

    def passed(self, document: Document, part: float) -> None:
        """So large a part of the run is through, and the document has it."""
        self.save(document)
        self.done(part)


def nobody() -> Watch:
    """A watch that nobody looks at."""
    return Watch(step=lambda _: None, done=lambda _: None, save=lambda _: None)
