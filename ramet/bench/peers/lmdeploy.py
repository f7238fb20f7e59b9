"""LMDeploy on the same random weights, beside ours on one device: its steps of whole blocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ramet.bench.peers import lmdeploy_driver
from ramet.errors import RametError

_SHORT, _LONG = 32, 64  # tokens of a reply: one commits a step, so as many steps, and one more a block
_MANY = 32  # sequences from which on replies are short
_LOGGED = 4000  # characters of what it wrote
# The checkpoint is local, and modules beside the driver are not to be taken for others of their names.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}


class LMDeployPeer:
    """A process of `python`, which has LMDeploy; ended with the `with` block. Raises RametError where it does not
    start."""

    def __init__(
        self, python: Path, checkpoint: Path, *, block: int, max_batch: int, n_prompt: int, program: Path | None = None
    ) -> None:
        """n_prompt: tokens of the longest prompt. program: what runs, in place of `lmdeploy_driver`."""
        driver = str(program or lmdeploy_driver.__file__)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [str(python), driver, str(checkpoint), str(block), str(max_batch), str(n_prompt + _LONG)]
        env = {**os.environ, **_ENVIRONMENT}
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=env
        )
        first = self._read()
        self.name, self.start_s = str(first["name"]), float(first["start_s"])

    def steps(self, batch: int, n_prompt: int) -> list[float]:
        """Seconds of steps in which all of a batch decode. Raises RametError where there are none."""
        n_tokens = _SHORT if batch > _MANY else _LONG
        assert self._process.stdin is not None
        try:
            print(json.dumps({"batch": batch, "n_prompt": n_prompt, "n_tokens": n_tokens}), file=self._process.stdin)
            self._process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        if not (seconds := self._read()["seconds"]):
            raise RametError(f"no figures: lmdeploy never had all of {batch} replies in a step")
        return [float(each) for each in seconds]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._log.close()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return json.loads(line)

    def _ended(self) -> RametError:
        self._process.kill()
        self._process.wait()
        self._log.seek(0)
        return RametError(f"lmdeploy ended: {self._log.read()[-_LOGGED:].strip() or 'it wrote nothing'}")


def python_with_lmdeploy(given: Path | None) -> Path:
    """The given one, or ours; a path that does not depend on where we are, links not followed. Raises
    RametError where it has no LMDeploy."""
    python = (given or Path(sys.executable)).absolute()
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec('lmdeploy') is None)"
    if subprocess.run([str(python), "-c", code], check=False).returncode:  # noqa: S603
        raise RametError(f"{python} has no lmdeploy: give one that has with --lmdeploy-python")
    return python
