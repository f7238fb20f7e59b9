"""What the routes do for a body before any model runs: attacks beside honest bodies of the same size, in turn.

python -m tests.attacks.work [--repeats 3]
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import time
from collections.abc import Callable
from statistics import median

from fixtures.vocabularies import qwen
from rich.console import Console
from rich.table import Table

from ramet.decide.budget import Budget
from ramet.decide.decider import Decider
from ramet.decide.settings import DecideSettings
from ramet.errors import RequestError
from ramet.request import DecisionRequest
from ramet.server.bodies import decompress
from ramet.server.documents import parse_json
from ramet.server.openai.request import ChatRequest, CompletionRequest
from ramet.server.openai.text_request import TextRequest
from ramet.text.conversation import Conversation
from tests.attacks.bodies import ATTACKS, CHAT, COMPLETIONS, DECISIONS, LIMIT, completion, decision

MOST = 65_536  # tokens of a request
NOUL = {"type": "noul", "instructions": "Did the parcel come later than the seller had promised?"}
TEXT: dict[str, type[TextRequest]] = {CHAT: ChatRequest, COMPLETIONS: CompletionRequest}
RECORD = {"id": 17, "name": "Ada", "paid": True, "note": "asked twice", "tags": ["late", "door"]}


class Route:
    """Reads bodies as the server does, and plans them for a vocabulary of Qwen's kind."""

    def __init__(self) -> None:
        self._tokenizer, self._frame, self._template = qwen()

    def work(self, path: str, body: bytes) -> None:
        """All but the model's own; a refusal ends it."""
        try:
            data = parse_json(decompress(body, "gzip", max_bytes=LIMIT))
            if path == DECISIONS:
                decider = Decider(self._tokenizer, self._frame, DecideSettings(method="letters"))
                decider.plan(DecisionRequest.parse(data), Budget(MOST))
            else:
                TEXT[path].parse(data).generations(Conversation(self._tokenizer, self._template, most=MOST))
        except RequestError:
            pass


def honest(size: int) -> dict[str, tuple[str, bytes]]:
    """Bodies of about so many bytes, as people's programs send them, and where."""
    n_records = max(1, size // len(json.dumps(RECORD)))
    n_questions = max(1, size // (len(json.dumps(NOUL)) + 12))
    n_words = max(1, size // 12)
    decisions = {
        "a text": decision("the cat sat " * n_words),
        "records": decision([RECORD] * n_records),
        "questions": decision(questions={f"question{i}": NOUL for i in range(n_questions)}),
        "numbers": decision([i / 7 for i in range(size // 20)]),
        "a grid": decision([[0, 1, 1, 0, 1, 0, 0, 1]] * (size // 26)),
        "words by number": decision({str(i): i for i in range(size // 16)}),
    }
    prompts = completion(["the cat sat " * 10_000] * max(1, min(128, size // 120_000)))
    return {name: (DECISIONS, body) for name, body in decisions.items()} | {"prompts": (COMPLETIONS, prompts)}


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    n = parser.parse_args().repeats
    route, table = Route(), Table("attack", "MB", "s", "longest honest of the size", "s", "ratio")
    gc.collect()
    gc.freeze()  # as the server does
    for attack in ATTACKS:
        body = attack.sent()[0]
        size = len(attack.body())
        others = {name: (path, gzip.compress(each, 1)) for name, (path, each) in honest(size).items()}
        ours, theirs = list[float](), {name: list[float]() for name in others}
        for _ in range(n):
            ours.append(seconds(lambda: route.work(attack.path, body)))  # noqa: B023 - called at once
            for name, (path, each) in others.items():
                theirs[name].append(seconds(lambda: route.work(path, each)))  # noqa: B023
        longest = max(theirs, key=lambda name: median(theirs[name]))
        took, honestly = median(ours), median(theirs[longest])
        cells = (f"{size / 1e6:.2f}", f"{took:.3f}", longest, f"{honestly:.3f}", f"{took / honestly:.2f}")
        table.add_row(attack.name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
