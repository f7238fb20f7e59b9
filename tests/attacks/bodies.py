"""Bodies that cost, or once cost, far more than their size says."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

DECISIONS, CHAT, COMPLETIONS = "/v1/systemone", "/v1/chat/completions", "/v1/completions"
LIMIT = 16 << 20  # bytes that a body may have by default, before and after decompression
NOUL = {"type": "noul", "instructions": "Is it late?"}
LONG = "n" * (1 << 20)


@dataclass(frozen=True)
class Attack:
    """What is sent, compressed, and the status that it gets."""

    name: str
    path: str
    body: Callable[[], bytes]  # as JSON
    status: int

    def sent(self) -> tuple[bytes, dict[str, str]]:
        """The body on the wire, and its headers."""
        return gzip.compress(self.body(), 1), {"content-encoding": "gzip", "content-type": "application/json"}


def decision(state: Any = "The parcel is late.", questions: Any = None, **fields: Any) -> bytes:
    """The body of one; the fields may be anything."""
    return json.dumps({"state": state, "questions": questions or {"q": NOUL}, **fields}).encode()


def chat(content: Any, **fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1, **fields}).encode()


def completion(prompt: Any, **fields: Any) -> bytes:
    return json.dumps({"prompt": prompt, "max_tokens": 1, **fields}).encode()


def numbered(n: int, value: Any) -> dict[str, Any]:
    return dict.fromkeys(map(str, range(n)), value)


def raw(before: str, unit: str, after: str, size: int = LIMIT) -> bytes:
    """As many units between the two as the size has room for."""
    n = (size - len(before) - len(after)) // len(unit.encode())
    return (before + unit * n + after).encode()


def of_state(unit: str, before: str = '"', after: str = '"', size: int = LIMIT) -> bytes:
    """A decision whose state is made of many units."""
    head = '{"questions": {"q": {"type": "noul", "instructions": "Late?"}}, "state": '
    return raw(head + before, unit, after + "}", size)


def duplicates(n: int) -> bytes:
    """An object of many names, the last of which has come before."""
    pairs = ",".join(f'"{i}":0' for i in (*range(n), n - 1))
    return f'{{"questions": {{"q": {{"type": "noul", "instructions": "Late?"}}}}, "state": {{{pairs}}}}}'.encode()


def letters(n: int) -> str:
    return "".join(random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=n))


def errors() -> Iterator[Attack]:
    """What is wrong in many places, under long names."""
    wrong = {"type": "choice", "criteria": numbered(255, 7)}
    yield Attack(
        "long name, unknown fields", DECISIONS, lambda: decision(questions={LONG: NOUL | numbered(10_000, 0)}), 422
    )
    yield Attack("many unknown fields", DECISIONS, lambda: decision(questions={"q": NOUL | numbered(200_000, 0)}), 422)
    yield Attack("a long unknown field", DECISIONS, lambda: decision(questions={"q": NOUL | {LONG: 0}}), 422)
    yield Attack(
        "long names, wrong options",
        DECISIONS,
        lambda: decision(questions={f"{i}{'n' * 1000}": wrong for i in range(1400)}),
        422,
    )
    yield Attack("wrong questions", DECISIONS, lambda: decision(questions=numbered(350_000, 7)), 422)
    yield Attack(
        "long option", DECISIONS, lambda: decision(questions={"q": {"type": "choice", "criteria": {LONG: 7}}}), 422
    )
    yield Attack(
        "too many options",
        DECISIONS,
        lambda: decision(questions={"q": {"type": "choice", "criteria": numbered(350_000, 7)}}),
        422,
    )
    yield Attack(
        "too many levels",
        DECISIONS,
        lambda: decision(questions={"q": {"type": "score", "criteria": [7] * 350_000}}),
        422,
    )
    yield Attack("long type", DECISIONS, lambda: decision(questions={"q": {"type": LONG}}), 422)
    yield Attack(
        "long path", DECISIONS, lambda: of_state(f'{{"{"n" * 100_000}":' * 90, "", "1e999" + "}" * 90, 9_100_000), 422
    )
    yield Attack("many fields", DECISIONS, lambda: decision(**numbered(350_000, 0)), 422)
    yield Attack("many near fields", DECISIONS, lambda: decision(**{f"x_debis{i}": 0 for i in range(250)}), 422)
    yield Attack("long model", DECISIONS, lambda: decision(model=LONG), 422)
    yield Attack("many temperatures", DECISIONS, lambda: decision(x_temperature=numbered(350_000, 1)), 422)
    yield Attack(
        "texts for ids",
        COMPLETIONS,
        lambda: raw('{"prompt":"x","stop_token_ids":["', '","', '"]}', 1 << 20),
        400,
    )
    yield Attack("many texts for ids", COMPLETIONS, lambda: raw('{"prompt":"x","stop_token_ids":[""', ',""', "]}"), 400)
    yield Attack("many stops", COMPLETIONS, lambda: completion("x", stop=["s"] * 350_000), 400)
    yield Attack("long stop", COMPLETIONS, lambda: completion("x", stop=LONG), 400)
    yield Attack("many arguments", COMPLETIONS, lambda: completion("x", vllm_xargs=numbered(350_000, 0)), 400)
    yield Attack("many stream options", CHAT, lambda: chat("x", stream_options=numbered(350_000, 0)), 400)
    yield Attack("a long parameter", CHAT, lambda: chat("x", **{LONG: 1}), 400)
    yield Attack("a long model", CHAT, lambda: chat("x", model=LONG), 404)
    yield Attack("a long variable", CHAT, lambda: chat("x", chat_template_kwargs={LONG: 1}), 400)
    yield Attack("many variables", CHAT, lambda: chat("x", chat_template_kwargs=numbered(350_000, 1)), 400)
    yield Attack("a long role", CHAT, lambda: json.dumps({"messages": [{"role": LONG, "content": "x"}]}).encode(), 400)
    yield Attack("a long part", CHAT, lambda: chat([{"type": LONG}]), 400)
    yield Attack("ids that are none", COMPLETIONS, lambda: completion([1 << 60] * 350_000), 400)
    yield Attack("digits", DECISIONS, lambda: decision(x_seed=int("9" * 4000)), 400)


def documents() -> Iterator[Attack]:
    """What is slow, or large, to parse."""
    yield Attack("duplicate keys", DECISIONS, lambda: duplicates(32_000), 422)
    yield Attack("more duplicate keys", DECISIONS, lambda: duplicates(350_000), 422)
    yield Attack("empty lists", DECISIONS, lambda: of_state("[],", "[", "0]"), 400)
    yield Attack("empty objects", DECISIONS, lambda: of_state("{},", "[", "0]"), 400)
    yield Attack("small objects", DECISIONS, lambda: of_state('{"a":0},', "[", "0]"), 400)
    yield Attack("digits alone", DECISIONS, lambda: of_state("7,", "[", "0]"), 400)
    yield Attack("empty texts", DECISIONS, lambda: of_state('"",', "[", "0]"), 400)
    yield Attack("deep and wide", DECISIONS, lambda: of_state("[" * 99 + "]" * 99 + ",", "[", "0]"), 400)
    yield Attack("too deep", DECISIONS, lambda: of_state("[", "", "]"), 400)
    yield Attack("quotes alone", DECISIONS, lambda: b'"' * LIMIT, 400)
    yield Attack("backslashes", DECISIONS, lambda: b'"' + rb"\\" * (LIMIT // 2 - 1) + b'"', 422)
    yield Attack("escaped quotes", DECISIONS, lambda: of_state(r"\""), 413)
    yield Attack("long numbers", DECISIONS, lambda: of_state("9" * 4000 + ",", "[", "0]"), 400)
    yield Attack("exponents", DECISIONS, lambda: of_state("1e-99999999,", "[", "0]"), 400)
    yield Attack("arguments in a text", CHAT, lambda: _calls("[[]" + ",[]" * 2_000_000 + "]"), 400)
    yield Attack("deep arguments in a text", CHAT, lambda: _calls('{"a":' * 200_000 + "1" + "}" * 200_000), 400)
    yield Attack("as many numbers as there may be", DECISIONS, lambda: of_state("0,", "[", "0]", 3 << 18), 413)
    yield Attack("as many lists as there may be", DECISIONS, lambda: of_state("[],", "[", "0]", 9 << 17), 413)
    yield Attack("as many objects as there may be", DECISIONS, lambda: of_state('{"a":0},', "[", "0]", 3 << 19), 413)
    yield Attack("as many names as there may be", DECISIONS, lambda: decision(numbered(350_000, 0)), 413)


def _calls(arguments: str) -> bytes:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return json.dumps({"messages": messages, "max_tokens": 1}).encode()


UNITS = {
    "a": "a",
    "spaces": " ",
    "breaks": r"\n",
    "digits": "7",
    "words": "the cat sat ",
    "ideograms": "你好",
    "pictures": "🦩",
    "controls": "<|im_start|>",
    "halves": "<|im_sta",
    "accents": "e\u0301",
}


def plans() -> Iterator[Attack]:
    """What cannot fit, and would take long to be put into tokens."""
    for name, unit in UNITS.items():
        yield Attack(f"state of {name}", DECISIONS, lambda unit=unit: of_state(unit), 413)  # type: ignore[misc]
        yield Attack(
            f"message of {name}",
            CHAT,
            lambda unit=unit: raw('{"max_tokens":1,"messages":[{"role":"user","content":"', unit, '"}]}'),
            400,
        )  # type: ignore[misc]
        yield Attack(
            f"prompt of {name}", COMPLETIONS, lambda unit=unit: raw('{"max_tokens":1,"prompt":"', unit, '"}'), 400
        )  # type: ignore[misc]
    yield Attack("data URL", DECISIONS, lambda: of_state("data:image/png;base64,"), 422)
    yield Attack("random letters", DECISIONS, lambda: decision(letters(LIMIT - 1000)), 413)
    yield Attack("65,537 questions", DECISIONS, lambda: decision(questions=numbered(65_537, NOUL)), 422)
    yield Attack("150,000 questions", DECISIONS, lambda: decision(questions=numbered(150_000, NOUL)), 400)
    yield Attack(
        "as many questions as there are tokens", DECISIONS, lambda: decision(questions=numbered(8_000, NOUL)), 413
    )
    yield Attack(
        "long instructions in 16 orders",
        DECISIONS,
        lambda: decision(
            questions={
                "q": {"type": "choice", "instructions": "a" * (LIMIT - 1000), "criteria": {"a": None, "b": None}}
            },
            x_debias=16,
        ),
        413,
    )
    yield Attack(
        "long options in 16 orders",
        DECISIONS,
        lambda: decision(questions={"q": {"type": "choice", "criteria": numbered(255, "word " * 10_000)}}, x_debias=16),
        413,
    )
    yield Attack(
        "a long option as a reply",
        DECISIONS,
        lambda: decision(
            questions={"q": {"type": "choice", "criteria": {"a": "🦩" * 1_300_000, "b": "c"}}}, x_method="options"
        ),
        413,
    )
    yield Attack(
        "many messages",
        CHAT,
        lambda: json.dumps(
            {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}] * 90_000}
        ).encode(),
        400,
    )
    yield Attack("many parts", CHAT, lambda: chat([{"type": "text", "text": "x"}] * 200_000), 400)
    yield Attack("ids", COMPLETIONS, lambda: completion([1] * 350_000), 400)
    yield Attack("prompts", COMPLETIONS, lambda: completion(["a b " * 30_000] * 128), 400)


ATTACKS = (*errors(), *documents(), *plans())
