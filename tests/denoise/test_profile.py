"""Timings on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ramet.denoise.latency import RowTiming
from ramet.denoise.profile import Profiles, Setup

SETUP = Setup("a1b2", "bfloat16", "Some Card", "0.1")
TIMINGS = (RowTiming(1, 0.0051234567890123), RowTiming(512, 0.0143, 70_000))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    profiles = Profiles(tmp_path / "profiles")
    profiles.keep(SETUP, TIMINGS)
    assert profiles.find(SETUP) == TIMINGS
    (found,) = (tmp_path / "profiles").iterdir()
    return found


def find(file: Path, setup: Setup = SETUP) -> tuple[RowTiming, ...] | None:
    return Profiles(file.parent).find(setup)


def test_none_yet(tmp_path: Path) -> None:
    assert Profiles(tmp_path / "none").find(SETUP) is None


@pytest.mark.parametrize("field", ["model", "dtype", "device", "version"])
def test_of_another_setup(file: Path, field: str) -> None:
    other = replace(SETUP, **{field: "other"})
    assert find(file, other) is None
    (file.parent / other.name).write_bytes(file.read_bytes())
    assert find(file, other) is None, "a file under a wrong name"


def test_a_cut_file_counts_as_none(file: Path) -> None:
    whole = file.read_bytes()
    for n in range(0, len(whole) - 1, 7):
        file.write_bytes(whole[:n])
        assert find(file) is None


def test_a_changed_number_counts_as_none(file: Path) -> None:
    file.write_text(file.read_text().replace("0.0143", "0.0243"))
    assert find(file) is None


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"format": 1}'])
def test_what_is_no_profile_counts_as_none(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert find(file) is None


def test_another_format_counts_as_none(file: Path) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 2}))
    assert find(file) is None


def test_it_is_replaced_and_nothing_is_left_beside_it(file: Path) -> None:
    file.write_bytes(b"damaged")
    Profiles(file.parent).keep(SETUP, TIMINGS[:1])
    assert find(file) == TIMINGS[:1]
    assert list(file.parent.iterdir()) == [file]


def test_a_directory_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        Profiles(tmp_path / "file").keep(SETUP, TIMINGS)
    assert Profiles(tmp_path / "file").find(SETUP) is None
