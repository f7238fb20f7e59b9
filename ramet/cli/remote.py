"""One request to a running System One server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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

    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    try:
        response = httpx2.post(endpoint(url), json=body, headers=headers, timeout=TIMEOUT_S)
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise EngineFault(f"{endpoint(url)}: {error}") from error
    if response.is_client_error:
        raise InvalidRequest(f"{endpoint(url)} answered {response.status_code}: {response.text}")
    if not response.is_success:
        raise EngineFault(f"{endpoint(url)} answered {response.status_code}: {response.text}")
    answer = response.json()
    if not (isinstance(answer, dict) and {"model", "answers", "usage"} <= answer.keys()):
        raise EngineFault(f"{endpoint(url)} answered with no decision: {response.text}")
    return answer
