"""Priors: computed once for an owner and a question, kept, and taken off whichever way they came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fixtures.tiny_engine import tiny_engine
from oracles import block_models, diffusion_gemma
from oracles.answers import assert_close, probabilities

from ramet.decide.budget import Budget
from ramet.engine import Engine
from ramet.errors import InvalidRequest, RequestTooLong
from ramet.request import DecisionRequest

QUESTIONS: dict[str, Any] = {
    "which": {"type": "choice", "instructions": "Which?", "criteria": {"a lamp": None, "the kettle": None, "it": None}},
    "is it": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "It is.", "false": "It is not."}},
    "how": {"type": "score", "instructions": "How much?", "criteria": ["little", "much"]},
}


def request(state: str = "The lamp is on.", names: tuple[str, ...] = tuple(QUESTIONS), **more: Any) -> DecisionRequest:
    return DecisionRequest.parse({"state": state, "questions": {name: QUESTIONS[name] for name in names}, **more})


@pytest.mark.parametrize("method", ["letters", "options"])
def test_a_prior_is_computed_once_and_the_answer_stays(method: str) -> None:
    with tiny_engine("llama") as engine:
        asked = request(x_method=method, x_prior=0.7)
        first, second = engine.decide(asked), engine.decide(asked)
        assert_close(second.answers, first.answers)
        bare = engine.decide(request(x_method=method, x_prior=0.0))
    n_prior = first.usage.input_tokens - bare.usage.input_tokens
    assert n_prior > 0
    assert second.usage.input_tokens == first.usage.input_tokens
    assert second.usage.x_cached_tokens > first.usage.x_cached_tokens
    assert second["which"].x_debiased is not None
    assert second["which"].x_debiased.model_dump() == {"orders": 1, "prior": 0.7}
    assert bare["which"].x_debiased is None


@pytest.mark.parametrize("method", ["letters", "options"])
def test_what_is_taken_off_is_what_an_empty_state_gives(method: str) -> None:
    with tiny_engine("llama") as engine:
        found = engine.decide(request(x_method=method, x_prior=1.0))
        here, empty = (engine.decide(request(state, x_method=method, x_prior=0.0)) for state in ("The lamp is on.", ""))
    for name, own in probabilities(here.answers).items():
        prior = probabilities(empty.answers)[name]
        p, q = np.array(own), np.array(prior)
        if len(p) == 1:
            p, q = np.array([p[0], 1 - p[0]]), np.array([q[0], 1 - q[0]])
        wanted = p / q / (p / q).sum()
        np.testing.assert_allclose(probabilities(found.answers)[name], wanted[: len(own)], atol=1e-5, err_msg=name)


def test_priors_of_some_questions_are_kept_and_those_of_others_due() -> None:
    with tiny_engine("llama") as engine:
        alone = {name: engine.decide(request(names=(name,), x_method="options", cache_salt=name)) for name in QUESTIONS}
        engine.decide(request(names=("how",), x_method="options"))
        both = engine.decide(request(x_method="options"))
    assert_close(both.answers, {name: decision[name] for name, decision in alone.items()})


def test_one_owner_does_not_find_what_another_asked() -> None:
    with tiny_engine("llama") as engine:
        asked = request(x_method="options")
        engine.decide(asked)
        n_own = len(engine.decider.plan(asked).priors.due)
        n_other = len(engine.decider.plan(request(x_method="options", cache_salt="another")).priors.due)
    assert (n_own, n_other) == (0, 3)


def test_whether_a_request_fits_does_not_depend_on_what_is_kept() -> None:
    with tiny_engine("llama") as engine:
        asked = request(x_method="options")
        plan = engine.decider.plan(asked)
        engine.decide(asked)
        with pytest.raises(RequestTooLong):
            engine.decider.plan(asked, Budget(plan.tree.n_tokens - 20))
        engine.decider.plan(asked, Budget(plan.tree.n_tokens))


def test_the_bits_of_an_answer_stay_where_they_are_to_stay() -> None:
    asked = request(names=("which",), x_method="options")
    with tiny_engine("llama", dtype="bfloat16", batch_invariant=True) as engine:
        alone = engine.decide(asked)
    with tiny_engine("llama", dtype="bfloat16", batch_invariant=True, max_round_tokens=64) as engine:
        others = engine.decide(request("Another state, with more words in it.", x_method="options"))
        kept, again = engine.decide(asked), engine.decide(request(x_method="options"))
    assert others["which"] != alone["which"]
    assert probabilities(kept.answers) == probabilities(alone.answers)
    assert probabilities(again.answers)["which"] == probabilities(alone.answers)["which"]


@pytest.mark.parametrize("x_prior", [-0.1, 1.1, "half", True])
def test_a_weight_is_from_0_to_1(x_prior: Any) -> None:
    with pytest.raises(InvalidRequest, match="x_prior"):
        request(x_prior=x_prior)


@pytest.mark.parametrize("kind", ["canvas", "masks"])
def test_a_diffusion_model_has_no_priors(kind: str) -> None:
    source = diffusion_gemma.saved("plain", 32) if kind == "canvas" else block_models.saved("sdar")[0]
    more = {} if kind == "canvas" else {"block_size": 4}
    engine = Engine.load(source, device="cpu", cache_bytes=1 << 22, **more)
    with engine, pytest.raises(InvalidRequest, match="read without a prior"):
        engine.decide(request(x_prior=0.5))
