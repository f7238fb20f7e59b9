"""Replies of two runs, and raw reads: where they part, how far their log-probabilities moved, and what is no reply."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine
from fakes.stub_writer import StubWriter, written

from ramet import cli
from ramet.agree.reply import Positions, WrittenReply
from ramet.rows.write import write_rows

LN2 = math.log(2)


def agree(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, ["agree", *map(str, arguments)], catch_exceptions=False)


def told(result: Result) -> str:
    return " ".join(result.stderr.split())


def completion(*positions: dict[str, float]) -> dict[str, Any]:
    """Each position's log-probabilities, its own token's first."""
    return {
        "tokens": [next(iter(p)) for p in positions], "token_logprobs": [next(iter(p.values())) for p in positions],
        "top_logprobs": list(positions),
    }  # fmt: skip


def chat(*positions: dict[str, float]) -> dict[str, Any]:
    return {
        "content": [
            {"token": next(iter(p)), "logprob": next(iter(p.values())),
             "top_logprobs": [{"token": token, "logprob": value} for token, value in p.items()]}
            for p in positions
        ]
    }  # fmt: skip


def row(id_: Any, text: str, logprobs: Any = None, finish: str = "stop") -> dict[str, Any]:
    found = {"id": id_, "model": "m", "text": text, "finish_reason": finish}
    return found if logprobs is None else found | {"logprobs": logprobs}


def compare(directory: Path, a: list[dict[str, Any]], b: list[dict[str, Any]], *arguments: str) -> Any:
    for name, rows in (("a", a), ("b", b)):
        write_rows(directory / f"{name}.jsonl", rows)
    result = agree(directory / "a.jsonl", directory / "b.jsonl", "--json", directory / "o.json", *arguments)
    assert result.exit_code == 0, result.stderr
    return json.loads((directory / "o.json").read_text()), result.stdout


@pytest.mark.parametrize("form", [chat, completion])
def test_positions_by_hand(tmp_path: Path, form: Any) -> None:
    a = [row(1, "ab", form({"a": -LN2, "b": -2 * LN2}, {"b": -LN2, "c": -LN2 - 0.1})),
         row(2, "xyz", form({"x": -0.5}, {"y": -1.0}, {"z": -1.0}))]  # fmt: skip
    b = [row(1, "ab", form({"a": -2 * LN2, "b": -LN2}, {"b": -LN2, "c": -LN2 - 0.1})),
         row(2, "xwz", form({"x": -0.5}, {"w": -0.5, "y": -1.25}, {"z": -9.0}), finish="length")]  # fmt: skip
    found, printed = compare(tmp_path, a, b)
    first, second = found["texts"]
    assert (first["changed"], first["common"], first["longest"]) == (False, 2, 2)
    assert first["nats"] == pytest.approx([LN2, 0.0])
    assert first["probabilities"] == pytest.approx([0.25, 0.0])
    assert (second["changed"], second["common"], second["nats"]) == (True, 1, [0.0, 0.25])  # z follows other tokens
    assert found["all"] is None
    replies = found["replies"]
    assert (replies["equal"]["count"], replies["finished"]["count"], replies["equal"]["of"]) == (1, 1, 2)
    assert replies["common"]["value"] == pytest.approx((1 + 1 / 3) / 2)
    moves = replies["moves"]
    assert (moves["likeliest"]["count"], moves["likeliest"]["of"]) == (2, 4)
    assert moves["mean_nats"]["value"] == pytest.approx((LN2 + 0.25) / 4)
    assert (moves["largest_nats"], moves["largest_probability"]) == pytest.approx((LN2, 0.25))
    assert "compared 2 replies" in " ".join(printed.split())
    (line,) = [line.split() for line in printed.splitlines() if line.split()[:1] == ["2"] and "characters" in line]
    assert line == ["2", "1", "characters", "yz", "wz"]


def test_texts_alone(tmp_path: Path) -> None:
    rows = [row(1, "🦩 one"), row(2, ""), row(3, "long")]
    others = [row(1, "🦩 on two"), row(2, ""), row(3, "")]
    found, printed = compare(tmp_path, rows, others)
    assert [(each["common"], each["longest"]) for each in found["texts"]] == [(4, 8), (0, 0), (0, 4)]
    assert found["replies"]["moves"] is None
    assert "(ends)" in printed
    assert "mean nats" not in printed
    same, printed = compare(tmp_path, rows, rows)
    assert same["replies"]["equal"]["share"] == 1.0
    assert "changed replies" not in printed


def test_decisions_and_replies_together(tmp_path: Path) -> None:
    decided = {"id": "d", "answers": {"q": {"type": "noul", "noul": 0.9}}}
    found, printed = compare(tmp_path, [decided, row(1, "a")], [decided, row(1, "b")])
    assert (found["all"]["decisions"], found["replies"]["equal"]["of"], found["rows"]["compared"]) == (1, 1, 2)
    assert "1 row, 1 question, 1 decision, 1 reply" in printed
    result = agree(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--fail-under", "0.6")
    assert (result.exit_code, result.stderr) == (1, "agreement 0.5 is below 0.6\n")


def test_an_answer_beside_a_text(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [{"id": 1, "answers": {"q": {"type": "noul", "noul": 0.9}}}])
    write_rows(tmp_path / "b.jsonl", [row(1, "a")])
    result = agree(tmp_path / "a.jsonl", tmp_path / "b.jsonl")
    assert result.exit_code == 2
    assert "one has answers, the other a text; compare two runs of the same rows" in told(result)


def test_no_picture_of_replies(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [row(1, "a")])
    result = agree(tmp_path / "a.jsonl", tmp_path / "a.jsonl", "--plot", tmp_path / "p.png", "--json", tmp_path / "o")
    assert result.exit_code == 2
    assert "--plot draws decisions, and these runs have replies alone" in told(result)
    assert not (tmp_path / "o").exists()


def test_control_characters_are_spelled_out(tmp_path: Path) -> None:
    _, printed = compare(tmp_path, [row(1, "a\x1b[31m\n")], [row(1, "a[bold]")])
    assert "\x1b" not in printed
    assert "[bold]" in printed


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        ([], "are those of no chat and of no completion"),
        ({}, "are those of no chat and of no completion"),
        ({"tokens": ["a"], "token_logprobs": []}, "are those of no chat and of no completion"),
        ({"content": [{"token": "a"}]}, "are those of no chat and of no completion"),
        ({"tokens": ["a"], "token_logprobs": [0.5]}, "'a' has the log-probability 0.5"),
        ({"tokens": ["a"], "token_logprobs": [None]}, "'a' has the log-probability None"),
        ({"tokens": ["a"], "token_logprobs": [float("nan")]}, "'a' has the log-probability nan"),
    ],
)
def test_what_is_no_reply(logprobs: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WrittenReply.parse(row(1, "a", logprobs))


def test_a_line_whose_reply_is_none(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.jsonl", [row(1, "a"), {"id": 2, "text": 7}])
    result = agree(tmp_path / "a.jsonl", tmp_path / "a.jsonl")
    assert "a.jsonl, line 2: the reply cannot be read: its `text` is no text" in told(result)


def test_the_lowest_probabilities_are_alike() -> None:
    """What stands for minus infinity on both sides is no change."""
    reply = WrittenReply.parse(row(1, "a", completion({"a": 0.0, "b": -9999.0})))
    found = Positions.of(reply, reply)
    assert (found.nats, found.probabilities, found.moved, found.share) == ((0.0,), (0.0,), 0, 1.0)


@pytest.mark.parametrize("ending", [".jsonl.gz", ".csv", ".parquet"])
def test_runs_of_prompts_in_any_form(
    tmp_path: Path, cli_engine: CliEngine, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """`ramet run`, twice, the second time in another form, with log-probabilities."""
    monkeypatch.setattr("ramet.cli.identified", CliEngine.identified)
    cli_engine.text = StubWriter(kind="masks", reply=written("ab 🦩the cab"))
    rows = [{"id": i, "prompt": "ab", "logprobs": 1, "max_tokens": 3 + i} for i in range(3)]
    write_rows(tmp_path / "rows.jsonl", [*rows, {"id": 3, "prompt": []}])
    outputs = [tmp_path / "a.jsonl", tmp_path / f"b{ending}"]
    for output in outputs:
        words = ["run", str(tmp_path / "rows.jsonl"), "-o", str(output)]
        assert CliRunner().invoke(cli.main, words, catch_exceptions=False).exit_code == 0
    result = agree(*outputs, "--json", tmp_path / "o.json", "--fail-under", "1")
    assert result.exit_code == 0, result.stdout
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["differences"] == []
    assert found["replies"]["equal"]["share"] == 1.0
    assert found["replies"]["moves"]["likeliest"]["of"] == 3 + 4 + 5
    assert [failed["index"] for failed in found["rows"]["failed"]] == [3]
    assert "the runs differ in nothing that they say of themselves" in result.stdout
