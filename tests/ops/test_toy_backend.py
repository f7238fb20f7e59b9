"""A new backend is a class and a line of BACKENDS: nothing else learns of it."""

from __future__ import annotations

import pytest
import torch
from fixtures.tiny_engine import tiny_engine
from oracles.decoders import CPU

from ramet.ops import OpShape, Variant, choose
from ramet.ops.attention import reference
from ramet.ops.backends import BACKENDS, Backend
from ramet.request import DecisionRequest

REQUEST = DecisionRequest.model_validate({
    "state": "It is warm.", "questions": {"q": {"type": "noul", "instructions": "Is it warm?"}},
})  # fmt: skip


class ToyAttention:
    """The reference's attention, of layers with small heads, which counts its calls."""

    n_calls = 0
    keep = staticmethod(reference.keep)

    def takes(self, shape: OpShape) -> str | None:
        return None if shape.head_dim <= 64 else f"heads of {shape.head_dim}"

    def attention(self, *given: object, **how: object) -> torch.Tensor:
        self.n_calls += 1
        return reference.attention(*given, **how)  # type: ignore[arg-type]


class ToyBackend(Backend):
    """Computes attention and nothing else."""

    def __init__(self) -> None:
        super().__init__("toy", "counted on fingers", devices=("cpu",))
        self.attention = ToyAttention()

    def variant(self, op: str) -> Variant | None:
        return self.attention if op == "attention" else None


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> ToyBackend:
    made = ToyBackend()
    monkeypatch.setitem(BACKENDS, "toy", made)
    return made


def test_it_is_chosen_by_its_name(toy: ToyBackend) -> None:
    with tiny_engine() as plain, tiny_engine(ops={"attention": "toy"}) as engine:
        expected, found = plain.decide(REQUEST), engine.decide(REQUEST)
        assert engine.describe()["op attention"] == "toy (asked for)"
    assert toy.attention.n_calls > 0
    numbers = [answer.answers["q"].model_dump(exclude={"type"}, exclude_none=True) for answer in (found, expected)]
    assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)


def test_it_is_chosen_by_itself_where_it_comes_first(toy: ToyBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    others = {name: each for name, each in BACKENDS.items() if name != "toy"}
    monkeypatch.setattr("ramet.ops.choice.BACKENDS", {"toy": toy, **others})
    choice = choose(CPU)
    small, large = (choice(OpShape(torch.float32, head_dim=n)) for n in (64, 128))
    assert small.why["attention"] == "toy (counted on fingers)"
    assert "toy does not take heads of 128" in large.why["attention"]
    assert not small.why["norm"].startswith("toy")
