"""PROBE: a request with every kind of question, by which one release's wording is told from another's."""

from __future__ import annotations

from ramet.request import DecisionRequest

_BOTH = {"true": "It is.", "false": "It is not."}
PROBE = DecisionRequest.parse(
    {
        "state": "",
        "questions": {
            "bare": {"type": "noul", "instructions": "Is it?"},
            "one": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "It is."}},
            "both": {"type": "noul", "instructions": "Is it?", "criteria": _BOTH},
            "names": {"type": "choice", "instructions": "Which?", "criteria": {"this": None, "that": None}},
            "described": {"type": "choice", "instructions": "Which?", "criteria": {"this": "This.", "that": {"a": 1}}},
            "score": {"type": "score", "instructions": "How much?", "criteria": ["little", "much"]},
        },
    }
)
