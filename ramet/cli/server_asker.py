"""ServerAsker: a running System One server, ours or another's, which answers the requests of a run."""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ramet.cli.remote import (
    NO_SOCKS,
    TIMEOUT_S,
    Refusal,
    as_json_value,
    authorization,
    checked_proxy,
    endpoint,
    is_decision,
    way_by,
    without_login,
)
from ramet.cli.reply_row import NO_EFFECT, asks_for_text
from ramet.errors import EngineFault
from ramet.quoting import cut

if TYPE_CHECKING:
    import httpx2

Row = dict[str, Any]
PATIENCE_S = 600.0  # without an answer to any row, of a server that says that it is busy
LOST_S = 20.0  # and of one that cannot be reached any more
FIRST_WAIT_S, MAX_WAIT_S = 0.5, 30.0  # where the server names none
BUSY = frozenset((429, 502, 503, 504))
HOPELESS = frozenset((401, 403, 404, 405))  # every row would have it
_NO_MODEL = frozenset(("unknown_model", "model_not_found"))
_FINGERPRINT = re.compile("[0-9a-f]{16,64}")


@dataclass
class ServerAsker:
    """Asks the server at `url`, with `fields` over those of each decision, and at most `parallel` requests at a time
    over connections that stay open. A server that is busy is asked again when it says so."""

    url: str
    api_key: str | None
    fields: Mapping[str, Any]
    parallel: int
    model: str | None = None  # that every request names; None: each its own
    fault: EngineFault | None = None
    _answered: float = field(default_factory=time.monotonic)  # when the last answer came

    async def __aenter__(self) -> ServerAsker:
        self._client = self._connected()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def ask(self, request: Mapping[str, Any]) -> Row:
        named = {} if self.model is None else {"model": self.model}
        if asks_for_text(request):
            body = {name: value for name, value in request.items() if name not in NO_EFFECT}
            route = "/chat/completions" if "messages" in body else "/completions"
            return self._reply(route, await self._post(route, body | named))
        answer = await self._post("/systemone", {**request, **self.fields, **named})
        if not is_decision(answer):
            raise self._broken(f"{endpoint(self.url)} answered with no decision: {cut(str(answer), 500)}")
        return _without_the_moment(answer)

    async def card(self) -> Row:
        """What the server says of the model that answers: of several the one of `model`, nothing where it says
        nothing. Raises EngineFault where it cannot be reached."""
        url = endpoint(self.url, "/models")
        try:
            async with self:
                response = await self._client.get(url)
        except _errors() as error:
            raise self._broken(f"{url}: {error or type(error).__name__}") from error
        listed = as_json_value(response.content) if response.is_success else None
        cards = listed.get("data") or listed.get("models") if isinstance(listed, dict) else None
        cards = [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
        chosen = [card for card in cards if self.model in (None, card.get("id"), card.get("name"))]
        return chosen[0] if len({card.get("x_fingerprint") for card in chosen}) == 1 else {}

    def mark(self, card: Row) -> str:
        """What stands for the model in a row's mark: its fingerprint where the server says it, else the address."""
        found = card.get("x_fingerprint")
        if isinstance(found, str) and _FINGERPRINT.fullmatch(found):
            return found
        return f"url{hashlib.sha256(f'{endpoint(self.url)} {found}'.encode()).hexdigest()[:29]}"

    def _connected(self) -> httpx2.AsyncClient:
        import httpx2

        proxy = checked_proxy(endpoint(self.url))
        self._way = way_by(proxy)
        limits = httpx2.Limits(max_connections=self.parallel, max_keepalive_connections=self.parallel)
        try:
            transport = httpx2.AsyncHTTPTransport(proxy=None if proxy is None else proxy.url, limits=limits)
        except ImportError as error:
            raise self._broken(f"{endpoint(self.url)}: {NO_SOCKS}") from error
        except ValueError as error:
            raise self._broken(f"{endpoint(self.url)}: {error}") from error
        return httpx2.AsyncClient(transport=transport, timeout=TIMEOUT_S, headers=authorization(self.api_key))

    async def _post(self, route: str, body: Row) -> Any:
        url, begun = endpoint(self.url, route), time.monotonic()
        n_tries = 0
        while True:
            n_tries += 1
            try:
                response = await self._client.post(url, json=body)
            except _errors() as error:
                await self._wait(f"{url}: {error or type(error).__name__}", begun, LOST_S, _backoff(n_tries))
                continue
            if response.status_code not in BUSY:
                self._answered = time.monotonic()
                return self._content(url, response, body)
            why = f"{url} answered {response.status_code}: {cut(response.text, 500)}"
            await self._wait(why, begun, PATIENCE_S, _asked_for(response.headers, n_tries))

    async def _wait(self, why: str, begun: float, patience_s: float, wait_s: float) -> None:
        """Raises EngineFault where patience is at its end, also for a server that asks for a longer wait."""
        waited_s = time.monotonic() - max(begun, self._answered)
        if self.fault is not None:
            raise self.fault
        if waited_s + wait_s > patience_s:
            raise self._broken(f"{why}; no row was answered for {waited_s:.0f} s")
        await asyncio.sleep(wait_s)

    def _content(self, url: str, response: httpx2.Response, body: Row) -> Any:
        status, content = response.status_code, as_json_value(response.content)
        if response.is_success:
            return content
        if response.is_redirect:
            there = response.headers.get("location", "elsewhere")
            raise self._broken(f"{url} answered {status} and sends to {there}: give that server as --url")
        refusal = _refusal(status, content, response.text)
        is_own = "model" in body and self.model is None and refusal.kind in _NO_MODEL  # that of the row alone
        if status in HOPELESS and not is_own:
            raise self._broken(f"{url} answered {status}: {refusal.message}")
        raise refusal

    def _reply(self, route: str, answer: Any) -> Row:
        try:
            choice = answer["choices"][0]
            row: Row = {
                "model": answer["model"],
                "text": choice["message"]["content"] or "" if "message" in choice else choice["text"],
                "finish_reason": choice.get("finish_reason"),
            }
        except (LookupError, TypeError) as error:
            url = endpoint(self.url, route)
            raise self._broken(f"{url} answered with no reply: {cut(str(answer), 500)}") from error
        row |= {name: choice[name] for name in ("stop_reason", "logprobs") if choice.get(name) is not None}
        usage = answer.get("usage") or {}
        return row | {"usage": {name: value for name, value in usage.items() if name != "prompt_tokens_details"}}

    def _broken(self, why: str) -> EngineFault:
        why = why.replace(endpoint(self.url, ""), without_login(endpoint(self.url, "")))
        self.fault = self.fault or EngineFault(f"{why}{self._way}")
        return self.fault


def _errors() -> tuple[type[Exception], ...]:
    import httpx2

    return httpx2.HTTPError, httpx2.InvalidURL


def _without_the_moment(answer: Row) -> Row:
    """An answer less what another run of the same rows would not have."""
    usage = answer["usage"] if isinstance(answer["usage"], dict) else {}
    kept = {name: value for name, value in usage.items() if name != "x_cached_tokens"}
    return {name: value for name, value in answer.items() if name not in ("x_timing", "id")} | {"usage": kept}


def _backoff(n_tries: int) -> float:
    """Twice as long each time, and never the same for all rows."""
    return min(FIRST_WAIT_S * 2.0 ** min(n_tries - 1, 10), MAX_WAIT_S) * random.uniform(0.5, 1.0)  # noqa: S311


def _asked_for(headers: Mapping[str, str], n_tries: int) -> float:
    """The seconds that a busy server asks to wait: a number, or a date; else ours."""
    in_ms, in_s = headers.get("retry-after-ms"), headers.get("retry-after", "")
    try:
        wait_s = float(in_s) if in_ms is None else float(in_ms) / 1000
    except ValueError:
        return _until(in_s, n_tries)
    return max(0.0, wait_s) if math.isfinite(wait_s) else _backoff(n_tries)


def _until(date: str, n_tries: int) -> float:
    try:
        then = parsedate_to_datetime(date)
    except ValueError:
        return _backoff(n_tries)
    then = then.replace(tzinfo=UTC) if then.tzinfo is None else then
    return max(0.0, (then - datetime.now(UTC)).total_seconds())


def _refusal(status: int, content: Any, text: str) -> Refusal:
    """A server's error in our form: of System One's servers, of OpenAI's and of those built on FastAPI."""
    body = content if isinstance(content, dict) else {}
    error, detail = body.get("error"), body.get("detail")
    kind, message, place = f"status_{status}", cut(text, 500), None
    if isinstance(error, dict):
        kind, message = error.get("code") or error.get("type") or kind, error.get("message") or message
        place = error.get("param")
    if isinstance(detail, dict):
        kind, message = detail.get("error_type") or kind, detail.get("message") or message
    elif isinstance(detail, list) and detail and isinstance(detail[0], dict):
        kind, message = "invalid_request", detail[0].get("msg") or message
        place = ".".join(map(str, detail[0].get("loc", ()))).removeprefix("body.")
    elif isinstance(detail, str):
        message = detail
    return Refusal(str(message), field=str(place) if place else None, kind=str(kind), status=status)
