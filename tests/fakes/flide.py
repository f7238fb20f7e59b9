"""Flide's modules as far as the bench uses them, on transformers and on any device: the same answers, no graphs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

MAX_TOKENS = 256  # of its largest graph


@dataclass(frozen=True)
class Read:
    head: str


@dataclass
class Plan:
    prefix: list[int]
    suffixes: list[list[int]]
    reads: tuple[Read, ...]


class TokenRows:
    """Rows of the head, as logits of hidden states."""

    def __init__(self, weight: torch.Tensor, ids: list[int], bias: torch.Tensor | None, softcap: float | None) -> None:
        assert bias is None
        self.weight = weight[ids]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden @ self.weight.T


class Graphs:
    """One graph a length, which answers nothing when replayed."""

    def __init__(self) -> None:
        self.graphs: dict[tuple[str, int], Any] = {}
        self.staged: list[Any] = []
        self.n_replays = 0

    def flat_shape(self, items: list[Any]) -> int | None:
        n_tokens = sum(len(prefix) + sum(map(len, suffixes)) for prefix, suffixes, _ in items)
        return n_tokens if n_tokens <= MAX_TOKENS else None

    def capture(self, key: tuple[str, int]) -> bool:
        self.graphs.setdefault(key, SimpleNamespace(replay=self._replay))
        return True

    def _stage_flat(self, items: list[Any], n_tokens: int) -> None:
        self.staged.append((len(items), n_tokens))

    def _replay(self) -> None:
        self.n_replays += 1


class Engine:
    """loaded: the last one, for a test to look at."""

    loaded: Engine
    shift = 0.0  # what its first column is off by

    def __init__(self, model: str, **options: Any) -> None:
        assert options == {"format": "next_token", "backbone_options": {"cuda_graphs": True}, "capture": True}
        if not Path(model).is_dir():
            raise ValueError(f"{model} is no directory")
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.heads: dict[str, TokenRows] = {}
        self.graphs = Graphs()
        self.backbone = SimpleNamespace(
            output_head=lambda: (self.model.lm_head.weight.detach(), None),
            request_graphs=lambda: self.graphs,
            device=torch.device("cpu"),
        )
        Engine.loaded = self

    def forward(self, plans: list[Plan], mode: str) -> tuple[list[Any], list[str]]:
        assert mode == "batch"
        fits = self.graphs.flat_shape([(plan.prefix, plan.suffixes, None) for plan in plans]) is not None
        outputs = [[[[self._row(plan, suffix)]] for suffix in plan.suffixes] for plan in plans]
        return outputs, ["graph" if fits else "packed"] * len(plans)

    def _row(self, plan: Plan, suffix: list[int]) -> list[float]:
        (read,) = plan.reads
        hidden = self.model.model(torch.tensor([plan.prefix + suffix])).last_hidden_state[0, -1]
        row: list[float] = self.heads[read.head](hidden).tolist()
        row[0] += self.shift
        return row


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importable for the rest of a test, and found to be installed."""
    made = {
        "flide": {"Engine": Engine},
        "flide.formats": {},
        "flide.formats.base": {"Plan": Plan, "Read": Read},
        "flide.formats.next_token": {"TokenRows": TokenRows},
    }
    for name, contents in made.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("ramet.bench.peers.flide.version", lambda _: "0.1.4")
