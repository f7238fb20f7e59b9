"""`ramet generate`: what is asked, and what is printed."""

from __future__ import annotations

import json

import pytest
from cli_engine import CliEngine
from click.testing import CliRunner, Result
from stub_writer import StubWriter, written
from test_tokenizer_spm import PLAIN

from ramet import cli

TEXT = "ab 🦩the cab"


@pytest.fixture
def text(cli_engine: CliEngine) -> StubWriter:
    cli_engine.text = StubWriter(reply=written(TEXT))
    return cli_engine.text


def generate(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli.main, ["generate", *arguments], input=stdin, catch_exceptions=False)


def test_text(cli_engine: CliEngine, text: StubWriter) -> None:
    result = generate("the", "--system", "ab", "--seed", "0", "-m", "dir", "--canvas-length", "8")
    assert (result.exit_code, result.stdout) == (0, TEXT + "\n")
    assert (cli_engine.source, cli_engine.options, cli_engine.closed) == ("dir", {"canvas_length": 8}, True)
    (asked,) = text.received
    assert (asked.seed, asked.max_tokens) == (0, None)
    prompt = "<start_of_turn>system\nab<end_of_turn>\n<start_of_turn>user\nthe<end_of_turn>\n<start_of_turn>model\n"
    assert PLAIN.decode(asked.prompt) == "<bos>" + prompt


def test_json(text: StubWriter) -> None:
    result = generate("the", "--json", "--max-tokens", "3")
    told = json.loads(result.stdout)
    assert (told["text"], told["finish_reason"]) == ("ab \ufffd", "length")
    assert told["usage"]["completion_tokens"] == 3
    assert told["usage"]["prompt_tokens"] == len(text.received[0].prompt)


def test_stdin(text: StubWriter) -> None:
    assert generate("-", stdin="the 🦩".encode()).stdout == TEXT + "\n"
    assert "user\nthe 🦩<end" in PLAIN.decode(text.received[0].prompt)
    assert "is not UTF-8" in generate("-", stdin=b"\xff").stderr


def test_faults(cli_engine: CliEngine) -> None:
    result = generate("the")
    assert (result.exit_code, result.stderr) == (2, "Error: stub writes no text\n")
    result = generate("the", "--seed", str(1 << 63))
    assert (result.exit_code, cli_engine.n_loads) == (2, 1)
    assert "seed" in result.stderr
