"""A server under test: its process, a kept-alive connection to it, and whether it is at rest."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import psutil

from ramet.bench.core.bodies import MODEL
from ramet.bench.core.timing import clocked
from ramet.errors import RametError

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.1
_RESTED_S = 1.0


class DecisionClient:
    """One kept-alive connection. A server may end one that has rested for a few seconds, as it does while the other
    server has its turn: the client then opens it anew, ahead of what is timed."""

    def __init__(self, port: int, timeout_s: float = 600.0) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
        self._used = time.perf_counter()

    def post(self, body: bytes) -> tuple[int, bytes]:
        """Status and body of one decision request."""
        self._http.request("POST", "/v1/systemone", body, {"Content-Type": "application/json"})
        response = self._http.getresponse()
        answer = response.read()
        self._used = time.perf_counter()
        return response.status, answer

    def decide(self, body: bytes) -> tuple[float, bytes]:
        """Milliseconds of one decision, and its body. Raises RametError unless it is answered with 200."""
        if time.perf_counter() - self._used > _RESTED_S:
            self._http.close()
            self._http.connect()
        try:
            ms, (status, answer) = clocked(lambda: self.post(body))
        except (OSError, http.client.HTTPException) as error:
            raise RametError(f"no answer: {type(error).__name__}: {error}") from error
        if status != 200:
            raise RametError(f"status {status}: {answer[:300].decode(errors='replace')}")
        return ms, answer

    def close(self) -> None:
        self._http.close()


class ServerProcess:
    """Runs `command` with {port} filled in, in a session of its own, until the `with` block ends.

    Raises RametError when it ends by itself or does not answer in time; the message has the end of its output.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], timeout_s: float = 600.0) -> None:
        self.name, self._command, self._env, self._timeout_s = name, command, env, timeout_s
        self.port = _free_port()
        self.start_s = 0.0

    def __enter__(self) -> ServerProcess:
        self._log = tempfile.NamedTemporaryFile(prefix=f"{self.name}-", suffix=".log")
        self._started = time.perf_counter()
        command = [word.replace("{port}", str(self.port)) for word in self._command]
        env = {**os.environ, **self._env}
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, env=env, start_new_session=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            session = self._session()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            psutil.wait_procs(session, timeout=20)
        self._process.wait()
        self._log.close()

    def first_answer(self, body: bytes) -> bytes:
        """Ask until answered; `start_s` is then the time from the process's start to the answer."""
        while True:
            if self._process.poll() is not None:
                raise RametError(f"{self.name} ended with {self._process.returncode}:\n{self.output()}")
            if time.perf_counter() - self._started > self._timeout_s:
                raise RametError(f"{self.name} gave no answer in {self._timeout_s:.0f} s:\n{self.output()}")
            connection = DecisionClient(self.port)
            with contextlib.suppress(OSError, http.client.HTTPException):
                status, answer = connection.post(body)
                if status == 200:
                    self.start_s = time.perf_counter() - self._started
                    return answer
                if status not in (404, 503):
                    raise RametError(f"{self.name}: status {status}: {answer[:300].decode(errors='replace')}")
            connection.close()
            time.sleep(0.05)

    def output(self) -> str:
        """The end of what it printed."""
        return Path(self._log.name).read_text(errors="replace")[-3000:]

    def memory_gib(self) -> float:
        """Resident memory of its processes, added up."""
        n_bytes: int = sum(each.memory_info().rss for each in self._session())
        return n_bytes / 2**30

    def rest(self, patience_s: float = 5.0) -> bool:
        """Wait until its processes take no more than a tick of the processor in a tenth of a second; False if never."""
        deadline = time.perf_counter() + patience_s
        before = self._cpu_s()
        while time.perf_counter() < deadline:
            time.sleep(_LOOK_S)
            now = self._cpu_s()
            if now - before <= 1.5 * _TICK_S:
                return True
            before = now
        return False

    def _cpu_s(self) -> float:
        return float(sum(sum(each.cpu_times()[:2]) for each in self._session()))

    def _session(self) -> list[psutil.Process]:
        """The live processes of the session that the server leads."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                if os.getsid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def usage(answer: bytes) -> int:
    """Input tokens that an answer counts."""
    return int(json.loads(answer)["usage"]["input_tokens"])


_RAMET = "from ramet.cli import main; main()"
_SERVE = f"--dtype bfloat16 --alias {MODEL} --host 127.0.0.1 --port {{port}} --no-access-log".split()


def ours(checkpoint: Path, n_threads: int, cache: Path) -> ServerProcess:
    """`ramet serve` out of this environment, with its defaults; what it compiles goes to `cache`."""
    command = [sys.executable, "-c", _RAMET, "serve", "--model", str(checkpoint), *_SERVE]
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(n_threads), "RAMET_CACHE": str(cache)}
    return ServerProcess("ours", command, env)
