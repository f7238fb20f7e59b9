"""Who computes each op: chosen once for a shape, with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fixtures.cpu_variants import skip_without_kernels
from fixtures.tiny_engine import tiny_engine

from ramet.errors import InvalidRequest
from ramet.ops import OpShape, choose, native, reasons
from ramet.ops.attention import reference
from ramet.ops.attention import torch as plain
from ramet.ops.choice import OPS, OpChoice
from ramet.ops.native import loader
from ramet.ops.norm import reference as norm_reference
from ramet.request import DecisionRequest

CPU = torch.device("cpu")
SHAPE = OpShape(torch.float32, head_dim=64)


@pytest.fixture
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ramet.ops.backends.status", lambda: (False, "not compiled: no C++ compiler"))


def test_the_kernels_come_first() -> None:
    skip_without_kernels()
    ops = choose(CPU)(SHAPE)
    assert set(ops.why) == set(OPS)
    assert ops.why.pop("linear") == "torch (oneDNN, weights packed once; native does not take float32)"
    assert set(ops.why.values()) == {f"native ({native.status()[1]})"}
    assert not ops.recordable


def test_a_shape_that_the_kernels_do_not_take_goes_to_the_next() -> None:
    skip_without_kernels()
    choice = choose(CPU)
    odd = choice(replace(SHAPE, head_dim=24))
    assert odd.attention is plain.attention
    assert odd.why["attention"] == "torch (plain torch; native does not take heads of 24)"
    assert odd.rms_norm != norm_reference.rms_norm
    assert choice(replace(SHAPE, head_dim=24)) is odd, "once for a shape"
    both = reasons([choice(SHAPE), odd, odd])
    assert both["attention"] == f"{choice(SHAPE).why['attention']}; {odd.why['attention']}"
    assert both["norm"] == odd.why["norm"]


@pytest.mark.parametrize(
    ("changed", "op", "untaken"),
    [
        ({"dtype": torch.float16}, "norm", "float16"),
        ({"head_dim": 528}, "attention", "heads of 528"),
        ({"conv_width": 5, "n_channels": 32}, "conv", "a convolution of width 5 over 32 channels"),
        (
            {"n_key_heads": 1, "n_value_heads": 17, "key_dim": 16, "value_dim": 16},
            "gated_delta",
            "a delta rule with 1 of 16 as key heads and 17 of 16 as value heads",
        ),
    ],
)
def test_what_a_variant_does_not_take_is_reported(changed: dict[str, Any], op: str, untaken: str) -> None:
    skip_without_kernels()
    choice, shape = choose(CPU), replace(SHAPE, **changed)
    assert f"native does not take {untaken}" in choice(shape).why[op]
    assert choice.varies(shape) == untaken
    assert choice.varies(SHAPE) is None
    with pytest.raises(InvalidRequest, match=f"native does not take {untaken}"):
        choose(CPU, {op: "native"})(shape)


def test_without_kernels(without_kernels: None) -> None:
    ops = choose(CPU)(SHAPE)
    assert ops.attention is plain.attention
    assert ops.rms_norm is norm_reference.rms_norm
    assert ops.why["attention"] == "torch (plain torch; native is not compiled: no C++ compiler)"
    assert ops.why["norm"] == "reference (plain torch; native is not compiled: no C++ compiler)"
    with pytest.raises(InvalidRequest, match="'native' is not compiled: no C"):
        choose(CPU, {"norm": "native"})


def test_a_variant_that_is_asked_for() -> None:
    ops = choose(CPU, {"attention": "reference"})(SHAPE)
    assert ops.attention is reference.attention
    assert ops.why["attention"] == "reference (asked for)"
    assert choose(CPU, {"attention": "torch"})(SHAPE).why["attention"] == "torch (asked for)"
    assert choose(CPU, {"attention": "cpu"})(SHAPE).why == choose(CPU)(SHAPE).why


def test_the_routes_of_experts_go_with_them() -> None:
    assert choose(CPU, {"experts": "reference"})(SHAPE).why["route"] == "reference (asked for)"
    assert choose(CPU, {"experts": "reference", "route": "cpu"})(SHAPE).why["route"] == choose(CPU)(SHAPE).why["route"]


def test_a_weight_of_another_dtype_has_its_own_product() -> None:
    """As a router's may be."""
    pack = choose(CPU)(OpShape(torch.bfloat16)).pack
    weight, x = torch.randn(8, 16), torch.randn(3, 16)
    torch.testing.assert_close(pack(weight.clone())(x), x @ weight.T)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"attentoin": "cpu"}, "attention, norm, linear, head"),
        ({"attention": "fast"}, "override.attention: 'fast' is not one of triton, native, torch, reference, cpu"),
        ({"attention": "triton"}, "override.attention: 'triton' does not run on cpu"),
        ({"norm": "torch"}, "override.norm: 'torch' computes no norm"),
    ],
)
def test_an_unknown_choice_is_refused(override: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # which tests of Triton's kernels set
    with pytest.raises(InvalidRequest, match=message):
        choose(CPU, override)


def test_a_choice_for_another_device_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="does not run on meta"):
        choose(torch.device("meta"), {"norm": "cpu"})


def test_a_decision_looks_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """All was resolved at load: the library is not asked for again, nor its lock."""
    seen: list[str] = []
    request = DecisionRequest.model_validate(
        {"state": "It is warm.", "questions": {"q": {"type": "noul", "instructions": "Is it warm?"}}}
    )
    with tiny_engine() as engine:
        monkeypatch.setattr(loader, "_found", lambda: seen.append("library"))
        monkeypatch.setattr(OpChoice, "_pick", lambda *_: seen.append("choice"))
        engine.decide(request)
    assert seen == []
