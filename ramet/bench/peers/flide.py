"""Flide on the same weights and ids, as its own server runs a round: through its recorded graphs where the round fits
one, else packed.

Written against Flide 0.1.4. It is no dependency: it has to be importable beside Ramet.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ramet.bench.core.bodies import MODEL
from ramet.bench.core.samples import JsonObject
from ramet.bench.core.timing import Answer, Run, clocked, on_device
from ramet.bench.peers.peer import Contestant, Prompts
from ramet.bench.peers.server import ServerProcess
from ramet.errors import RametError

_HEAD = "ramet"  # under which its engine finds the columns that are read
_SERVE = f"--format next_token --name {MODEL} --host 127.0.0.1 --port {{port}}".split()


class FlidePeer:
    """Flide's engine, everything recorded that its own server records."""

    ratios = (
        ("flide", "ours", "flide_over_ours"),
        ("flide", "round", "flide_over_round"),
        ("flide replay", "pass", "replay_over_pass"),
        ("pass", "floor", "pass_over_floor"),
    )

    def __init__(self, checkpoint: Path) -> None:
        """Raises RametError where Flide is not installed or does not start."""
        self.name = f"flide {installed()}"
        try:
            flide = import_module("flide")
            self._base = import_module("flide.formats.base")
            self._rows = import_module("flide.formats.next_token").TokenRows
            self._engine: Any = flide.Engine(
                str(checkpoint), format="next_token", backbone_options={"cuda_graphs": True}, capture=True
            )
        except (ImportError, RuntimeError, ValueError) as error:
            raise RametError(f"flide does not start: {type(error).__name__}: {error}") from error
        self._paths: set[str] = set()

    def contestants(self, prompts: Prompts, columns: Sequence[int]) -> dict[str, Contestant]:
        """flide: from ids to logits. flide replay, where the round fits one of its graphs: that graph alone."""
        backbone = self._engine.backbone
        weight, bias = backbone.output_head()
        softcap = getattr(backbone, "logit_softcap", None)
        self._engine.heads[_HEAD] = self._rows(weight, list(columns), bias, softcap=softcap)
        self._paths = set()
        found: dict[str, Contestant] = {"flide": lambda prompts: partial(clocked, lambda: self._round(prompts))}
        if self._graph_of(prompts) is not None:
            found["flide replay"] = self._replay
        return found

    def notes(self) -> JsonObject:
        """Which of its ways the rounds took: "graph", or "packed" where they fitted none."""
        return {"flide_paths": sorted(self._paths)}

    @torch.inference_mode()
    def _round(self, prompts: Prompts) -> Answer:
        read = (self._base.Read(_HEAD),)
        plans = [self._base.Plan(prompt.state, prompt.questions, read) for prompt in prompts]
        outputs, paths = self._engine.forward(plans, mode="batch")
        self._paths.update(paths)
        return np.array([reads[0][0] for branches in outputs for reads in branches], np.float32)

    @torch.inference_mode()
    def _replay(self, prompts: Prompts) -> Run:
        """Staged ahead; the replay is what is timed."""
        graphs = self._engine.backbone.request_graphs()
        key = self._graph_of(prompts)
        assert key is not None  # its graphs are chosen by lengths alone, which all prompts of a shape share
        graphs._stage_flat(_items(prompts), key[1])
        return on_device(graphs.graphs[key].replay, self._engine.backbone.device)

    def _graph_of(self, prompts: Prompts) -> tuple[str, int] | None:
        """The key of the graph that a round of these takes, if it takes a single one whose staging is known here."""
        graphs = self._engine.backbone.request_graphs()
        if graphs is None or not hasattr(graphs, "_stage_flat"):  # of Qwen3.5's graphs alone
            return None
        key = "flat", graphs.flat_shape(_items(prompts))
        return key if key[1] is not None and graphs.capture(key) else None


def server(checkpoint: Path, cache: Path) -> ServerProcess:
    """Its own server out of this environment, with its defaults; what it compiles goes to `cache`."""
    command = [sys.executable, "-m", "flide.cli", "serve", "--model", str(checkpoint), *_SERVE]
    env = {"HF_HUB_OFFLINE": "1", "TRITON_CACHE_DIR": str(cache), "TOKENIZERS_PARALLELISM": "false"}
    return ServerProcess("flide", command, env)


def installed() -> str:
    """Flide's version. Raises RametError where there is none."""
    try:
        return version("flide")
    except PackageNotFoundError as error:
        remedy = "pip install flide, in an environment of its own beside ramet"
        raise RametError(f"flide is not installed here: {remedy}") from error


def _items(prompts: Prompts) -> list[tuple[list[int], list[list[int]], None]]:
    return [(prompt.state, prompt.questions, None) for prompt in prompts]
