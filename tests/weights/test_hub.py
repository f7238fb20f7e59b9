"""The hub: whether it answers is known in seconds, and what lies in its cache without asking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from ramet.weights import hub

SILENT = f"{constants.ENDPOINT} does not answer (ConnectionError)"


class Session:
    """Stands for the hub library's client."""

    def __init__(self, error: Exception | None) -> None:
        self.error, self.asked = error, list[tuple[str, float]]()

    def head(self, url: str, *, timeout: float) -> None:
        self.asked.append((url, timeout))
        if self.error:
            raise self.error


@pytest.mark.parametrize(("error", "why"), [(None, None), (ConnectionError("no route"), SILENT)])
def test_whether_it_answers(error: Exception | None, why: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(error)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: session)
    assert hub.why_silent() == why
    assert session.asked == [(constants.ENDPOINT, hub._PATIENCE_S)]


@pytest.mark.parametrize("offline", [True, False])
def test_whether_it_may_be_asked(offline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    assert hub.is_offline() == offline


def test_its_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str, Any] = {"there.gguf": str(tmp_path / "there.gguf"), "absent.gguf": None, "none.gguf": object()}
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda repo, file: known[file])
    assert [hub.cached("acme/wren", file) for file in known] == [tmp_path / "there.gguf", None, None]
