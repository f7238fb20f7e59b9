"""`ramet doctor`: it tells what it finds, and what fails is a finding."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from ramet import cli
from ramet.cli import doctor
from ramet.version import __version__


def test_json() -> None:
    pytest.importorskip("torch")
    result = CliRunner().invoke(cli.main, ["doctor", "--json"], catch_exceptions=False)
    told = json.loads(result.stdout)
    assert (result.exit_code, told["ok"]) == (0, True), told
    by_name = {(finding["section"], finding["name"]): finding for finding in told["findings"]}
    assert {section for section, _ in by_name} == set(doctor.SECTIONS)
    assert by_name["versions", "ramet"]["value"] == __version__
    for key in [
        ("hardware", "processors"),
        ("hardware", "memory"),
        ("choices", "dtype"),
        ("kernels", "native"),
        ("models", "smollm2"),
    ]:
        assert by_name[key]["value"]
    ops = {"attention", "norm", "linear", "head", "conv", "gated_delta", "experts", "route"}
    assert {name for section, name in by_name if section == "kernels"} == ops | {"native", "host"}


def test_a_missing_package_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("click", "no-such-package"))
    monkeypatch.setattr(doctor, "SECTIONS", {"versions": doctor.versions})
    result = CliRunner().invoke(cli.main, ["doctor"])
    assert result.exit_code == 1
    assert "broken: not installed" in result.stdout


def test_missing_weights_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    from fixtures.packages import NAME, split_model

    from ramet.weights import known

    monkeypatch.setattr(known, "KNOWN", {NAME: split_model()})
    monkeypatch.setattr("ramet.weights.named.KNOWN", known.KNOWN)
    assert next(doctor.models()) == (NAME, "not here, 0 MB", "note")


def test_what_fails_is_told_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Iterator[tuple[str, str, doctor.State]]:
        yield "first", "fine", "ok"
        raise OSError("libcudart.so is missing")

    def fine() -> Iterator[tuple[str, str, doctor.State]]:
        yield "second", "fine", "note"

    monkeypatch.setattr(doctor, "SECTIONS", {"a": failing, "b": fine})
    assert doctor.examine() == [
        doctor.Finding("a", "error", "OSError: libcudart.so is missing", "broken"),
        doctor.Finding("b", "second", "fine", "note"),
    ]
    assert CliRunner().invoke(cli.main, ["doctor"]).exit_code == 1
