"""parse_json: strict where Python's own parser is lax."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramet.errors import InvalidRequest
from ramet.server.documents import MAX_VALUES, parse_json
from ramet.server.errors import MalformedBody
from ramet.values import MAX_NESTING


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"a": "\xff"}', "not UTF-8: invalid start byte at byte 7"),
        (b'"\xed\xa0\xbd"', "not UTF-8"),  # a surrogate in UTF-8's clothes
        ('"é"'.encode("utf-16"), "not UTF-8"),
        (b"[NaN]", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b"[" + b"9" * 5000 + b"]", "a number with more than 1000 digits"),
        (b"[" * 1000 + b"]" * 1000, "nested more than 100 deep"),
        (b'{"a":' * 1000 + b"1" + b"}" * 1000, "nested more than 100 deep"),
        (b"[" * 200_000 + b"]" * 200_000, "nested more than 100 deep"),
        (b"[" * 101 + b"]" * 101, "nested more than 100 deep"),
    ],
)
def test_refused_as_malformed(body: bytes, message: str) -> None:
    with pytest.raises(MalformedBody, match=re.escape(message)):
        parse_json(body)


@pytest.mark.parametrize(
    ("body", "code", "loc"),
    [
        (b"", "json_invalid", (0,)),
        (b'{"model": "jev-latest", "questions": {', "json_invalid", (38,)),
        (b"{} {}", "json_invalid", (3,)),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "json_duplicate_name", ()),
    ],
)
def test_refused_as_invalid(body: bytes, code: str, loc: tuple[int, ...]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_json(body)
    (problem,) = caught.value.problems
    assert (problem.code, problem.loc) == (code, loc)


def test_a_name_given_twice_is_named() -> None:
    with pytest.raises(InvalidRequest, match="the name 'refund' twice"):
        parse_json(b'{"refund": 1, "refund": 1}')


def test_names_that_differ_in_normalisation_are_not_the_same() -> None:
    assert len(parse_json('{"caf\u00e9": 1, "cafe\u0301": 2}'.encode())) == 2


def test_taken() -> None:
    assert parse_json(b'\xef\xbb\xbf[1, 0.1, "\\ud83e\\udda9", null]') == [1, 0.1, "\U0001f9a9", None]
    assert parse_json(b"[" * MAX_NESTING + b"]" * MAX_NESTING)
    assert parse_json(b'"\\ud83d"') == "\ud83d"  # half a pair: for the request's own check, which names the field


def test_values_are_counted_as_they_are() -> None:
    """Up to the limit, in all kinds; what stands in strings counts for nothing."""
    for unit, n_values in (("0", 1), ("[]", 1), ("{ }", 1), ("[[0]]", 3), ('{"a": [1, 2]}', 4), ('"[,{\\\\\\","', 1)):
        n = (MAX_VALUES - 1) // n_values
        body = ("[" + ",".join([unit] * n)).encode()
        assert len(parse_json(body + b"]")) == n
        with pytest.raises(MalformedBody, match=f"more than {MAX_VALUES} values"):
            parse_json(body + b",0" * (MAX_VALUES - n_values * n) + b"]")


@given(st.recursive(st.none() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)))
def test_what_is_written_is_read(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        assert parse_json(text.encode("utf-8", "surrogatepass")) == value
