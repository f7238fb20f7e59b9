"""Rules for operations of chat templates that may cost more than in proportion to their arguments, counted beforehand.

A rule takes RenderLimits, then the operation's arguments, the first of which it returns for the operation.
"""

# ruff: noqa: ARG001 - a rule names what its operation takes
from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from ramet.text.limits import ENTRY, LimitReached, RenderLimits

Rule = Callable[..., Any]

_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # what str.splitlines knows
_SPACES = "".join(chr(i) for i in range(0x3001) if chr(i).isspace())
_NUMBER = 350  # letters of a float, in full
_FORMATS_A_LETTER = 256  # what the C library's strftime may make of a letter, as Python lets it
_QUADRATIC = 4  # a text's length squared counts as this many times less letters


def binary(limits: RenderLimits, operator: str, left: Any, right: Any) -> None:
    """Count an operator between two values."""
    if operator == "%" and isinstance(left, str):
        numbers = [int(n) for n in re.findall(r"\d+", left)] + [0]
        if "*" in left:
            numbers += [n for n in (right if isinstance(right, tuple) else (right,)) if isinstance(n, int)]
        limits.write(len(left) + left.count("%") * (limits.weight(right) + max(map(abs, numbers)) + _NUMBER))
        return
    limits.number(left)
    limits.number(right)
    if operator == "*":
        _times(limits, left, right)
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        limits.bits(left.bit_length() * abs(right))


def _times(limits: RenderLimits, left: Any, right: Any) -> None:
    for value, n in ((left, right), (right, left)):
        if isinstance(n, int) and n > 0 and isinstance(value, (str, list, tuple)):
            limits.write(len(value) * n * (1 if isinstance(value, str) else ENTRY))


def _to_width(limits: RenderLimits, value: Any, width: Any = 80, *_: Any) -> Any:
    limits.write(_number(width))
    return value


def _expand(limits: RenderLimits, value: str, tabsize: Any = 8) -> str:
    limits.write(value.count("\t") * _number(tabsize))
    return value


def _replace(limits: RenderLimits, value: Any, old: Any, new: Any, count: Any = None) -> Any:
    text, old, new = (_text(limits, each) for each in (value, old, new))
    if len(new) > len(old):
        limits.write(len(text) + text.count(old) * (len(new) - len(old)))
    return value


def _join(limits: RenderLimits, separator: Any, values: Any) -> list[Any]:
    """Count the values to join, which may come one by one."""
    if isinstance(values, str):
        limits.write(ENTRY * len(values))
    held: list[Any] = limits.made(list(values))
    limits.write(limits.weight(held) + len(held) * limits.weight(separator))
    return held


def _join_filter(limits: RenderLimits, value: Any, d: Any = "", attribute: Any = None) -> list[Any]:
    return _join(limits, d, value)


def _indent(limits: RenderLimits, s: Any, width: Any = 4, *_: Any, **__: Any) -> Any:
    text = _text(limits, s)
    limits.write((1 + _count(text, _BREAKS)) * (len(width) if isinstance(width, str) else _number(width)))
    return s


def _split(limits: RenderLimits, value: str, sep: Any = None, maxsplit: Any = -1) -> str:
    limits.write(ENTRY * (value.count(sep) if isinstance(sep, str) else _count(value, _SPACES)))
    return value


def _splitlines(limits: RenderLimits, value: str, keepends: Any = False) -> str:
    limits.write(ENTRY * _count(value, _BREAKS))
    return value


def _translate(limits: RenderLimits, value: str, table: Any) -> str:
    limits.write(len(value) * limits.weight(table))
    return value


def _letter_by_letter(limits: RenderLimits, value: Any, *_: Any, **__: Any) -> Any:
    if isinstance(value, (str, range)):
        limits.write(ENTRY * len(value))
    return value


def _parts(limits: RenderLimits, value: Any, n: Any, fill_with: Any = None) -> Any:
    limits.write(ENTRY * _number(n))
    return _letter_by_letter(limits, value)


def _batch(limits: RenderLimits, value: Any, linecount: Any, fill_with: Any = None) -> Any:
    return _parts(limits, value, linecount)


def _slice(limits: RenderLimits, value: Any, slices: Any, fill_with: Any = None) -> Any:
    return _parts(limits, value, slices)


def _json(limits: RenderLimits, value: Any, *_: Any, indent: Any = None, separators: Any = None, **__: Any) -> Any:
    entries = limits.weight(value) // ENTRY
    deep = 0 if indent is None else limits.depth(value) * (len(indent) if isinstance(indent, str) else _number(indent))
    limits.write(entries * (deep + limits.weight(separators)))
    return value


def _round(limits: RenderLimits, value: Any, precision: Any = 0, method: Any = "common") -> Any:
    if isinstance(precision, int):
        limits.bits(4 * abs(precision))
    return value


def _sum(limits: RenderLimits, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    if not isinstance(start, (int, float)):
        iterable = limits.made(list(iterable))
        limits.write(len(iterable) * (limits.weight(iterable) + limits.weight(start)))
    return iterable


def _squared(limits: RenderLimits, value: Any, *args: Any, **kwargs: Any) -> Any:
    """Count for functions of Jinja and Python that copy the text for each word that they find."""
    size = limits.weight(value)
    limits.write(size * size // _QUADRATIC + size * sum(map(limits.weight, (*args, *kwargs.values()))))
    return value


def _percent(limits: RenderLimits, value: Any, *args: Any, **kwargs: Any) -> Any:
    binary(limits, "%", _text(limits, value), kwargs or args)
    return value


def _format(limits: RenderLimits, value: str, *args: Any, **kwargs: Any) -> str:
    given = limits.weight(args) + limits.weight(kwargs)
    most = len(value)
    for _, field, spec, _ in Formatter().parse(value):
        if spec and "{" in spec:
            raise LimitReached("takes a format's width from a value, which has no limit")
        if field is not None:
            most += given + _NUMBER + sum(map(int, re.findall(r"\d+", spec or "")))
    limits.write(most)
    return value


def _strftime(limits: RenderLimits, format: Any) -> Any:  # noqa: A002, its name in templates
    limits.write(_FORMATS_A_LETTER * len(format))
    return format


def _lipsum(limits: RenderLimits, n: Any = 5, html: Any = True, min: Any = 20, max: Any = 100) -> Any:  # noqa: A002
    limits.write(_number(n) * _number(max) * ENTRY)
    return n


def _refused(limits: RenderLimits, value: Any, *_: Any, **__: Any) -> Any:
    raise LimitReached("works on bytes, which have no limits here")


FILTERS: Mapping[str, Rule] = {
    "batch": _batch, "center": _to_width, "dictsort": _letter_by_letter, "format": _percent, "indent": _indent,
    "join": _join_filter, "list": _letter_by_letter, "pprint": _squared, "replace": _replace, "round": _round,
    "slice": _slice, "sort": _letter_by_letter, "striptags": _squared, "sum": _sum, "title": _letter_by_letter,
    "tojson": _json, "unique": _letter_by_letter, "urlencode": _letter_by_letter, "urlize": _squared,
    "wordcount": _letter_by_letter, "wordwrap": _squared,
}  # fmt: skip
METHODS: Mapping[str, Rule] = {
    "center": _to_width, "ljust": _to_width, "rjust": _to_width, "zfill": _to_width, "expandtabs": _expand,
    "replace": _replace, "split": _split, "rsplit": _split, "splitlines": _splitlines, "translate": _translate,
    "format": _format, "encode": _refused, "to_bytes": _refused,
}  # fmt: skip
FUNCTIONS: Mapping[str, Rule] = {"strftime_now": _strftime, "generate_lorem_ipsum": _lipsum}


def call(limits: RenderLimits, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Count a call of a method of a text or a list, or of a template's function. Returns the arguments for the call."""
    method = getattr(function, "__wrapped__", function)  # of a text's `format` in a sandbox
    if not isinstance(method, types.BuiltinMethodType):
        rule = FUNCTIONS.get(getattr(function, "__name__", ""))
        return args if rule is None else (rule(limits, *args, **kwargs), *args[1:])
    owner: Any = method.__self__
    limits.read(owner)
    if isinstance(owner, type):  # of a type's own method, such as `fromkeys`
        return (_letter_by_letter(limits, *args), *args[1:])
    if method.__name__ == "join":
        return (_join(limits, owner, *args),)
    if method.__name__ == "format_map":
        _format(limits, owner, *args)
    elif rule := METHODS.get(method.__name__):
        rule(limits, owner, *args, **kwargs)
    return args


def _number(value: Any) -> int:
    return max(0, int(value)) if isinstance(value, (int, float)) else 0


def _count(text: str, letters: str) -> int:
    return sum(map(text.count, letters))


def _text(limits: RenderLimits, value: Any) -> str:
    """The text that filters write for a value; counts the making of it."""
    if isinstance(value, str):
        return value
    limits.write(limits.weight(value))
    return str(value)
