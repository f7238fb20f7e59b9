"""docs/http-api.md agrees with the server: routes, fields, headers, metrics, limits, statuses. What is added to one
and not to the other fails here."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2
import numpy as np
import pytest
from conftest import Serve
from fakes.stub_engine import StubEngine
from fixtures.doc_page import Section, section, sections
from pydantic import BaseModel, SecretStr

from ramet.decide import confidence
from ramet.decide.calibration import TypeTemperature
from ramet.decide.joint import MAX_JOINT
from ramet.decision import (
    ChoiceAnswer,
    Decision,
    Joint,
    JointCanvas,
    NoulAnswer,
    ReachedThreshold,
    Scaled,
    ScoreAnswer,
    Timing,
    Usage,
)
from ramet.errors import InvalidRequest, NotSupported, Overloaded, RametError
from ramet.problems import MAX_FIELDS, MAX_PROBLEMS
from ramet.question import MAX_LEVELS, MAX_OPTIONS, MAX_QUESTIONS, Outcomes
from ramet.quoting import QUOTED
from ramet.request import DecisionRequest
from ramet.server import ServerSettings, create_app
from ramet.server.bodies import MAX_BODIES, MAX_MEMBERS
from ramet.server.connection import MAX_AHEAD
from ramet.server.documents import MAX_DIGITS, MAX_VALUES
from ramet.server.engine_metrics import HELP
from ramet.server.errors import STATUSES, Unauthenticated, UnsupportedBody, WrongMethod, headers_of
from ramet.server.exchange import REQUEST_IDS
from ramet.server.health import HealthReport
from ramet.server.models import CalibrationCard, ModelCard, ModelList
from ramet.server.openai.errors import OpenAIErrorDetail
from ramet.server.rendering import ErrorBody, ErrorDetail, InvalidField
from ramet.server.systemone import IGNORED_FIELDS, MAX_IGNORED_NAMES
from ramet.server.timed_connection import KEEP_ALIVE_S
from ramet.values import MAX_NAME, MAX_NESTING, TEMPERATURES

PAGE = "docs/http-api.md"
ERROR = re.compile(r"(\d{3}) `(\w+)`")
BODY = {"state": "x", "questions": {"q": {"type": "noul", "instructions": "Is it late?"}}}

FIELDS: dict[str, tuple[type[BaseModel], ...]] = {  # heading -> whose fields are told below it
    "Fields": (DecisionRequest,),
    "Questions": (Outcomes,),
    "Answers": (NoulAnswer, ChoiceAnswer, ScoreAnswer, Scaled, ReachedThreshold, Decision, Usage, Timing),
    "Joint reads": (Joint, JointCanvas),
    "`GET /v1/models`": (ModelCard, CalibrationCard, TypeTemperature, ModelList),
    "`GET /health`": (HealthReport,),
    "Errors": (ErrorBody, ErrorDetail, OpenAIErrorDetail),
    "422 `invalid_request`": (InvalidField,),
}
OF_FASTAPI = {("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/redoc")}
LIMITS = {  # those of the engine are in tests/docs/test_examples.py
    "options of a choice": MAX_OPTIONS,
    "levels of a score": MAX_LEVELS,
    "questions of a joint read": MAX_JOINT,
    "bytes of a body, also decompressed": ServerSettings().max_body_bytes,
    "seconds for a body to arrive": int(ServerSettings().body_timeout_s),
    "seconds for a head to arrive": int(ServerSettings().head_timeout_s),
    "seconds for a client to take some of its answer": int(ServerSettings().send_timeout_s),
    "seconds that a connection stays open without a request": KEEP_ALIVE_S,
    "objects and arrays inside one another": MAX_NESTING,
    "values in a body": MAX_VALUES,
    "digits of a number": MAX_DIGITS,
    "members of a compressed body": MAX_MEMBERS,
    "bodies of that size, of all requests together": MAX_BODIES,
    "requests that a connection sends ahead of an answer": MAX_AHEAD,
    "fields of a body, of a question": MAX_FIELDS,
    "questions": MAX_QUESTIONS,
    "characters of a name": MAX_NAME,
    "problems that a 422 lists": MAX_PROBLEMS,
    "characters of a name or a value that an error quotes": QUOTED,
    "names in x-ramet-ignored": MAX_IGNORED_NAMES,
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The OpenAPI document of a server that wants a key."""
    return create_app(StubEngine(), ServerSettings(api_key=SecretStr("key"))).openapi()


def told_errors() -> dict[tuple[int, str], Section]:
    """Sections of the page by the status and the error_type in their headings."""
    found = [(ERROR.fullmatch(s.heading), s) for s in sections(PAGE)]
    return {(int(match[1]), match[2]): s for match, s in found if match}


def words(s: Section) -> set[str]:
    return {word for code in s.code for word in re.findall(r"\w+", code)}


def test_routes_have_headings(document: dict[str, Any]) -> None:
    ours = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    told = {tuple(pair) for s in sections(PAGE) for pair in re.findall(r"`([A-Z]+) (/[^`]*)`", s.heading)}
    assert told == {(method, path.replace(":path}", "}")) for method, path in ours} | OF_FASTAPI


def test_the_list_of_routes_says_which_want_a_key(document: dict[str, Any]) -> None:
    rows = sections(PAGE)[1].rows
    told = {pair: key for name, _, key in rows for pair in re.findall(r"([A-Z]+) (/[^\s,\]]*)", name)}
    guarded = {
        (method.upper(), path.replace(":path}", "}")): "yes" if "security" in operation else "no"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert told == guarded | dict.fromkeys(OF_FASTAPI, "no")


def test_statuses_have_headings() -> None:
    assert set(told_errors()) == {row[:2] for row in STATUSES.values()}


def test_statuses_of_the_openapi_document_have_headings(document: dict[str, Any]) -> None:
    told = {str(status) for status, _ in told_errors()} | {"200"}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert set(operation["responses"]) <= told, path


def test_every_error_has_an_example_of_its_type() -> None:
    for (status, error_type), s in told_errors().items():
        examples = [json.loads(block.text)["detail"] for block in s.blocks if block.language == "json"]
        assert examples, s.heading
        for detail in examples:
            if status == 422:
                assert all(set(problem) == set(InvalidField.model_fields) for problem in detail)
            else:
                assert detail["error_type"] == error_type


@pytest.mark.parametrize("cls", [cls for cls in STATUSES if cls is not InvalidRequest], ids=lambda cls: cls.__name__)
def test_examples_are_what_the_server_sends(serve: Serve, cls: type[RametError]) -> None:
    """Of each error, raised with the example's own message. tests/docs/test_examples.py provokes those with a curl."""
    s = told_errors()[STATUSES[cls][:2]]
    example = json.loads(next(block.text for block in s.blocks if block.language == "json"))
    failure = RuntimeError("unforeseen") if cls is RametError else cls(example["detail"]["message"])
    reply = httpx2.post(serve(StubEngine(failure=failure)).url + "/v1/systemone", json=BODY)
    assert reply.status_code == STATUSES[cls][0]
    assert _without_id(reply.json()) == _without_id(example)


@pytest.mark.parametrize(("heading", "model"), [(h, m) for h, models in FIELDS.items() for m in models])
def test_fields_are_told(heading: str, model: type[BaseModel]) -> None:
    assert set(model.model_fields) - words(section(PAGE, heading)) == set()


def test_questions_are_told(document: dict[str, Any]) -> None:
    told = section(PAGE, "Questions")
    for name in ("Noul", "Choice", "Score"):
        schema = document["components"]["schemas"][name]
        assert set(schema["properties"]) <= words(told)
        assert schema["properties"]["type"]["const"] in {row[0].partition(":")[0] for row in told.rows}


@pytest.mark.parametrize("page", [PAGE, "docs/quickstart.md"])
def test_no_extra_is_told_that_does_not_exist(page: str) -> None:
    models = [DecisionRequest, *(m for models in FIELDS.values() for m in models)]
    extras = {name for model in models for name in model.model_fields if name.startswith("x_")}
    told = {word for s in sections(page) for word in words(s) if word.startswith("x_")} - {"x_"}
    assert told <= extras
    assert page != PAGE or told == extras


def test_defaults_and_ranges_are_told(document: dict[str, Any]) -> None:
    rows = {row[0]: row for row in section(PAGE, "Fields").rows}
    assert list(rows) == list(DecisionRequest.model_fields)
    for name in ("model", "x_confidence"):
        assert rows[name][2] == str(DecisionRequest.model_fields[name].default)
    debias = document["components"]["schemas"]["DecisionRequest"]["properties"]["x_debias"]["anyOf"][0]
    assert rows["x_debias"][1] == f"{debias['minimum']} to {debias['maximum']}"
    assert f"from {TEMPERATURES[0]:g} to {TEMPERATURES[1]:g}" in rows["x_temperature"][3]


def test_headers_are_told() -> None:
    sent = {*REQUEST_IDS, IGNORED_FIELDS}
    for error in (Overloaded(""), Unauthenticated(""), UnsupportedBody(""), WrongMethod(""), NotSupported("")):
        sent |= headers_of(error).keys()
    told = {name for row in section(PAGE, "Headers").rows for name in row[0].split(", ")}
    assert told == sent | {"authorization", "content-encoding"}


def test_metrics_are_told(serve: Serve) -> None:
    """Those of the server; the engine's are in tests/docs/test_examples.py."""
    text = httpx2.get(serve(StubEngine()).url + "/metrics").text
    sent = dict(re.findall(r"^# HELP (\w+) (.*)", text, re.MULTILINE))
    told = {name: meaning for name, meaning in section(PAGE, "`GET /metrics`").rows if "_engine_" not in name}
    assert told == {name: meaning for name, meaning in sent.items() if "_engine_" not in name}


def test_metrics_of_engines_mean_what_their_help_says() -> None:
    told = {row[0]: row[1] for row in section(PAGE, "`GET /metrics`").rows if "_engine_" in row[0]}
    assert told == {f"ramet_engine_{name}": meaning for name, meaning in HELP.items()}


def test_limits_are_told() -> None:
    told = {row[0]: row for row in section(PAGE, "Limits").rows}
    assert {name: told[name][1] for name in LIMITS} == {name: str(value) for name, value in LIMITS.items()}
    statuses = {str(status) for status, _ in told_errors()}
    assert {row[3] for row in told.values()} <= statuses | {""}


def test_confidence_is_worked_out_right() -> None:
    s = section(PAGE, "Confidence")
    p, mass = np.array([0.7, 0.2, 0.1]), 0.9
    assert {"p = 0.7, 0.2, 0.1", "x_label_mass"} <= set(s.code)
    assert "of 0.9:" in s.prose
    worked = {formula: (float(of_choice), float(of_score)) for formula, of_choice, of_score in s.rows[-3:]}
    assert set(worked) == {row[0] for row in s.rows[:3]}
    for formula, (of_choice, of_score) in worked.items():
        assert of_choice == pytest.approx(confidence.of_choice(p, mass, formula))
        assert of_score == pytest.approx(confidence.of_score(p, mass, formula))


def _without_id(body: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.sub(r"req_[0-9a-f]{32}", "req_", json.dumps(body)))
    return found
