"""Numbers in English words."""

from __future__ import annotations

_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(n: int) -> str:
    """Of 0 to 9999: "two hundred and seven", "forty-one"."""
    assert 0 <= n < 10_000
    if n >= 1000:
        rest = f"{' and' if n % 1000 < 100 else ''} {in_words(n % 1000)}" if n % 1000 else ""
        return f"{_SMALL[n // 1000]} thousand{rest}"
    if n >= 100:
        return f"{_SMALL[n // 100]} hundred" + (f" and {in_words(n % 100)}" if n % 100 else "")
    if n >= 20:
        return _TENS[n // 10] + (f"-{_SMALL[n % 10]}" if n % 10 else "")
    return _SMALL[n]
