"""`ramet generate`: what is asked, and what is printed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from fakes.cli_engine import CliEngine
from fakes.stub_writer import StubWriter, written

from ramet import cli
from ramet.generation import Kind
from tests.text.test_tokenizer_spm import PLAIN

TEXT = "ab 🦩the cab"


@pytest.fixture
def text(cli_engine: CliEngine) -> StubWriter:
    cli_engine.text = StubWriter(reply=written(TEXT))
    return cli_engine.text


ALONE = {"max_round_requests": 1}  # so that nothing is measured for the sake of others


def generate(*arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli.main, ["generate", *arguments], input=stdin, catch_exceptions=False)


def test_text(cli_engine: CliEngine, text: StubWriter) -> None:
    result = generate("the", "--system", "ab", "--seed", "0", "-m", "dir", "--canvas-length", "8")
    assert (result.exit_code, result.stdout) == (0, TEXT + "\n")
    assert (cli_engine.source, cli_engine.options, cli_engine.closed) == ("dir", ALONE | {"canvas_length": 8}, True)
    (asked,) = text.received
    assert (asked.seed, asked.max_tokens) == (0, None)
    prompt = "<start_of_turn>system\nab<end_of_turn>\n<start_of_turn>user\nthe<end_of_turn>\n<start_of_turn>model\n"
    assert PLAIN.decode(asked.prompt) == "<bos>" + prompt


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("canvas", "tokens 11, steps 6, canvases 2\n"),
        ("masks", "tokens 11, steps 24, tokens a step 0.46, mean chunk 4.0\n"),
    ],
)
def test_what_it_took_is_the_last_line(text: StubWriter, kind: Kind, told: str) -> None:
    text.kind = kind
    result = generate("the")
    assert (result.stdout, result.stderr) == (TEXT + "\n", told)
    assert generate("the", "--json").stderr == ""


def test_how_ids_are_drawn(cli_engine: CliEngine, text: StubWriter) -> None:
    text.kind = "masks"
    arguments = "--temperature 0 --top-p 0.5 --top-k 3 --entropy-bound 0.25 --stop cab --chunk-size 8 --stop x"
    assert generate("the", *arguments.split()).stdout == TEXT.removesuffix("cab") + "\n"
    (asked,) = text.received
    assert (asked.temperature, asked.top_p, asked.top_k, asked.entropy_bound) == (0, 0.5, 3, 0.25)
    assert cli_engine.options == ALONE | {"chunk_size": "8"}


def test_what_the_model_does_not_take(text: StubWriter) -> None:
    result = generate("the", "--temperature", "0.5")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "temperature: a diffusion model draws by its own schedule" in result.stderr
    assert not text.received
    assert "temperature" in generate("the", "--temperature", "-1").stderr


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
