"""`--calibration` of `run` and `decide`: what is said, what a run is marked with, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import request
from fixtures.calibrations import of_engine, written
from fixtures.tiny_engine import checkpoint, tiny_engine

from ramet import cli
from ramet.rows import read_rows

SMALL = ["--device", "cpu", "--dtype", "float32", "--cache-bytes", str(1 << 24)]


@pytest.fixture(scope="module")
def data() -> dict[str, Any]:
    with tiny_engine() as engine:
        return of_engine(engine)


def ramet(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, [*map(str, arguments)])


def test_a_run_says_and_is_marked_with_it(data: dict[str, Any], tmp_path: Path) -> None:
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text(f"{request(0)}\n{request(1)}\n")
    path = written(tmp_path / "c.json", data)
    given = ("run", rows, "-o", out, "-m", checkpoint("qwen3"), *SMALL)
    done = ramet(*given, "--calibration", path)
    assert done.exit_code == 0, done.stderr
    found = list(read_rows(out))
    assert f"calibration: {path}, {found[0]['x_calibration']}, fitted on 100 rows" in done.stderr
    assert [row["answers"]["q"]["x_scaled"]["by"] for row in found] == ["type"] * 2
    refused = ramet(*given)
    assert refused.exit_code == 2
    assert "was made with other options" in " ".join(refused.stderr.split())


def test_one_of_another_model(data: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path / "c.json", data | {"model": data["model"] | {"fingerprint": "0" * 32}})
    asked = ("decide", "--state", "x", "--noul", "q=Is it?", "-m", checkpoint("qwen3"), *SMALL)
    done = ramet(*asked, "--calibration", path)
    assert done.exit_code == 2
    assert "calibration: is of another model" in done.stderr
    assert "fit one with `ramet calibrate` of this model" in " ".join(done.stderr.split())


def test_one_of_another_method(data: dict[str, Any], tmp_path: Path) -> None:
    """The model is loaded for the method that is given beside it."""
    with tiny_engine(method="options") as engine:
        path = written(tmp_path / "c.json", of_engine(engine))
    asked = ("decide", "--state", "x", "--noul", "q=Is it?", "-m", checkpoint("qwen3"), *SMALL, "--json")
    refused = ramet(*asked, "--calibration", path)
    assert refused.exit_code == 2
    assert 'load it with method="options" (--method)' in " ".join(refused.stderr.split())
    done = ramet(*asked, "--calibration", path, "--method", "options")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["answers"]["q"]["x_scaled"]["by"] == "type"
    rows, out = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows.write_text(f"{request(0)}\n")
    given = ("run", rows, "-o", out, "-m", checkpoint("qwen3"), *SMALL, "--calibration", path, "--method", "options")
    assert ramet(*given).exit_code == 0
    assert "x_scaled" in out.read_text()


def test_a_server_has_its_own(tmp_path: Path) -> None:
    path = written(tmp_path / "c.json", {})
    done = ramet("decide", "--state", "x", "--noul", "q=Is it?", "--url", "http://localhost:1", "--calibration", path)
    assert done.exit_code == 2
    assert "--calibration is the server's to say" in done.stderr
