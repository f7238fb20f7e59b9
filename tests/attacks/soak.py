"""A server under a long run of honest requests with attacks among them: what it holds before and after.

python -m tests.attacks.soak [--requests 20000] [--clients 8] [--model models/sprig-10m-b32]
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import httpx2
import psutil
from tqdm import tqdm

from tests.attacks.bodies import ATTACKS, CHAT, COMPLETIONS, DECISIONS, Attack, chat, completion, decision

HONEST_AN_ATTACK = 20
WORDS = [
    "the",
    "parcel",
    "came",
    "late",
    "and",
    "nobody",
    "has",
    "said",
    "why",
    "it",
    "was",
    "left",
    "at",
    "the",
    "door",
    "of",
    "another",
    "house",
]
TOPICS = {"type": "choice", "criteria": {"delivery": "about parcels", "money": "about payments", "other": None}}


class Held:
    """What a process holds."""

    def __init__(self, process: psutil.Process) -> None:
        self.rss = process.memory_info().rss
        self.n_files, self.n_threads = process.num_fds(), process.num_threads()

    def __str__(self) -> str:
        return f"{self.rss >> 20} MiB resident, {self.n_files} files, {self.n_threads} threads"


def honest(draw: random.Random) -> tuple[str, bytes]:
    """A request as people send it, of up to some thousand words."""
    text = " ".join(draw.choices(WORDS, k=int(10 ** draw.uniform(1, 3))))
    late = {"type": "noul", "instructions": "Did it come late?"}
    kind = draw.random()
    if kind < 0.7:
        return DECISIONS, decision(text, {"late": late, "topic": TOPICS}, cache_salt=draw.choice("ab"))
    return (
        (CHAT, chat(text[:200], max_tokens=8)) if kind < 0.85 else (COMPLETIONS, completion(text[:200], max_tokens=8))
    )


async def client(url: str, waiting: list[Attack | None], seen: Counter[str], seed: int, bar: tqdm) -> None:  # type: ignore[type-arg]
    draw = random.Random(seed)
    async with httpx2.AsyncClient(timeout=None) as http:
        while waiting:
            attack = waiting.pop()
            if attack is None:
                path, body = honest(draw)
                answer = await http.post(url + path, content=body)
                seen[f"honest {answer.status_code}"] += 1
            else:
                body, headers = await asyncio.to_thread(attack.sent)
                answer = await http.post(url + attack.path, content=body, headers=headers)
                seen["attack" if answer.status_code == attack.status else f"{attack.name}: {answer.status_code}"] += 1
            bar.update()


async def soak(url: str, process: psutil.Process, n_requests: int, n_clients: int) -> None:
    draw, seen = random.Random(0), Counter[str]()
    waiting = [None if i % HONEST_AN_ATTACK else draw.choice(ATTACKS) for i in range(n_requests)]
    held, began = [Held(process)], time.monotonic()
    with tqdm(total=n_requests, unit="request") as bar:
        every = n_requests // 5
        tasks = [asyncio.create_task(client(url, waiting, seen, i, bar)) for i in range(n_clients)]
        while any(not task.done() for task in tasks):
            await asyncio.wait(tasks, timeout=0.5)
            if bar.n >= every * len(held) and len(held) < 5:
                held.append(Held(process))
        await asyncio.gather(*tasks)
    seconds = time.monotonic() - began
    await asyncio.sleep(15)  # for what is given back where nothing is to do
    held.append(Held(process))
    for n, each in enumerate(held):
        print(f"{n * every:6d} requests: {each}")
    print(f"{n_requests} requests in {seconds:.0f} s; {dict(seen)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--model", default=str(Path(__file__).parents[2] / "models" / "sprig-10m-b32"))
    given = parser.parse_args()
    command = [sys.executable, "-m", "ramet", "serve", "-m", given.model, "--port", "0", "--no-access-log"]
    command += ["--cache-bytes", str(64 << 20)]  # full before the count begins
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = None
        while found is None and (line := server.stderr.readline()):
            found = re.search(r"answers at (http://\S+)", line)
        assert found is not None, "the server did not start"
        try:
            for path, body in (honest(random.Random(i)) for i in range(200)):  # what is made once
                httpx2.post(found[1] + path, content=body, timeout=None).raise_for_status()
            asyncio.run(soak(found[1], psutil.Process(server.pid), given.requests, given.clients))
        finally:
            server.send_signal(signal.SIGTERM)
            print(f"ended with {server.wait()}")


if __name__ == "__main__":
    main()
