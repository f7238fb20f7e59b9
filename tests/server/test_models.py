"""Models: names with slashes, aliases, and both lists."""

from __future__ import annotations

from datetime import date

import httpx2
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.calibrations import calibration

from ramet.errors import UnknownModel
from ramet.server.models import Models
from ramet.server.settings import ServerSettings

SETTINGS = ServerSettings(aliases={"jev-latest": None, "jev-1": "jev-latest"}, release_date=date(2026, 9, 15))
NAME = "acme/tiny:v1"


def test_the_list_has_both_shapes(serve: Serve) -> None:
    listed = httpx2.get(serve(StubEngine(NAME), SETTINGS).url + "/v1/models").json()
    assert listed["object"] == "list"
    assert listed["models"] == listed["data"]
    assert [card["name"] for card in listed["models"]] == [card["id"] for card in listed["data"]]
    assert [card["name"] for card in listed["models"]] == [NAME, "jev-latest", "jev-1"]
    assert listed["models"][0] == {
        "name": NAME,
        "description": f"Decision model {NAME} (none, hash)",
        "release_date": "2026-09-15",
        "id": NAME,
        "object": "model",
        "created": 1789430400,
        "owned_by": "ramet",
        "x_fingerprint": "0" * 32,
    }
    assert listed["models"][1]["description"] == f"Alias of {NAME}"


def test_a_calibration_is_shown(serve: Serve) -> None:
    made = calibration()
    listed = httpx2.get(serve(StubEngine(NAME, calibration=made), SETTINGS).url + "/v1/models").json()
    assert [card["x_calibration"]["digest"] for card in listed["data"]] == [made.digest] * 3
    assert listed["data"][0]["x_calibration"] == {
        "digest": made.digest,
        "method": "letters",
        "reading": {"x_debias": None, "x_prior": None, "x_samples": 1, "x_steps": 1, "joint": False},
        "temperatures": {kind: each.model_dump() for kind, each in made.temperatures.items()},
        "questions": 0,
        "rows": 100,
    }


@pytest.mark.parametrize("path", ["acme/tiny:v1", "acme%2Ftiny%3Av1"])
def test_a_name_with_a_slash_gives_the_listed_object(serve: Serve, path: str) -> None:
    url = serve(StubEngine(NAME), SETTINGS).url + "/v1/models"
    assert httpx2.get(f"{url}/{path}").json() == httpx2.get(url).json()["data"][0]


def test_an_unknown_name_differs_from_an_unknown_address(serve: Serve) -> None:
    url = serve(StubEngine(NAME), SETTINGS).url
    name, address = httpx2.get(f"{url}/v1/models/acme/none"), httpx2.get(f"{url}/v1/model/acme/none")
    assert (name.status_code, name.json()["detail"]["error_type"]) == (404, "unknown_model")
    assert "'acme/none' is not served" in name.json()["detail"]["message"]
    assert (address.status_code, address.json()["detail"]["error_type"]) == (404, "no_such_address")


@pytest.mark.parametrize("name", [NAME, "jev-latest", "jev-1", None])
def test_an_answer_names_the_model_behind_the_alias(serve: Serve, name: str | None) -> None:
    engine = StubEngine(NAME)
    body = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "x"}}} | ({"model": name} if name else {})
    reply = httpx2.post(serve(engine, SETTINGS).url + "/v1/systemone", json=body)
    assert reply.json()["model"] == NAME
    assert engine.received[0].model == NAME


def test_a_request_for_an_unknown_model_does_no_work(serve: Serve) -> None:
    engine = StubEngine()
    body = {"model": "gpt", "state": "x", "questions": {"q": {"type": "noul", "instructions": "x"}}}
    url = serve(engine).url + "/v1/systemone"
    assert httpx2.post(url, json=body).status_code == 404
    assert engine.received == []


def test_aliases_must_lead_somewhere() -> None:
    for aliases in ({"a": "b"}, {"a": "b", "b": "a"}):
        with pytest.raises(ValueError, match="which is not served"):
            Models(StubEngine(), ServerSettings(aliases=aliases))


def test_without_aliases_only_the_name_is_served() -> None:
    models = Models(StubEngine(), ServerSettings(aliases={}))
    assert models.resolve("stub") == "stub"
    with pytest.raises(UnknownModel, match="served: stub"):
        models.resolve("jev-latest")
