"""Which settings a model has: by what its template says of it, and by its width."""

from __future__ import annotations

import pytest

from ramet.decide.settings import DecideSettings, PriorWeights, settings_for
from ramet.question import Choice, Noul

QWEN = "{{ 'You are Qwen, created by Alibaba Cloud. You are a helpful assistant.' }}"
CHOICE = Choice(criteria={"a": None, "b": None})


@pytest.mark.parametrize(
    ("template", "width", "method", "lead", "n_orders"),
    [
        (QWEN, 896, "options", "Text: ", 1),
        (QWEN, 1536, "letters", "Text: ", 4),
        (QWEN, 2048, "letters", "", 1),  # none of that width was measured
        ("You are a helpful assistant.", 896, "letters", "", 1),
        ("an assistant named SmolLM", 576, "options", "", 1),
        (None, 896, "letters", "", 1),
    ],
)
def test_what_was_measured_is_a_models_own(
    template: str | None, width: int, method: str, lead: str, n_orders: int
) -> None:
    found = settings_for(template, width=width)
    assert (found.method, found.lead, found.n_orders) == (method, lead, n_orders)


def test_another_method_has_its_usual_priors_and_one_order() -> None:
    found = settings_for(QWEN, width=1536)
    assert found.prior_of("letters") == PriorWeights(noul=0.5, choice=1.0, score=0.0)
    assert found.prior_of("options") == PriorWeights()
    assert found.orders_of("options", CHOICE, None) == 1
    other = settings_for(QWEN, method="options", width=1536)
    assert (other.prior_of("options"), other.n_orders, other.lead) == (PriorWeights(), 1, "Text: ")


def test_a_models_orders_are_for_choices_and_a_request_comes_before_them() -> None:
    found = DecideSettings(n_orders=4)
    assert found.orders_of("letters", CHOICE, None) == 4
    assert found.orders_of("letters", Noul(instructions="Is it?"), None) == 1
    assert found.orders_of("letters", CHOICE, 2) == 2
    assert found.orders_of("letters", Noul(instructions="Is it?"), 2) == 2
