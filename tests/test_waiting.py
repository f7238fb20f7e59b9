"""No test has a limit of its own on how long something takes: machines may have other work."""

from __future__ import annotations

import re

from fixtures.import_graph import TESTS

LIMITS = re.compile(r"\.(?:result|exception|wait|join|communicate)\(\d|\b(?:client|httpx2)\.\w+\(.*timeout=\d|"
                    r"subprocess\.run\(.*timeout=|create_connection\(.*timeout=|wait_for\(.*, \d")  # fmt: skip


def test_limits_are_the_guard_s() -> None:
    found = {
        f"{path.name}:{number}"
        for path in TESTS.rglob("*.py")
        if path.name != "test_waiting.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if LIMITS.search(line)
    }
    assert found == set(), "tests/fixtures/waiting.py says how to wait"
