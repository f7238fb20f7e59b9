"""Addresses of a server."""

from __future__ import annotations

import pytest

from ramet.cli.remote import endpoint


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1", "http://localhost:8000/v1/systemone"],
)
def test_endpoint(url: str) -> None:
    assert endpoint(url) == "http://localhost:8000/v1/systemone"
