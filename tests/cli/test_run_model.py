"""A run goes on with the very model that began it, whatever it is called and wherever it lies."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fixtures.tiny import llama
from safetensors.torch import load_file, save_file

from ramet import cli
from ramet.rows import read_rows
from tests.cache.test_disk_identity import setting

QUESTION = {"q": {"type": "noul", "instructions": "Is it late?"}}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(llama(), tmp_path / "model"))


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"state": f"state {n}", "questions": QUESTION}) + "\n" for n in range(3)))
    return path


def run(rows: Path, model: Path, *more: str) -> Result:
    out = rows.with_name("out.jsonl")
    given = ["run", str(rows), "-o", str(out), "-m", str(model), "--device", "cpu", "--cache-bytes", str(1 << 24)]
    dtype = () if "--dtype" in more else ("--dtype", "float32")
    return CliRunner().invoke(cli.main, [*given, *dtype, *more], catch_exceptions=False)


def cut(rows: Path) -> list[str]:
    """Leave the head and the first row of the output: its rows."""
    out = rows.with_name("out.jsonl")
    head, *lines = out.read_text().splitlines()
    out.write_text(f"{head}\n{lines[0]}\n")
    return lines


def one_weight(model: Path) -> None:
    file = model / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] += 1e-3
    save_file(tensors, file, metadata={"format": "pt"})


def a_token(model: Path) -> None:
    file = model / "tokenizer.json"
    told: dict[str, Any] = json.loads(file.read_text())
    told["model"]["merges"] = told["model"]["merges"][:-1]
    file.write_text(json.dumps(told))


def a_template(model: Path) -> None:
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


@pytest.mark.parametrize("change", [one_weight, setting("rms_norm_eps", 1e-3), a_token, a_template])
def test_another_model_in_the_same_place_is_refused(model: Path, rows: Path, change: Any) -> None:
    assert run(rows, model).exit_code == 0
    cut(rows)
    change(model)
    result = run(rows, model)
    assert result.exit_code == 2
    assert "was made with another model; --overwrite starts anew" in " ".join(result.stderr.split())


def test_the_same_model_in_another_place_goes_on(model: Path, rows: Path, tmp_path: Path) -> None:
    assert run(rows, model).exit_code == 0
    whole = cut(rows)
    moved = model.rename(tmp_path / "elsewhere")
    result = run(rows, moved)
    assert result.exit_code == 0
    assert "1 of 3 rows are there; going on behind them" in result.stderr
    found = [row["request"] for row in read_rows(rows.with_name("out.jsonl"))]
    assert found == [json.loads(line)["request"] for line in whole]


def test_what_auto_comes_to_is_what_counts(model: Path, rows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with other units resolves it otherwise; saying the same in full is no change."""
    monkeypatch.setattr("ramet.engine.settings.has_bfloat16_units", lambda: False)
    assert run(rows, model, "--dtype", "auto").exit_code == 0
    cut(rows)
    assert run(rows, model, "--dtype", "float32").exit_code == 0
    cut(rows)
    monkeypatch.setattr("ramet.engine.settings.has_bfloat16_units", lambda: True)
    assert "with other options" in " ".join(run(rows, model, "--dtype", "auto").stderr.split())


def test_the_fingerprint_is_one_everywhere(model: Path, rows: Path) -> None:
    """In rows, in what `agree` tells of them, and of an engine."""
    assert run(rows, model).exit_code == 0
    out = rows.with_name("out.jsonl")
    fingerprint, _ = cli.identified(str(model))
    with cli.load_engine(str(model), device="cpu", dtype="float32", cache_bytes=1 << 24) as engine:
        assert engine.describe()["fingerprint"] == fingerprint
    assert {row["request"].split("-")[1] for row in read_rows(out)} == {fingerprint}
    assert json.loads(out.read_text().splitlines()[0])["run"]["model_hash"] == fingerprint
    told = rows.with_name("told.json")
    result = CliRunner().invoke(cli.main, ["agree", str(out), str(out), "--json", str(told)], catch_exceptions=False)
    assert result.exit_code == 0
    assert result.stdout.count(f"model {fingerprint[:8]}") == 2
    assert json.loads(told.read_text())["a"]["fingerprints"] == [fingerprint]
