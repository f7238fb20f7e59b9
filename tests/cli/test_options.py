"""Options that become a request's fields."""

from __future__ import annotations

import click
import pytest

from ramet.cli.options import READOUT_FIELDS, given, readout_fields

NOTHING = dict.fromkeys(READOUT_FIELDS) | {"temperatures": ()}


def test_what_is_not_given_is_left_out() -> None:
    assert readout_fields(NOTHING) == {}
    assert given({"device": None, "dtype": "float32", "cache_bytes": 0, "other": 1}) == {
        "dtype": "float32",
        "cache_bytes": 0,
    }


def test_fields() -> None:
    values = (True, "letters", 3, 0.5, 4, 5, 0, ("1.5",), "top")
    assert readout_fields(dict(zip(READOUT_FIELDS, values, strict=True))) == {
        "joint": True,
        "x_method": "letters",
        "x_debias": 3,
        "x_prior": 0.5,
        "x_samples": 4,
        "x_steps": 5,
        "x_seed": 0,
        "x_temperature": 1.5,
        "x_confidence": "top",
    }
    fields = readout_fields(NOTHING | {"temperatures": ("choice=2", "noul=0.5")})
    assert fields == {"x_temperature": {"choice": 2.0, "noul": 0.5}}


@pytest.mark.parametrize(
    ("temperatures", "message"),
    [
        (("hot",), "'hot' is no positive number"),
        (("0",), "no positive number"),
        (("-1",), "no positive number"),
        (("nan",), "no positive number"),
        (("inf",), "no positive number"),
        (("choice=",), "no positive number"),
        (("words=1",), "'words' is no type of question"),
        (("choice=1", "choice=2"), "given twice for choice"),
        (("1", "2"), "given twice for all questions"),
        (("1", "noul=2"), "not both"),
    ],
)
def test_temperature_faults(temperatures: tuple[str, ...], message: str) -> None:
    with pytest.raises(click.BadParameter) as raised:
        readout_fields(NOTHING | {"temperatures": temperatures})
    assert message in str(raised.value)
