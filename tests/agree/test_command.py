"""`ramet agree` from end to end: what is printed, written and drawn, its exit codes, and every kind of bad input."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine
from fixtures.doc_page import section
from fixtures.import_graph import reached

from ramet import cli
from ramet.cli.agree import PICTURES

PAGE = "docs/agree.md"
MISSING = "state: Field required (and 1 more)"


def answer(**p: float) -> dict[str, Any]:
    return {"q": {"type": "choice", "probabilities": p}}


def row(id_: Any, **p: float) -> dict[str, Any]:
    return {"id": id_, "model": "m", "answers": answer(**p)}


def failure(id_: Any, message: str = "too long") -> dict[str, Any]:
    return {"id": id_, "error": {"field": "state", "message": message, "type": "max_tokens_exceeded"}}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in rows))
    return path


def agree(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli.main, ["agree", *map(str, arguments)], catch_exceptions=False)


def told(result: Result) -> str:
    """What went to stderr, its lines joined."""
    return " ".join(result.stderr.split())


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return write(tmp_path / "a.jsonl", *(row(f"r{i}", x=0.9, y=0.1) for i in range(10)))


@pytest.fixture
def b(tmp_path: Path) -> Path:
    """Of the ten rows one changes, one fails, one is missing and one is new."""
    rows = [row("r0", x=0.3, y=0.7), *(row(f"r{i}", x=0.8, y=0.2) for i in range(1, 8)), failure("r8"), row("new", x=1)]
    return write(tmp_path / "b.jsonl", *rows)


def test_two_real_runs(cli_engine: CliEngine, tmp_path: Path) -> None:
    """`ramet run`, twice, with gold labels in its input; a bad line fails in both."""
    question = {"type": "choice", "instructions": "?", "criteria": {"x": None, "y": None}}
    rows: list[Any] = [{"id": i, "state": f"s{i}", "questions": {"q": question}, "gold": {"q": "x"}} for i in range(5)]
    source = write(tmp_path / "rows.jsonl", *rows, {"id": 5})
    outputs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for output in outputs:
        done = CliRunner().invoke(cli.main, ["run", str(source), "-o", str(output)], catch_exceptions=False)
        assert done.exit_code == 0
    result = agree(*outputs, "--gold", source, "--json", tmp_path / "o.json", "--fail-under", "1")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads((tmp_path / "o.json").read_text())
    assert found["all"]["agreement"]["count"] == found["all"]["decisions"] == 5
    assert found["gold"]["used"] == 5
    assert [(f["id"], f["a"], f["b"]) for f in found["rows"]["failed"]] == [(5, MISSING, MISSING)]
    assert result.stdout.count(MISSING) == 2


def test_a_file_agrees_with_itself(a: Path) -> None:
    result = agree(a, a, "--fail-under", "1")
    assert result.exit_code == 0
    assert "100.00%" in result.stdout
    assert "changed decisions" not in result.stdout


def test_nothing_is_dropped_in_silence(a: Path, b: Path) -> None:
    result = agree(a, b)
    assert result.exit_code == 0
    assert "8 rows, 1 question, 8 decisions" in result.stdout
    assert "1 failed, 1 only in a, 1 only in b" in result.stdout
    assert "only in a (1): r9" in result.stdout
    assert "only in b (1): new" in result.stdout
    assert "state: too long" in result.stdout
    assert "87.50%" in result.stdout
    (line,) = [line.split() for line in result.stdout.splitlines() if line.split()[:1] == ["r0"]]
    assert line == ["r0", "q", "x", "0.900", "y", "0.700", "0.600"]


def test_lists_are_cut_and_say_so(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", *(row(i, x=0.9, y=0.1) for i in range(9)), *(row(f"o{i}", x=1) for i in range(5)))
    b = write(tmp_path / "b.jsonl", *(row(i, x=0.1 + i / 100, y=0.9 - i / 100) for i in range(9)))
    out = tmp_path / "o.json"
    result = agree(a, b, "--limit", "3", "--json", out)
    assert "3 of 9 changed decisions; --limit shows more, --json has all" in result.stdout
    assert "only in a (5): o0, o1, o2, and 2 more" in result.stdout
    shown = [line.split()[0] for line in result.stdout.splitlines() if line.split()[1:2] == ["q"]]
    assert shown == ["0", "1", "2"]  # the largest changes
    found = json.loads(out.read_text())
    assert sum(d["changed"] for d in found["decisions"]) == 9
    assert len(found["rows"]["only_in_a"]) == 5


@pytest.mark.parametrize(("share", "code"), [("0", 0), ("0.5", 0), ("0.51", 1), ("1", 1)])
def test_fail_under(tmp_path: Path, share: str, code: int) -> None:
    a = write(tmp_path / "a.jsonl", row(1, x=0.9, y=0.1), row(2, x=0.9, y=0.1))
    b = write(tmp_path / "b.jsonl", row(1, x=0.9, y=0.1), row(2, x=0.1, y=0.9))
    result = agree(a, b, "--fail-under", share)
    assert result.exit_code == code
    assert result.stderr == (f"agreement 0.5 is below {share}\n" if code else "")
    assert agree(a, b).exit_code == 0


def test_a_row_that_newly_fails_fails_the_test(tmp_path: Path) -> None:
    good = write(tmp_path / "a.jsonl", row(1, x=1), row(2, x=1))
    bad = write(tmp_path / "b.jsonl", row(1, x=1), failure(2))
    for files in ((good, bad), (bad, good)):
        result = agree(*files, "--fail-under", "0.5")
        assert (result.exit_code, result.stderr) == (1, "1 rows are answered in one file only\n")
    assert agree(bad, bad, "--fail-under", "1").exit_code == 0


DRAWN = [(".png", False), (".svg", True), (".pdf", True)]


def test_every_kind_of_picture_is_tried() -> None:
    assert {ending for ending, _ in DRAWN} == set(PICTURES)


@pytest.mark.parametrize(("ending", "labelled"), DRAWN)
def test_pictures(tmp_path: Path, a: Path, b: Path, ending: str, labelled: bool) -> None:
    pytest.importorskip("matplotlib")
    gold = write(tmp_path / "gold.jsonl", {"id": "r0", "gold": {"q": "x"}})
    picture = tmp_path / f"p{ending}"
    result = agree(a, b, "--plot", picture, *(("--gold", gold) if labelled else ()))
    assert (result.exit_code, result.stderr) == (0, "")
    starts = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
    assert picture.read_bytes().startswith(starts[ending])


def test_the_same_runs_give_the_same_picture(tmp_path: Path, a: Path, b: Path) -> None:
    pytest.importorskip("matplotlib")
    pictures = [tmp_path / "1.svg", tmp_path / "2.svg"]
    for picture in pictures:
        agree(a, b, "--plot", picture)
    assert pictures[0].read_bytes() == pictures[1].read_bytes()


def test_pictures_of_odd_runs(tmp_path: Path, a: Path) -> None:
    """Nothing changed; and names that are markup to those who draw and print."""
    pytest.importorskip("matplotlib")
    assert agree(a, a, "--plot", tmp_path / "p.png").exit_code == 0
    names = ["$x_", "[bold]", "\x1b[31m", "n" * 300]
    rows = [{"id": "[/]", "answers": {name: {"type": "noul", "noul": p} for name in names}} for p in (0.2, 0.7)]
    one, other = (write(tmp_path / f"{i}.jsonl", r) for i, r in enumerate(rows))
    result = agree(one, other, "--plot", tmp_path / "q.png")
    assert result.exit_code == 0
    assert "[bold]" in result.stdout
    assert "[/]" in result.stdout
    assert "\x1b" not in result.stdout


def test_rows_without_ids_are_matched_by_place(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", *({"index": i, "request": f"f{i}-m", "answers": answer(x=1)} for i in range(3)))
    b = write(tmp_path / "b.jsonl", *({"index": i, "request": f"f{i}-n", "answers": answer(x=1)} for i in (0, 2)))
    result = agree(a, b)
    assert "only in a (1): #1" in result.stdout
    gold = write(tmp_path / "gold.jsonl", {}, "", {}, {"gold": {"q": "x"}})  # the third row's; empty lines do not count
    agree(a, b, "--gold", gold, "--json", tmp_path / "o.json")
    decisions = json.loads((tmp_path / "o.json").read_text())["decisions"]
    assert [(d["index"], d["gold"]) for d in decisions] == [(0, None), (2, "x")]


def test_by_line(tmp_path: Path) -> None:
    """The way out where ids come twice, or differ."""
    a = write(tmp_path / "a.jsonl", row("same", x=1), row("same", x=1))
    b = write(tmp_path / "b.jsonl", row("one", x=1), row("two", x=1))
    assert agree(a, b).exit_code == 2
    result = agree(a, b, "--by", "line")
    assert "2 rows, 1 question, 2 decisions" in result.stdout


def test_rows_that_were_asked_otherwise_are_told(tmp_path: Path) -> None:
    a = write(tmp_path / "a.jsonl", *(row(i, x=1) | {"request": f"f{i}-m"} for i in range(2)))
    b = write(tmp_path / "b.jsonl", row(0, x=1) | {"request": "f0-m"}, row(1, x=1) | {"request": "other-m"})
    result = agree(a, b)
    assert result.exit_code == 0
    assert "answered from lines that differ (1): 1" in result.stdout


def test_labels_are_counted(tmp_path: Path, a: Path, b: Path) -> None:
    labels = {"r0": {"q": "x", "other": 1}, "r1": {"q": None}, "r9": {"q": "x"}}
    gold = write(tmp_path / "gold.jsonl", *({"id": id_, "gold": by_question} for id_, by_question in labels.items()))
    result = agree(a, b, "--gold", gold)
    assert "1 of 3 labels used" in result.stdout
    assert "right answers" in result.stdout


GOOD = row("r", x=0.5, y=0.5)
BAD_LINES = {
    "{": "is no JSON",
    "[1]": "is no JSON object",
    '{"id": "r", "answers": "\xff"': "is no JSON",
    '{"id": "r"}': "has no `answers`, no `text` and no `error`",
    '{"id": "r", "answers": {}}': "has no `answers`, no `text` and no `error`",
    '{"id": "r", "answers": {"q": {"type": "choice"}}}': "the answer to 'q' cannot be read: a choice needs",
    '{"id": "r", "answers": {"q": {"type": "noul", "noul": NaN}}}': "is no JSON (NaN is no number of JSON)",
    "[" * 100_000: "is no JSON",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=range(len(BAD_LINES)))
@pytest.mark.parametrize("first", [True, False])
def test_a_line_that_no_run_wrote(tmp_path: Path, line: str, first: bool) -> None:
    good, bad = write(tmp_path / "good.jsonl", GOOD), write(tmp_path / "bad.jsonl", GOOD, "", line)
    result = agree(*((bad, good) if first else (good, bad)))
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{bad}, line 3: {BAD_LINES[line]}" in told(result)
    assert "`ramet run` writes such files" in told(result)


def _bad(directory: Path, a: list[Any], b: list[Any]) -> str:
    result = agree(write(directory / "a.jsonl", *a), write(directory / "b.jsonl", *b))
    assert (result.exit_code, result.stdout) == (2, "")
    return told(result).replace(str(directory) + "/", "")


def test_an_id_that_comes_twice(tmp_path: Path) -> None:
    message = _bad(tmp_path, [GOOD], [GOOD, row("s", x=1), GOOD])
    assert "b.jsonl, line 3: has the id r of line 1" in message
    assert "--by line" in message


def test_other_questions(tmp_path: Path) -> None:
    other = {"id": "r", "answers": {"p": GOOD["answers"]["q"]}}
    message = _bad(tmp_path, [row("s", x=1), GOOD], [other])
    assert "a.jsonl, line 2 and b.jsonl, line 1 answer different questions" in message
    assert "'q' only the first; 'p' only the second. Questions are matched by name" in message


OTHER_ANSWERS = [answer(x=0.5, z=0.5), answer(x=1), {"q": {"type": "noul", "noul": 1}}]


@pytest.mark.parametrize("answers", OTHER_ANSWERS, ids=range(len(OTHER_ANSWERS)))
def test_other_options(tmp_path: Path, answers: dict[str, Any]) -> None:
    message = _bad(tmp_path, [GOOD], [{"id": "r", "answers": answers}])
    assert "answer question 'q' with different options: a choice of 'x', 'y' and a" in message
    assert "compare two runs of the same rows" in message


def test_no_common_rows(tmp_path: Path) -> None:
    message = _bad(tmp_path, [GOOD], [row("s", x=1)])
    assert "a.jsonl and b.jsonl have no row in common: the first has 'r', the second 's'" in message
    assert "a.jsonl has no rows" in _bad(tmp_path, [], [GOOD])
    assert "b.jsonl has no rows" in _bad(tmp_path, [GOOD], ["", ""])


def test_no_answer_on_both_sides(tmp_path: Path) -> None:
    message = _bad(tmp_path, [GOOD, failure("s")], [failure("r", "out of memory"), row("s", x=1)])
    assert "no row has answers in both a.jsonl and b.jsonl" in message
    assert "all 2 failed, the first with: state: out of memory" in message


def test_other_lines_without_ids(tmp_path: Path) -> None:
    rows = [{"index": 0, "request": f"{name}-m", "answers": answer(x=1)} for name in "ab"]
    message = _bad(tmp_path, rows[:1], rows[1:])
    assert "a.jsonl, line 1 and b.jsonl, line 1 answer different lines of input, and have no id" in message
    assert agree(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--by", "line").exit_code == 0


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["{"], "line 1: is no JSON"),
        ([{"id": "r0", "gold": "x"}], "line 1: `gold` is no object of labels by question; a line looks like"),
        ([{"id": "r0", "gold": {"q": "z"}}], "line 1: `gold`, question 'q': 'z' is no label of this choice: 'x', 'y'"),
        ([{"id": "r0", "gold": {}}, {"id": "r0", "gold": {}}], "line 2: has the id r0 of line 1"),
        ([{"id": "r0"}], "no label of"),
        ([{"id": "r77", "gold": {"q": "x"}}], "no label of"),
    ],
)
def test_bad_labels(tmp_path: Path, a: Path, lines: list[Any], message: str) -> None:
    gold = write(tmp_path / "gold.jsonl", *lines)
    result = agree(a, a, "--gold", gold)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in told(result)
    assert str(gold) in told(result)


def test_files_that_are_not_there(tmp_path: Path, a: Path) -> None:
    for arguments in ((a, "no.jsonl"), ("no.jsonl", a), (a, a, "--gold", "no.jsonl")):
        result = agree(*arguments)
        assert result.exit_code == 2
        assert "'no.jsonl' does not exist" in told(result)
    assert "is a directory" in told(agree(a, tmp_path))


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_outputs_are_checked_before_the_work(tmp_path: Path, a: Path, flag: str) -> None:
    given, before = tmp_path / "a.png", a.read_bytes()
    given.symlink_to(a)
    assert "would overwrite the input" in told(agree(a, a, flag, given))
    assert a.read_bytes() == before
    assert "there is no directory" in told(agree(a, a, flag, tmp_path / "no" / "x.png"))


def test_pictures_that_cannot_be_drawn(tmp_path: Path, a: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "does not end in .png, .svg, .pdf" in told(agree(a, a, "--plot", tmp_path / "p.bmp"))
    same = tmp_path / "p.png"
    assert "name the same file" in told(agree(a, a, "--plot", same, "--json", same))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = agree(a, a, "--plot", same)
    assert (result.exit_code, same.exists()) == (2, False)
    assert "--plot needs matplotlib: pip install 'ramet[plot]'" in told(result)
    assert agree(a, a).exit_code == 0


def test_pictures_alone_need_matplotlib() -> None:
    for module in ("ramet.cli.agree", "ramet.cli.agree_table", "ramet.agree.report"):
        assert "matplotlib" not in reached(module)
    assert "matplotlib" in reached("ramet.agree.plot")


def _example(directory: Path) -> list[Path]:
    blocks = [block.text for block in section(PAGE, "An example").blocks if block.language == "jsonl"]
    names = ("a.jsonl", "b.jsonl", "gold.jsonl")
    return [write(directory / name, text) for name, text in zip(names, blocks, strict=True)]


def test_the_page_shows_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _example(tmp_path)
    monkeypatch.chdir(tmp_path)
    result = agree("a.jsonl", "b.jsonl", "--gold", "gold.jsonl")
    (shown,) = [block.text for block in section(PAGE, "An example").blocks if block.language == "text"]
    printed = "\n".join(line.rstrip() for line in result.stdout.splitlines())
    assert shown == printed.replace("\N{NO-BREAK SPACE}", " ").strip("\n")


def test_the_page_tells_every_key_of_the_json(tmp_path: Path) -> None:
    a, b, gold = _example(tmp_path)
    agree(a, b, "--gold", gold, "--json", tmp_path / "o.json")
    found = json.loads((tmp_path / "o.json").read_text())
    for heading, shown in {
        "The JSON": found, "Measures": found["all"], "A decision": found["decisions"][0]
    }.items():  # fmt: skip
        keys = {key for cells in section(PAGE, heading).rows for key in cells[0].split(", ")}
        assert keys == shown.keys(), heading
    texts = [{"id": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(("one", "two"))]
    agree(write(tmp_path / "t.jsonl", *texts), tmp_path / "t.jsonl", "--json", tmp_path / "t.json")
    replies = json.loads((tmp_path / "t.json").read_text())
    for heading, shown in {"Measures of replies": replies["replies"], "A reply": replies["texts"][0]}.items():
        keys = {key for cells in section(PAGE, heading).rows for key in cells[0].split(", ")}
        assert keys == shown.keys(), heading
    prose = section(PAGE, "The JSON").prose + section(PAGE, "Measures").prose
    for part in (found["a"], found["gold"], found["rows"], found["all"]["accuracy"], found["all"]["flips"]):
        assert [key for key in part if f"`{key}`" not in prose and f'"{key}"' not in prose] == []
