"""What an engine raises is of its own tree of errors, whatever it is given, and it lives on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from fixtures.tiny_engine import checkpoint, tiny_engine

from ramet.decide.plan import Plan
from ramet.engine import Engine
from ramet.errors import EngineFault, InvalidRequest, RametError
from ramet.generation import GenerationRequest
from ramet.tree import Read, Segment, Tree

NOUL = {"a": {"type": "noul", "instructions": "Is it late?"}}
TREE = Tree.of([Segment([1, 2, 3], reads=[Read([1])])])


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with tiny_engine("llama") as made:
        yield made


def decide(**fields: Any) -> Callable[[Engine], Any]:
    return lambda engine: engine.decide(**{"state": "x", "questions": NOUL} | fields)


def submit(**how: Any) -> Callable[[Engine], Any]:
    return lambda engine: engine.submit(how.pop("tree", TREE), **how).result()


def tree_of(ids: Any) -> Callable[[Engine], Any]:
    return lambda engine: engine.submit(Tree.of([Segment(ids, reads=[Read([1])])])).result()


def write(prompt: Any, **how: Any) -> Callable[[Engine], Any]:
    return lambda engine: engine.writer.generate(GenerationRequest(prompt, **{"max_tokens": 2} | how))


LOOP: dict[str, Any] = {}
LOOP["a"] = LOOP
REFUSED: dict[str, tuple[Callable[[Engine], Any], str | None]] = {
    "no request": (lambda engine: engine.decide(), "state"),
    "a dict": (lambda engine: engine.decide({"state": "x"}), "request"),  # type: ignore[arg-type]
    "a dict, awaited": (lambda engine: asyncio.run(engine.decide_async({"state": "x"})), "request"),  # type: ignore[arg-type]
    "a set": (decide(state={1, 2}), "state"),
    "bytes": (decide(state=b"x"), "state"),
    "not a number": (decide(state=[math.nan]), "state.0"),
    "an array": (decide(state=np.arange(3)), "state"),
    "a loop": (decide(state=LOOP), None),
    "half a pair": (decide(state="\ud83d"), "state"),
    "questions in a list": (decide(questions=[1]), "questions"),
    "no temperature": (decide(temperature=1e-300), "x_temperature"),
    "temperature nan": (decide(temperature=math.nan), "x_temperature"),
    "a salt of numbers": (decide(cache_salt=3), "cache_salt"),
    "no tree": (submit(tree=None), "tree"),
    "rows below 0": (submit(n_keep=-1), "n_keep"),
    "half a row": (submit(n_keep=1.5), "n_keep"),
    "a mark below 0": (submit(n_keep=3, mark=-7), "mark"),
    "no salt": (submit(n_keep=3, salt=None), "salt"),
    "an id of 41 bits": (tree_of([1 << 40]), "tokens"),
    "an id of 41 bits in an array": (tree_of(np.array([1 << 40])), "tokens"),
    "an id of 81 bits": (tree_of([1 << 80]), "tokens"),
    "half an id": (tree_of([1.5]), "tokens"),
    "a word": (tree_of(["a"]), "tokens"),
    "no prompt": (write(()), "prompt"),
    "a prompt in words": (write("abc"), "prompt"),
    "half an id in a prompt": (write((1.5, 2)), "prompt"),
    "a truth in a prompt": (write((True, 2)), "prompt"),
    "an id beyond all": (write((1 << 40,)), "prompt"),
    "no tokens": (write((1, 2), max_tokens=0), "max_tokens"),
    "a token and a half": (write((1, 2), max_tokens=1.5), "max_tokens"),
    "a reply's salt": (write((1, 2), cache_salt=None), "cache_salt"),
    "a reply's temperature": (write((1, 2), temperature=math.nan), "temperature"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_request_is_refused_and_harms_nobody(engine: Engine, case: str) -> None:
    ask, field = REFUSED[case]
    with pytest.raises(InvalidRequest) as caught:
        ask(engine)
    assert field is None or caught.value.field == field or caught.value.problems
    assert engine.fault is None
    assert np.isfinite(engine.submit(TREE).result().logits).all()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"nonsense": 3}, "nonsense"), ({"dtype": "float16"}, "dtype"), ({"threads": "two"}, "threads"),
        ({"threads": 1 << 40}, "threads"), ({"cache_bytes": "1GB"}, "cache_bytes"), ({"method": "x"}, "method"),
        ({"cache_bytes": 1 << 62}, "cache_bytes"), ({"device": "nowhere"}, "device"),
        ({"max_round_tokens": 0.5}, "max_round_tokens"),
    ],
)  # fmt: skip
def test_settings_that_there_are_not(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Engine.load(checkpoint("llama"), **{"device": "cpu", "dtype": "float32"} | settings)
    assert caught.value.field == field


@pytest.mark.parametrize("source", [None, 3, "", "a\0b", "no/such", b"x"])
def test_sources_that_there_are_not(source: Any) -> None:
    with pytest.raises(RametError):
        Engine.load(source)


def test_what_cannot_be_taken_in_fails_alone_and_at_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the reason: whoever waits must not hang, nor others fail."""
    keys, pages = type(engine.cache.pages).keys, engine.cache.pages

    def failing(self: Any, tokens: Any, *given: Any) -> Any:
        if len(tokens) == 2:
            raise ZeroDivisionError("oh")
        return keys(self, tokens, *given)

    monkeypatch.setattr(type(pages), "keys", failing)
    bad, good = engine.submit(TREE, n_keep=2), engine.submit(TREE, n_keep=3)
    with pytest.raises(EngineFault, match="cannot be taken in: ZeroDivisionError: oh"):
        bad.result()
    assert np.isfinite(good.result().logits).all()
    assert engine.fault is None


@pytest.mark.parametrize("where", ["plan", "answers"])
def test_a_fault_of_our_own_is_ours(
    engine: Engine, where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*given: Any, **more: Any) -> Any:
        raise KeyError("oh")

    monkeypatch.setattr(*((type(engine.decider), where) if where == "plan" else (Plan, where)), failing)
    with pytest.raises(EngineFault, match=r"cannot be made: KeyError: 'oh'"):
        engine.decide(state="x", questions=NOUL)
    assert "Traceback" in caplog.text
    assert engine.fault is None
