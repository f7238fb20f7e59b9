"""Files of others: `ramet run` and its neighbours look before they write, say in one line what is wrong, and go on."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attacks.bounded import bounded
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine, request, rows_in
from fakes.stub_writer import StubWriter, written

from ramet import cli
from ramet.cli.requests import MAX_BYTES
from ramet.decision import Decision
from ramet.files import replacing
from ramet.request import DecisionRequest
from ramet.server.settings import ServerSettings

MIB = 1 << 20


@contextmanager
def largest_file(n_bytes: int) -> Iterator[None]:
    """As a full disk has it: a write beyond fails, after the bytes that fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def ramet(*words: str | Path, stdin: Any = None) -> Result:
    """A command, which ends without a trace."""
    result = CliRunner().invoke(cli.main, [*map(str, words)], input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def refusal(result: Result) -> str:
    """The one line that a command which failed says."""
    assert result.exit_code in (1, 2), result.output
    last = result.stderr.splitlines()[-1]
    assert last.startswith("Error: "), result.stderr
    return last


def read(out: Path) -> list[dict[str, Any]]:
    """Strict JSON in UTF-8."""

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    lines = [json.loads(line, parse_constant=refuse) for line in out.read_bytes().decode().split("\n")[:-1]]
    return [line for line in lines if "run" not in line]  # less the head


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return rows_in(tmp_path)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture(autouse=True)
def engine(cli_engine: CliEngine) -> CliEngine:
    cli_engine.text = StubWriter(kind="masks", reply=written("ab"))
    return cli_engine


def a_pipe(place: Path) -> Path:
    os.mkfifo(place / "pipe")
    return place / "pipe"


def a_link_to(target: str) -> Callable[[Path], Path]:
    def made(place: Path) -> Path:
        (place / "link").symlink_to(target)
        return place / "link"

    return made


def below_a_file(place: Path) -> Path:
    (place / "file").write_text("mine")
    return place / "file" / "x"


NO_FILES: dict[str, Callable[[Path], Path | str]] = {
    "full": lambda place: "/dev/full",
    "null": lambda place: "/dev/null",
    "zero": lambda place: "/dev/zero",
    "pipe": a_pipe,
    "link to a device": a_link_to("/dev/full"),
    "link to itself": a_link_to("link"),
    "directory": lambda place: place,
    "directory/": lambda place: f"{place}/",
    "below a file": below_a_file,
    "in no directory": lambda place: place / "no" / "x",
    "too long": lambda place: place / ("x" * 300),
    "nothing": lambda place: "",
    "new/": lambda place: f"{place}/new/",
}


@pytest.mark.parametrize("words", [(), ("--overwrite",)])
@pytest.mark.parametrize("name", NO_FILES)
def test_an_output_that_is_no_file(name: str, words: tuple[str, ...], rows: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    given = NO_FILES[name](place)
    before = sorted(place.iterdir())
    assert len(refusal(ramet("run", rows, "-o", given, *words))) < 1000
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize("name", NO_FILES)
def test_an_input_that_is_no_file(name: str, out: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    refusal(ramet("run", NO_FILES[name](place), "-o", out))
    assert not out.exists()


@pytest.mark.parametrize("name", NO_FILES)
@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_a_report_that_is_no_file(name: str, flag: str, tmp_path: Path) -> None:
    answered = tmp_path / "a.jsonl"
    answered.write_text('{"id": 1, "answers": {"q": {"type": "choice", "probabilities": {"x": 1.0}}}}\n')
    (tmp_path / "place").mkdir()
    given = NO_FILES[name](tmp_path / "place")
    refusal(ramet("agree", answered, answered, flag, given))
    assert "none/such" not in refusal(ramet("bench", "decisions", "--model", "none/such", "--json", given))
    refusal(ramet("warmup", "--device", "cpu", "--out", given))
    refusal(ramet("warmup", "--device", "cpu", "--in", given))
    refusal(ramet("agree", given, answered))


@pytest.mark.parametrize(
    "content",
    [b"mine", b"mine\n", b'{"index": 0', b'{"index": 0, "state": "', b"\0" * 100_000, b'{"a": 1}\n{"b": 2}\n', b"\n",
     b'{"index": 0, "request": "x"}\nmine'],
)  # fmt: skip
def test_a_file_of_others_stays(content: bytes, rows: Path, out: Path, engine: CliEngine) -> None:
    out.write_bytes(content)
    os.utime(out, (1, 1))
    if content == b'{"index": 0':  # as a run that was stopped leaves one
        assert ramet("run", rows, "-o", out).exit_code == 0
        return
    assert "--overwrite" in refusal(ramet("run", rows, "-o", out))
    assert out.read_bytes() == content
    assert out.stat().st_mtime == 1
    assert engine.n_loads == 0


def test_a_large_file_of_others_is_not_read_into_memory(rows: Path, out: Path) -> None:
    with out.open("wb") as file:
        file.truncate(400 * MIB)
    with bounded(50):
        refusal(ramet("run", rows, "-o", out))
    assert out.stat().st_size == 400 * MIB


def test_what_is_overwritten_stays_until_all_is_there(
    rows: Path, out: Path, engine: CliEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    out.write_text("mine")

    class Stopped(CliEngine):
        async def decide_async(self, request: DecisionRequest) -> Decision:
            if request.state == "state 5":
                raise KeyboardInterrupt
            return await super().decide_async(request)

    def fails(source: str, **options: Any) -> CliEngine:
        raise cli.RametError("no model")

    command = ("run", rows, "-o", out, "--overwrite", "--parallel", "1")
    with monkeypatch.context() as patch:
        patch.setattr("ramet.cli.load_engine", fails)
        refusal(ramet(*command))
        assert sorted(out.parent.iterdir()) == [out, rows]
        patch.setattr("ramet.cli.load_engine", Stopped().load)
        assert ramet(*command).exit_code == 130
    assert out.read_text() == "mine"
    result = ramet(*command)
    assert "5 of 20 rows are there" in result.stderr
    assert len(engine.received) == 15
    assert [row["index"] for row in read(out)] == [*range(20)]
    assert sorted(out.parent.iterdir()) == [out, rows]


def test_a_part_of_another_run_is_taken_off(rows: Path, out: Path, engine: CliEngine) -> None:
    part = out.with_name("out.jsonl.part")
    ramet("run", rows, "-o", other := out.with_name("other.jsonl"), "--debias", "2")
    other.rename(part)
    assert ramet("run", rows, "-o", out, "--overwrite").exit_code == 0
    assert {row["index"] for row in read(out)} == {*range(20)}
    assert not part.exists()
    assert len(engine.received) == 40


def test_a_link_in_place_of_a_part_is_not_followed(rows: Path, out: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("")
    out.with_name("out.jsonl.part").symlink_to(tmp_path / "theirs")
    assert "out.jsonl.part" in refusal(ramet("run", rows, "-o", out, "--overwrite"))
    assert (tmp_path / "theirs").read_text() == ""


@pytest.mark.parametrize("words", [(), ("--overwrite",)])
def test_a_full_disk_in_mid_run(rows: Path, out: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    ramet("run", rows, "-o", tmp_path / "whole.jsonl")
    whole = (tmp_path / "whole.jsonl").read_bytes()
    with largest_file(len(whole) // 2):
        result = ramet("run", rows, "-o", out, *words)
    written_to = out.with_name("out.jsonl.part") if words else out
    said = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert said == [f"Error: {written_to}: File too large; the same command goes on from here"]
    kept = written_to.read_bytes()
    assert kept.endswith(b"}\n")
    assert whole.startswith(kept)
    assert ramet("run", rows, "-o", out, *words).exit_code == 0
    assert out.read_bytes() == whole


def test_a_full_disk_leaves_what_a_report_would_replace(tmp_path: Path) -> None:
    answered, report = tmp_path / "a.jsonl", tmp_path / "report.json"
    answered.write_text('{"id": 1, "answers": {"q": {"type": "choice", "probabilities": {"x": 1.0}}}}\n')
    report.write_text("mine")
    with largest_file(100):
        said = refusal(ramet("agree", answered, answered, "--json", report))
    assert said == f"Error: {report}: File too large"
    assert report.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [answered, report]


@pytest.mark.parametrize("place", ['"id": "\\ud800"', '"id": {"\\uDFFF": 1}', '"id": 1, "x": ["\\ud800"]'])
def test_answers_of_others_that_are_no_text(place: str, tmp_path: Path) -> None:
    answered = tmp_path / "a.jsonl"
    answered.write_text(f'{{{place}, "answers": {{"q": {{"type": "choice", "probabilities": {{"x": 1.0}}}}}}}}\n')
    said = refusal(ramet("agree", answered, answered))
    assert "line 1: is no JSON" in said
    assert "surrogates" in said


def test_what_replaces_has_the_same_permissions(tmp_path: Path) -> None:
    path, link = tmp_path / "a.json", tmp_path / "link.json"
    path.write_text("mine")
    path.chmod(0o604)
    link.symlink_to(path)
    with replacing(link) as made:
        assert made.suffix == ".json"
        made.write_text("new")
        assert path.read_text() == "mine"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o604)
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [path, link]


SURROGATE, LARGE = '"\\ud800"', "1e999"
BAD_IDS = (SURROGATE, '"a\\udfff b"', LARGE, f"-{LARGE}", f"[1, [{LARGE}]]", f'{{"a": [{SURROGATE}]}}',
           f"{{{SURROGATE}: 1}}", "NaN", "9" * 5000, "[" * 200 + "]" * 200,
           '"' + "a" * MIB + '\\ud800"')  # fmt: skip


@pytest.mark.parametrize("bad", BAD_IDS, ids=range(len(BAD_IDS)))
def test_an_id_that_cannot_be_written(bad: str, out: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([request(0), request(1).replace('"row-1"', bad), request(2)]))
    assert ramet("run", path, "-o", out).exit_code == 0
    first, row, last = read(out)
    assert "answers" in first
    assert last["id"] == "row-2"
    assert row.keys() == {"index", "request", "error"}
    assert row["error"]["field"] in ("id", None)
    assert len(row["error"]["message"]) < 1000
    assert "all 3 rows are there" in ramet("run", path, "-o", out).stderr


GOOD_IDS: tuple[Any, ...] = (
    "\U0001f9a9", "a" * MIB, {"a": [1.5, None]}, 0, "", None, [[[[]]]], "\x00\u2028\x7f\n", 10**300,
)  # fmt: skip


def test_ids_that_come_back(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(request(n, id=each) for n, each in enumerate(GOOD_IDS)))
    assert ramet("run", path, "-o", out).exit_code == 0
    assert [row["id"] for row in read(out)] == [*GOOD_IDS]
    assert "all 9 rows are there" in ramet("run", path, "-o", out).stderr


PLACES = (
    '{"state": %s, "questions": {"q": {"type": "noul", "instructions": "a"}}}',
    '{"state": {"a": [%s]}, "questions": {"q": {"type": "noul", "instructions": "a"}}}',
    '{"state": "a", "questions": {"q": {"type": "noul", "instructions": [%s]}}}',
    '{"state": "a", "questions": {"q": {"type": "choice", "criteria": {"x": %s, "y": null}}}}',
    '{"state": "a", "questions": {"q": {"type": "score", "criteria": [%s, "a"]}}}',
    '{"state": "a", "questions": {"q": {"type": "noul", "instructions": "a"}}, "cache_salt": %s}',
    '{"state": "a", "questions": {"q": {"type": "noul", "instructions": "a"}}, "x_temperature": %s}',
    '{"prompt": %s}',
    '{"prompt": [%s]}',
    '{"messages": [{"role": "user", "content": %s}]}',
    '{"messages": [{"role": %s, "content": "a"}]}',
    '{"prompt": "a", "stop": %s}',
    '{"prompt": "a", "max_tokens": %s}',
)
NAMES = (
    '{"state": "a", "questions": {%s: {"type": "noul", "instructions": "a"}}}',
    '{"state": "a", "questions": {"q": {"type": "choice", "criteria": {%s: null, "y": null}}}}',
    '{"state": {%s: 1}, "questions": {"q": {"type": "noul", "instructions": "a"}}}',
    '{"state": "a", "questions": {"q": {"type": "noul", "instructions": "a", %s: 1}}}',
    '{"prompt": "a", %s: 1}',
    '{"state": "a", "state": "b", "questions": %s}',
    '{"state": "a", "questions": {"q": {"type": %s}}}',
)


def test_the_same_anywhere_in_a_line(out: Path, tmp_path: Path) -> None:
    """No such line ends the run; each has a row, and another follows."""
    lines = [place % bad for place in PLACES for bad in (SURROGATE, LARGE)] + [name % SURROGATE for name in NAMES]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*lines, request(9)]))
    assert ramet("run", path, "-o", out).exit_code == 0
    *bad, last = read(out)
    assert "answers" in last
    answered = [line for line, row in zip(lines, bad, strict=True) if "error" not in row]
    assert answered == [PLACES[5] % SURROGATE]  # a salt is any secret, and is written nowhere


def test_names_of_ignored_fields_are_told_in_bounds(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    names = ["\ud800", "z" * MIB, *(f"zzz{n}" for n in range(300))]
    path.write_text("\n".join(request(n, **{name: 1}) for n, name in enumerate(names)))
    result = ramet("run", path, "-o", out)
    assert result.exit_code == 0
    assert len(result.stderr) < 20_000
    assert "fields of other names, kept or ignored: 202" in result.stderr


def test_a_line_is_as_large_as_a_body() -> None:
    assert ServerSettings.model_fields["max_body_bytes"].default == MAX_BYTES


def test_a_line_without_end(out: Path, tmp_path: Path) -> None:
    """Of 400 MiB; its row is an error, and the next ones are answered."""
    path = tmp_path / "rows.jsonl"
    with path.open("wb") as file:
        file.write(request(0).encode() + b"\n")
        file.seek(400 * MIB, os.SEEK_CUR)
        file.write(b"\n" + request(1).encode() + b"\n" + b" " * (17 * MIB))
    with bounded(120):
        assert ramet("run", path, "-o", out).exit_code == 0
    rows = read(out)
    assert ["error" in row for row in rows] == [False, True, False, True]
    assert rows[1]["error"]["type"] == "body_too_large"
    assert "16777216 bytes" in rows[1]["error"]["message"]


def test_the_largest_line(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    room = MAX_BYTES - len(request(0, zzz=""))
    path.write_text(request(0, zzz="a" * room) + "\n" + request(0, zzz="a" * (room + 1)) + "\n")
    assert ramet("run", path, "-o", out).exit_code == 0
    assert ["error" in row for row in read(out)] == [False, True]


@pytest.mark.parametrize(
    "line",
    ["[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000, '{"state": "a", "state": "b"}',
     '{"id": 1, "id": 2}', "\x00", '{"state": "\x01"}', '"\\ud800"', "1e999", "{} {}"],
)  # fmt: skip
def test_a_line_that_is_no_request(line: str, out: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{line}\n{request(1)}\n")
    assert ramet("run", path, "-o", out).exit_code == 0
    bad, good = read(out)
    assert "error" in bad
    assert len(bad["error"]["message"]) < 1000
    assert "answers" in good


def test_what_one_request_is_read_from_may_never_end() -> None:
    with bounded(120):
        assert "16777216 bytes" in refusal(ramet("decide", "/dev/zero"))
        assert "16777216 bytes" in refusal(ramet("decide", "--state-file", "/dev/zero", "--noul", "a=Is it?"))
        with Path("/dev/zero").open("rb") as zeros:
            assert "16777216 bytes" in refusal(ramet("generate", "-", stdin=zeros))


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("run", "--help")])
def test_a_full_disk_behind_stdout(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [sys.executable, "-m", "ramet", *words]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: [Errno 28] No space left on device\n"
