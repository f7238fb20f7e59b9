"""One request to a running System One server."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from urllib.request import getproxies_environment, proxy_bypass

from ramet.errors import EngineFault, InvalidRequest

TIMEOUT_S = 600.0  # a long state on a CPU takes its time


class Refusal(InvalidRequest):
    """A server's refusal of one request: the `kind` of error that it names, and its `status`."""

    def __init__(self, message: str, *, field: str | None, kind: str, status: int) -> None:
        super().__init__(message, field=field)
        self.kind, self.status = kind, status


def endpoint(url: str, route: str = "/systemone") -> str:
    """The address of /v1 and a route, from that of the server, of its /v1 or of the route of decisions."""
    url = url.rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    return url.removesuffix("/v1/systemone").removesuffix("/v1") + "/v1" + route


def calibration_of(card: Mapping[str, Any]) -> str | None:
    """The digest of the calibration that a server applies, by its card of a model."""
    own = card.get("x_calibration")
    found = own.get("digest") if isinstance(own, dict) else None
    return found if isinstance(found, str) else None


def without_login(url: str) -> str:
    """An address as it may be shown and kept: without a name and a password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def ask(url: str, api_key: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
    """The server's answer. A status of 4xx is an InvalidRequest, all else that goes wrong an EngineFault."""
    import httpx2

    url, headers = endpoint(url), authorization(api_key)
    proxy = checked_proxy(url)
    way = way_by(proxy)
    try:
        transport = httpx2.HTTPTransport(proxy=None if proxy is None else proxy.url)
        with httpx2.Client(transport=transport, timeout=TIMEOUT_S) as client:
            response = client.post(url, json=body, headers=headers)
    except ImportError as error:
        raise EngineFault(f"{url}: {NO_SOCKS}{way}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:  # the last of a proxy that is none
        raise EngineFault(f"{url}: {error or type(error).__name__}{way}") from error
    if response.is_client_error:
        raise InvalidRequest(f"{url} answered {response.status_code}: {response.text}{way}")
    if not response.is_success:
        raise EngineFault(f"{url} answered {response.status_code}: {response.text}{way}")
    answer = as_json_value(response.content)
    if not is_decision(answer):
        raise EngineFault(f"{url} answered with no decision: {response.text}{way}")
    return dict(answer)


NO_SOCKS = "a SOCKS proxy needs one more package, pip install socksio"


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that has the key, where there is one."""
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


def checked_proxy(url: str) -> Proxy | None:
    """As `proxy_for`. Raises InvalidRequest for what is no address."""
    try:
        return proxy_for(url)
    except ValueError as error:
        raise InvalidRequest(f"{url} is no address: {error}") from error


def way_by(proxy: Proxy | None) -> str:
    """What an error says of the way to a server."""
    return "" if proxy is None else f" (by the proxy {proxy}; NO_PROXY names hosts that are asked without one)"


def is_decision(answer: Any) -> bool:
    """Whether a server's answer is one to questions."""
    return isinstance(answer, dict) and {"model", "answers", "usage"} <= answer.keys()


@dataclass(frozen=True)
class Proxy:
    """A proxy, and the variable of the environment that names it. Its text leaves a password out."""

    url: str
    variable: str

    def __str__(self) -> str:
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.rpartition('@')[2]} of {self.variable}"


def proxy_for(url: str) -> Proxy | None:
    """The proxy on the way to an address, as the environment has it; none on the way to this machine itself."""
    parts = urlsplit(url)
    if is_here(parts.hostname or ""):
        return None
    proxies = getproxies_environment()
    scheme = parts.scheme if proxies.get(parts.scheme) else "all"
    found = proxies.get(scheme)
    if not found or proxy_bypass(parts.netloc.rpartition("@")[2], proxies):
        return None
    names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
    variable = next((name for name in names if os.environ.get(name)), names[1])
    return Proxy(found if "://" in found else f"http://{found}", variable)


def is_here(host: str) -> bool:
    """Whether a host's name or number is this machine's own."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return address.is_loopback or address.is_unspecified
    return host == "localhost" or host.endswith(".localhost")


def as_json_value(content: bytes) -> Any:
    """What an answer holds; None where it is no JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None
