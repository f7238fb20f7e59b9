"""Examples that training never sees, kept beside the model: what `ramet bench elastic --quick` has it answer.

python -m training.held_out models/sprig-10m-b32
"""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

from training.tasks.all import TASKS
from training.tasks.example import Example, examples

FILE = "held_out.json"
N, SEED = 500, 0


def by_turns(n: int = N, seed: int = SEED) -> list[Example]:
    """One of every task by turns."""
    each = [examples(make, seed, held_out=True) for make in TASKS.values()]
    return list(islice((next(task) for _ in iter(int, 1) for task in each), n))


def text() -> str:
    """A line each."""
    lines = (json.dumps({"task": e.task, "prompt": e.prompt, "answer": e.answer}) for e in by_turns())
    return "[\n" + ",\n".join(lines) + "\n]\n"


def write(directory: Path) -> None:
    (directory / FILE).write_text(text(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
