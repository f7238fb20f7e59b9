"""A server that is asked, its address, and the proxies on the way."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner
from conftest import Serve
from fakes.stub_engine import StubEngine

from ramet import cli
from ramet.cli.remote import endpoint, is_here, proxy_for

NOWHERE = "http://127.0.0.1:9"  # the port that drops what it is sent; nothing listens there
FAR = "http://server.invalid:8000"


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "http://localhost:8000/", "http://localhost:8000/v1", "http://localhost:8000/v1/systemone"],
)
def test_endpoint(url: str) -> None:
    assert endpoint(url) == "http://localhost:8000/v1/systemone"


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


def decide(url: str) -> tuple[int, str]:
    """Exit code and stderr of `ramet decide --url`, which raises nothing else."""
    words = ["decide", "--state", "hi", "--noul", "a=Is it warm?", "--json", "--url", url]
    result = CliRunner().invoke(cli.main, words, catch_exceptions=False)
    return result.exit_code, result.stderr


@pytest.mark.parametrize("no_proxy", [None, "127.0.0.1", "[::1, *%%"])
@pytest.mark.parametrize(
    ("variable", "proxy"),
    [("HTTP_PROXY", NOWHERE), ("ALL_PROXY", "socks5://127.0.0.1:9"), ("http_proxy", "::::"), ("all_proxy", "ftp://x")],
)
def test_this_machine_is_asked_without_a_proxy(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str, no_proxy: str | None
) -> None:
    monkeypatch.setenv(variable, proxy)
    if no_proxy is not None:
        monkeypatch.setenv("NO_PROXY", no_proxy)
    assert decide(serve(StubEngine()).url) == (0, "")


@pytest.mark.parametrize(
    ("variable", "proxy", "cause", "told"),
    [
        ("HTTP_PROXY", NOWHERE, "Connection refused", NOWHERE),
        ("http_proxy", "127.0.0.1:9", "Connection refused", NOWHERE),
        ("HTTP_PROXY", "http://me:secret@127.0.0.1:9", "Connection refused", NOWHERE),
        ("ALL_PROXY", "socks5://127.0.0.1:9", "pip install socksio", "socks5://127.0.0.1:9"),
        ("ALL_PROXY", "::::", "Invalid port", "http://::::"),
        ("HTTP_PROXY", "http://[::1", "Invalid", "http://[::1"),
        ("HTTP_PROXY", "ftp://x", "Unknown scheme", "ftp://x"),
    ],
)
def test_an_error_on_the_way_names_the_proxy_and_the_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, proxy: str, cause: str, told: str
) -> None:
    monkeypatch.setenv(variable, proxy)
    code, said = decide(FAR)
    assert code == 1
    assert cause in said
    assert f"by the proxy {told} of {variable};" in said
    assert "secret" not in said


@pytest.mark.parametrize("url", ["http://[::1", "http://server.invalid:port"])
def test_an_address_that_is_none(url: str) -> None:
    code, said = decide(url)
    assert code in (1, 2)
    assert said.startswith(f"Error: {url}/v1/systemone")


def test_hosts_that_are_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", NOWHERE)
    assert proxy_for(FAR) is not None
    assert proxy_for(FAR.replace("http:", "https:")) is None
    monkeypatch.setenv("NO_PROXY", "elsewhere, .invalid")
    assert proxy_for(FAR) is None


@pytest.mark.parametrize("host", ["localhost", "a.localhost", "127.8.0.1", "::1", "0.0.0.0"])
def test_hosts_that_are_this_machine(host: str) -> None:
    assert is_here(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "localhost.org", "example.org", ""])
def test_hosts_that_are_not(host: str) -> None:
    assert not is_here(host)
