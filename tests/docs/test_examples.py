"""The examples of the documentation run, and print what the pages say that they print.

Those of SmolLM2 run in float32, so that they print the same on every processor. Where they are meant to print something
else than before, `make examples` (pytest --write-examples) writes it into the pages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures import tiny
from fixtures.doc_page import (
    Block,
    Section,
    assert_alike,
    assert_numbers_alike,
    examples,
    section,
    sections,
    write,
    write_numbers,
)
from fixtures.import_graph import ROOT, TESTS
from fixtures.live_server import LiveServer
from fixtures.tiny_engine import tiny_engine
from pydantic import SecretStr

from ramet import cli
from ramet.engine.engine import Engine
from ramet.engine.settings import EngineSettings
from ramet.errors import CheckpointError
from ramet.request import DecisionRequest
from ramet.server.settings import ServerSettings
from ramet.weights.locate import Location, locate

PAGES = ("docs/quickstart.md", "docs/http-api.md")
ADDRESS = "http://127.0.0.1:8000"
LANGUAGES = {"python", "sh", "js", "json", "text"}
BARS = re.compile("[█▉▊▋▌▍▎▏]")

# `ramet` as the shell's examples find it: the command itself, with an engine that answers without a model.
COMMAND = """#!{python}
import sys
sys.path[:0] = {paths!r}
import ramet.server
from fakes.cli_engine import CliEngine
from ramet import cli
cli.load_engine = CliEngine(name="smollm2").load
ramet.server.serve = lambda *_: None
cli.main()
"""


@pytest.fixture
def server(serve: Serve) -> LiveServer:
    return serve(StubEngine(name="smollm2"))


@pytest.fixture
def locked_server(serve: Serve) -> LiveServer:
    """One that wants a key."""
    return serve(StubEngine(name="smollm2"), ServerSettings(api_key=SecretStr("key")))


@pytest.fixture
def namespace() -> Iterator[dict[str, Any]]:
    """What the page's Python has defined so far; its engine is closed if an example failed before it was."""
    made: dict[str, Any] = {"__name__": "example"}
    n_threads = torch.get_num_threads()
    yield made
    torch.set_num_threads(n_threads)
    if "engine" in made:
        made["engine"].close()


def test_every_block_is_of_a_known_kind() -> None:
    blocks = [block for page in PAGES for s in sections(page) for block in s.blocks]
    assert [block.place for block in blocks if block.language not in LANGUAGES] == []
    assert [block.text for block in blocks if block.not_run] == ["make demo", "source .venv/bin/activate"]


@pytest.mark.parametrize("model", ["tiny", "smollm2"])
@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/python.md"])
def test_python(
    monkeypatch: pytest.MonkeyPatch,
    server: LiveServer,
    namespace: dict[str, Any],
    page: str,
    model: str,
    request: pytest.FixtureRequest,
) -> None:
    """With a tiny model in every checkpoint's place; and, for what is printed, with SmolLM2 in its own."""
    if model == "smollm2":
        _need_smollm2()
    monkeypatch.setattr("ramet.weights.checkpoint.locate", _locate_with(model == "smollm2"))
    found = examples(page, "python")
    assert found
    for _, block, answer in found:
        printed = _run_python(block, server, namespace)
        if answer and model == "smollm2":
            (write if request.config.getoption("--write-examples") else assert_alike)(printed, answer)


def test_the_demo(request: pytest.FixtureRequest) -> None:
    """What `make demo MODEL=smollm2` runs, in float32, beside what the page shows; the last line has times."""
    _need_smollm2()
    answer = next(b for b in section("docs/quickstart.md", "A first answer").blocks if b.language == "text")
    assert 'ramet decide -m "$$model" examples/ticket.json' in (ROOT / "Makefile").read_text(encoding="utf-8")
    arguments = ["decide", "--dtype", "float32", str(ROOT / "examples" / "ticket.json")]
    result = CliRunner().invoke(cli.main, arguments, catch_exceptions=False)
    if request.config.getoption("--write-examples"):
        write(result.stdout, answer)
        return
    shown, printed = (BARS.sub("", text).strip().splitlines() for text in (answer.text, result.stdout))
    assert_alike("\n".join(printed[:-1]), dataclasses.replace(answer, text="\n".join(shown[:-1])))
    assert shown[-1].split()[:3] == printed[-1].split()[:3]  # the model and the tokens


def test_answers_in_json(request: pytest.FixtureRequest) -> None:
    """Those that pages show behind the requests of a shell's example, which the other tests send to a stub."""
    _need_smollm2()
    found = [(block, answer) for page in PAGES for _, block, answer in examples(page, "sh") if answer]
    found = [(block, answer) for block, answer in found if '"answers"' in answer.text]
    assert len(found) >= 3
    with Engine.load("smollm2", dtype="float32") as engine:
        for block, answer in found:
            pairs = zip(_requests(block.text), _values(answer.text), strict=True)
            told = [(engine.decide(DecisionRequest.parse(body)), shown) for body, shown in pairs if "answers" in shown]
            for decision, shown in told:
                assert _texts(decision.model_dump(mode="json")["answers"]) == _texts(shown["answers"]), answer.place
            numbers = _floats([decision.model_dump(mode="json")["answers"] for decision, _ in told])
            n_tokens = [decision.usage.input_tokens for decision, _ in told]
            if request.config.getoption("--write-examples"):
                write_numbers(numbers, n_tokens, answer)
            else:
                assert_numbers_alike(numbers, answer)
                assert n_tokens == [shown["usage"]["input_tokens"] for _, shown in told], answer.place


@pytest.mark.parametrize("page", PAGES)
def test_shell(server: LiveServer, locked_server: LiveServer, tmp_path: Path, page: str) -> None:
    """Each block in a shell of its own, in one directory; answers are compared where the page shows one."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    environment = _shell(tmp_path)
    found = examples(page, "sh")
    assert found
    for s, block, answer in found:
        asked = locked_server if s.heading.startswith("401") else server
        script = block.text.replace(ADDRESS, asked.url)
        command = ["bash", "-euo", "pipefail", "-c", script]
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert ran.returncode == 0, (block.place, ran.stdout, ran.stderr)
        if answer:
            shown, printed = _values(answer.text), _values(ran.stdout)
            assert [_outline(v) for v in printed] == [_outline(v) for v in shown], block.place
        else:
            assert '"detail"' not in ran.stdout, (block.place, ran.stdout)


def test_javascript(server: LiveServer) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    ((_, block, _),) = examples("docs/quickstart.md", "js")
    script = block.text.replace(ADDRESS, server.url)
    command = [node, "--input-type=module", "--eval", script]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() in ("damage", "delivery")


@pytest.mark.parametrize("page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))])
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in (link for link in links if not link.startswith("https://")):
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in {_anchor(s) for s in sections(str(target.relative_to(ROOT)))}, link


def test_the_engines_limits_and_metrics_are_told(tmp_path: Path) -> None:
    sent: list[set[str]] = []
    for settings in ({}, {"memory_cache_bytes": 1 << 20}, {"disk_cache": tmp_path}):
        with tiny_engine(**settings) as engine:  # type: ignore[arg-type]
            sent.append({f"ramet_engine_{name}" for name in (*engine.stats(), *engine.histograms())})
    told = [row[0] for row in section("docs/http-api.md", "`GET /metrics`").rows if "_engine_" in row[0]]
    tiers = [name for name in told if "_tier" in name]
    assert set(told) - set(tiers) == sent[0]
    assert {name for name in tiers if "_disk_tier" not in name} == sent[1] - sent[0]
    assert set(tiers) == sent[2] - sent[0]
    limits = {row[2]: row[1] for row in section("docs/http-api.md", "Limits").rows}
    assert limits["--max-request-tokens"] == str(EngineSettings().max_request_tokens)
    assert limits["--max-queue"] == str(EngineSettings().max_queue)


def _need_smollm2() -> None:
    try:
        locate("smollm2")
    except CheckpointError as error:
        pytest.skip(str(error))


def _locate_with(smollm2: bool) -> Callable[[str], Location]:
    """`locate` for the page's checkpoints, which nobody has: a tiny one of the same kind."""

    def found(source: str) -> Location:
        if smollm2 and source == "smollm2":
            return locate(source)
        if source.endswith(".gguf"):
            return Location(tiny.gguf_of(tiny.qwen3()), Path(source).stem)
        return Location(tiny.qwen3(head_dim=32), Path(source).name)  # heads that the compiled kernels take

    return found


def _run_python(block: Block, server: LiveServer, namespace: dict[str, Any]) -> str:
    """What the block prints. It shares its names with those before it."""
    source = block.text.replace(ADDRESS, server.url)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(source, block.place, "exec"), namespace)
    return out.getvalue()


def _shell(directory: Path) -> dict[str, str]:
    """An environment whose `ramet` is ours, for a directory with the repository's examples in it."""
    command = directory / "bin" / "ramet"
    command.parent.mkdir()
    command.write_text(COMMAND.format(python=sys.executable, paths=[str(ROOT), str(TESTS)]), encoding="utf-8")
    command.chmod(0o755)
    (directory / "examples").symlink_to(ROOT / "examples")
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "no_proxy": "127.0.0.1", "OMP_NUM_THREADS": "1"}


def _requests(script: str) -> list[Any]:
    """The JSON objects of a script: what curl sends, and the lines of a file."""
    sent = re.findall(r" -d '(\{.+?\})'", script, re.DOTALL)
    return [json.loads(text) for text in sent or re.findall(r"^\{.+\}$", script, re.MULTILINE)]


def _texts(value: Any) -> Any:
    """All of a JSON value but its numbers."""
    if isinstance(value, dict):
        return {key: _texts(inner) for key, inner in value.items()}
    return value if isinstance(value, str) else type(value)


def _floats(value: Any) -> list[float]:
    """All of a JSON value, in its order."""
    if isinstance(value, dict | list):
        return [n for inner in (value.values() if isinstance(value, dict) else value) for n in _floats(inner)]
    return [value] if isinstance(value, float) else []


def _values(text: str) -> list[Any]:
    """The JSON values of a text, one behind the other."""
    values, decoder, at = [], json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        values.append(value)
    return values


def _outline(value: Any, exact: bool = False) -> Any:
    """Keys and types; of what went wrong the values themselves. Nothing is taken off the answers of the tiny model."""
    if isinstance(value, dict):
        shown = {key: inner for key, inner in value.items() if key != "x_debiased"}
        return {key: _outline(inner, exact or key in ("detail", "error")) for key, inner in shown.items()}
    if isinstance(value, list):
        return [_outline(inner, exact) for inner in value]
    return value if exact else type(value)


def _anchor(s: Section) -> str:
    """GitHub's name for a heading's place."""
    return re.sub(r"[^\w\- ]", "", s.heading.lower()).replace(" ", "-")
