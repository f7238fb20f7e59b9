"""Compiling the C++ sources for the machine at hand, once, into a cache on disk.

A library's file name is the hash of all that goes into it (sources, flags, compiler, processor, OpenMP runtime)
followed by the hash of the file itself, so that a damaged file is noticed and built again, and processes that build at
the same time cannot harm each other: each renames a finished file into place.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ramet.temporary import temporary_directory

FLAGS = (
    "-O3", "-march=native", "-std=c++17", "-fPIC", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off",
    "-Wno-psabi",
)  # fmt: skip
MACHINES = {  # what an x86-64 processor is taken for, and the flags of /proc/cpuinfo that it has to have
    "portable": ("x86-64", ()),
    "avx2": ("x86-64-v3", ("avx2", "fma")),
    "avx512": ("x86-64-v4", ("avx512f", "avx512bw", "avx512dq", "avx512vl")),
    "avx512-bf16": ("cooperlake", ("avx512_bf16", "avx512_vnni")),
    "amx-bf16": ("sapphirerapids", ("amx_bf16", "amx_tile", "avx512_fp16")),
}  # fmt: skip
_SOURCES = Path(__file__).parent
_TIMEOUT_S = 300

_LOG = logging.getLogger("ramet.ops")


class BuildError(Exception):
    """Why there is no library; never leaves ramet.ops."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler: its command line's beginning, and what `--version` says first."""

    command: tuple[str, ...]
    version: str

    @property
    def is_clang(self) -> bool:
        return "clang" in self.version


def find_compiler() -> Compiler:
    """$CXX, or the first of c++, g++, clang++ that is there. Raises BuildError when none is."""
    wanted = os.environ.get("CXX")
    for candidate in [shlex.split(wanted)] if wanted else [["c++"], ["g++"], ["clang++"]]:
        if candidate and shutil.which(candidate[0]):
            return Compiler(tuple(candidate), _run([*candidate, "--version"]).splitlines()[0])
    raise BuildError(f"no C++ compiler ({wanted or 'c++, g++ or clang++'}) on the path")


def find_openmp(compiler: Compiler) -> Path | None:
    """The OpenMP runtime that torch has loaded into this process and this compiler's code can call, or None.

    Linking against that very file leaves one thread pool in the process. GCC's code runs on LLVM's runtime and
    Intel's too; Clang's code does not run on GCC's.
    """
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    files = {Path(line.split(maxsplit=5)[-1]) for line in maps.read_text().splitlines() if "/" in line}
    names = ("libiomp5", "libomp") if compiler.is_clang else ("libgomp", "libiomp5", "libomp")
    found = sorted(f for f in files if f.name.startswith(names))
    ours = [f for f in found if "torch" in f.parts or "torch.libs" in f.parts]
    return next(iter(ours or found), None)


def flags_for(machine: str) -> tuple[str, ...]:
    """FLAGS for one of MACHINES instead of the processor at hand. Raises BuildError for another name, and for units
    that the processor lacks."""
    if machine not in MACHINES or platform.machine() != "x86_64":
        raise BuildError(f"RAMET_NATIVE={machine} is none of 0, 1, {', '.join(MACHINES)}, the last of x86-64 alone")
    march, units = MACHINES[machine]
    if lacking := sorted(set(units) - set(_processor().split())):
        raise BuildError(f"RAMET_NATIVE={machine}: this processor has no {', '.join(lacking)}")
    return tuple(flag.replace("native", march) if flag.startswith("-march=") else flag for flag in FLAGS)


def cache_directory() -> Path:
    """$RAMET_CACHE, or `ramet` in the user's cache directory, or where that cannot be written, or the user has no home,
    a temporary one that ends with the process, with a warning. Raises OSError where there is no place for that."""
    try:
        named = os.environ.get("RAMET_CACHE")
        directory = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ramet"
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=directory):
            return directory
    except (OSError, RuntimeError) as error:  # the latter of Path.home, for a user that the system does not know
        _warn(str(error))
        return temporary_directory()


@functools.cache
def _warn(why: str) -> None:
    """Once."""
    _LOG.warning("nothing is kept for the next start: %s; RAMET_CACHE names a directory that can be written", why)


def build(
    compiler: Compiler, openmp: Path | None, flags: tuple[str, ...] = FLAGS, directory: Path | None = None
) -> Path:
    """The library's file: from the cache, or compiled now. Raises BuildError with the compiler's first complaint."""
    directory = directory or cache_directory()
    key = _key(compiler, openmp, flags)
    for file in sorted(directory.glob(f"native-{key}-*.so")):
        if file.stem.rpartition("-")[2] == _digest(file.read_bytes()):
            return file
        file.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(dir=directory, prefix="build-") as scratch:
        made = _compile(compiler, openmp, flags, Path(scratch))
        target = directory / f"native-{key}-{_digest(made.read_bytes())}.so"
        made.replace(target)
    return target


def _compile(compiler: Compiler, openmp: Path | None, flags: tuple[str, ...], scratch: Path) -> Path:
    threads = ("-fopenmp",) if openmp else ()
    sources = sorted(_SOURCES.glob("*.cpp"))
    _wait([
        (s, _start([*compiler.command, *flags, *threads, "-c", str(s), "-o", str(scratch / f"{s.stem}.o")], scratch))
        for s in sources
    ])  # fmt: skip
    made = scratch / "native.so"
    libraries = [str(openmp), f"-Wl,-rpath,{openmp.parent}"] if openmp else []
    _run([*compiler.command, "-shared", *(str(scratch / f"{s.stem}.o") for s in sources), *libraries, "-o", str(made)])
    return made


def _start(command: list[str], scratch: Path) -> subprocess.Popen[str]:
    """`scratch` takes what the compiler writes on its way, and leaves where it is killed."""
    return subprocess.Popen(  # noqa: S603 - the user's own compiler
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"TMPDIR": str(scratch)},
    )  # fmt: skip


def _wait(jobs: list[tuple[Path, subprocess.Popen[str]]]) -> None:
    try:
        for source, job in jobs:
            said, _ = job.communicate(timeout=_TIMEOUT_S)
            if job.returncode:
                raise BuildError(f"{source.name} does not compile: {_complaint(said)}")
    except subprocess.TimeoutExpired as e:
        raise BuildError(f"the compiler took more than {_TIMEOUT_S} s") from e
    finally:
        for _, job in jobs:
            job.kill()  # nothing happens to one that has ended
            if job.stdout and not job.stdout.closed:
                job.communicate()


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the user's own compiler
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BuildError(f"{command[0]}: {e}") from e
    if done.returncode:
        raise BuildError(f"{command[0]} failed: {_complaint(done.stdout + done.stderr)}")
    return done.stdout


def _complaint(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no message").strip()


def _key(compiler: Compiler, openmp: Path | None, flags: tuple[str, ...]) -> str:
    parts = [*compiler.command, compiler.version, *flags, str(openmp), platform.machine(), _processor()]
    texts = [f.read_text() for f in sorted([*_SOURCES.glob("*.cpp"), *_SOURCES.glob("*.h")])]
    return _digest("\0".join(parts + texts).encode())


def _processor() -> str:
    """What -march=native depends on: the model and the flags of the first processor."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    first = info.read_text().split("\n\n")[0].splitlines()
    return "\n".join(x for x in first if x.startswith(("flags", "Features", "model", "cpu family", "CPU part")))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]
