"""One request to a running System One server."""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from ramet.errors import EngineFault, InvalidRequest

TIMEOUT_S = 600.0  # a long state on a CPU takes its time


def endpoint(url: str) -> str:
    """The address of /v1/systemone, from that of the server, of its /v1 or of the route itself."""
    url = url.rstrip("/")
    if "://" not in url:
        url = f"http://{url}"
    for ending, rest in (("/v1/systemone", ""), ("/v1", "/systemone")):
        if url.endswith(ending):
            return url + rest
    return f"{url}/v1/systemone"


def ask(url: str, api_key: str | None, body: Mapping[str, Any]) -> dict[str, Any]:
    """The server's answer. A status of 4xx is an InvalidRequest, all else that goes wrong an EngineFault."""
    import httpx2

    url, headers = endpoint(url), {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        proxy = proxy_for(url)
    except ValueError as error:
        raise InvalidRequest(f"{url} is no address: {error}") from error
    way = "" if proxy is None else f" (by the proxy {proxy}; NO_PROXY names hosts that are asked without one)"
    try:
        transport = httpx2.HTTPTransport(proxy=None if proxy is None else proxy.url)
        with httpx2.Client(transport=transport, timeout=TIMEOUT_S) as client:
            response = client.post(url, json=body, headers=headers)
    except ImportError as error:
        raise EngineFault(f"{url}: a SOCKS proxy needs one more package, pip install socksio{way}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:  # the last of a proxy that is none
        raise EngineFault(f"{url}: {error or type(error).__name__}{way}") from error
    if response.is_client_error:
        raise InvalidRequest(f"{url} answered {response.status_code}: {response.text}{way}")
    if not response.is_success:
        raise EngineFault(f"{url} answered {response.status_code}: {response.text}{way}")
    answer = _json(response.content)
    if not (isinstance(answer, dict) and {"model", "answers", "usage"} <= answer.keys()):
        raise EngineFault(f"{url} answered with no decision: {response.text}{way}")
    return answer


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


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
