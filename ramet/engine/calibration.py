"""Which calibration an engine applies: the one that it is given, or else the checkpoint's own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from ramet.decide.calibration import Calibration, read_calibration
from ramet.decide.decider import Decider
from ramet.errors import CheckpointError, InvalidRequest
from ramet.weights import Checkpoint
from ramet.weights.beside import CALIBRATION

Given = str | Path | Literal[False] | None  # False: none, nor the checkpoint's own


@dataclass(frozen=True, slots=True)
class ChosenCalibration:
    """`calibration` may be None: then there is none, and nothing is done. is_given: it is not the checkpoint's own."""

    calibration: Calibration | None
    is_given: bool

    @classmethod
    def of(cls, source: str | Path, checkpoint: Checkpoint, given: Given) -> Self:
        """Read, and not yet compared with the model. Raises InvalidRequest for a given one that cannot be read,
        CheckpointError for the checkpoint's own."""
        if given is False:
            return cls(None, is_given=False)
        if given is None:
            return cls(_own(source, checkpoint), is_given=False)
        try:
            return cls(read_calibration(Path(given)), is_given=True)
        except CheckpointError as error:
            raise InvalidRequest(str(error), field="calibration") from error

    def check(self, decider: Decider, fingerprint: str | None = None) -> None:
        """Raise InvalidRequest where a given one is of another model or of another way to ask, and CheckpointError
        where the checkpoint's own is. Without the model's fingerprint the way to ask alone is compared."""
        if self.calibration is None:
            return
        try:
            self.calibration.check(decider.settings.method, decider.asked, fingerprint)
        except ValueError as error:
            if self.is_given:
                raise InvalidRequest(str(error), field="calibration") from error
            raise CheckpointError(f"the checkpoint's own {CALIBRATION} {error}, or move it away") from error

    def apply(self, decider: Decider, fingerprint: str) -> None:
        """Raises as `check`."""
        self.check(decider, fingerprint)
        if self.calibration is not None:
            decider.calibrate(self.calibration)


def _own(source: str | Path, checkpoint: Checkpoint) -> Calibration | None:
    """That in a checkpoint's directory. Of a GGUF file that was named itself, what lies beside it may be another's."""
    files = (path / CALIBRATION for path in map(Path, (*checkpoint.paths, source)) if path.is_dir())
    own = next((file for file in files if file.exists() or file.is_symlink()), None)
    try:
        return None if own is None else read_calibration(own)
    except CheckpointError as error:
        raise CheckpointError(f"{error}, and name it, or move this file away to ask the bare model") from error
