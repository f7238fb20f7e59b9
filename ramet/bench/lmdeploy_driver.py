"""LMDeploy's steps, timed in a process of its own: run by a Python that has LMDeploy, which need not have Ramet.

    python lmdeploy_driver.py CHECKPOINT BLOCK MAX_BATCH

Written against LMDeploy 0.18's PyTorch engine. A line of JSON on stdin asks for a run, {"batch", "n_prompt",
"n_tokens"}; a line on stdout answers with "seconds" [S] between the ends of steps in which all sequences of the batch
decode. The first line says what it is. Whatever else the process prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from importlib import import_module
from typing import Any


class Clock:
    """Notes when each forward pass has been unmasked, of how many sequences it is, and whether all of them decode."""

    def __init__(self, block: int) -> None:
        self.noted: list[tuple[float, int, bool]] = []
        self._block, self._decodes = block, False

    def install(self) -> None:
        agent = import_module("lmdeploy.pytorch.engine.model_agent.agent").BaseModelAgent
        unmasking = import_module("lmdeploy.pytorch.strategies.dllm.unmasking").UnmaskingProcessor
        forward, unmask = agent._async_model_forward, unmasking.__call__

        async def forwarded(this: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            self._decodes = bool(inputs.is_decoding)
            return await forward(this, inputs, *rest, **more)

        def unmasked(this: Any, logits: Any, *rest: Any) -> Any:
            found = unmask(this, logits, *rest)
            self.noted.append((time.perf_counter(), logits.size(0) // self._block, self._decodes))
            return found

        agent._async_model_forward, unmasking.__call__ = forwarded, unmasked

    def steps(self, batch: int) -> list[float]:
        """Seconds from one full step to the next."""
        full = [n == batch and decodes for _, n, decodes in self.noted]
        times = [at for at, _, _ in self.noted]
        return [times[i] - times[i - 1] for i in range(1, len(times)) if full[i - 1] and full[i]]


class Driver:
    def __init__(self, checkpoint: str, block: int, max_batch: int) -> None:
        lmdeploy, engine = import_module("lmdeploy"), import_module("lmdeploy.pytorch.engine")
        self._generation = lmdeploy.GenerationConfig
        self._clock, self._number, self._ids = Clock(block), 0, random.Random(0)  # noqa: S311
        self._clock.install()
        config = lmdeploy.PytorchEngineConfig(
            max_batch_size=max_batch, session_len=2048, cache_max_entry_count=0.3, dllm_block_length=block,
            dllm_unmasking_strategy="low_confidence_dynamic", dllm_confidence_threshold=0.9,
            dllm_denoising_steps=block, distributed_executor_backend="uni",
        )  # fmt: skip
        self.engine = engine.Engine.from_pretrained(checkpoint, engine_config=config, trust_remote_code=True)
        self.version = str(lmdeploy.__version__)

    async def run(self, batch: int, n_prompt: int, n_tokens: int) -> list[float]:
        prompts = [[self._ids.randrange(256) for _ in range(n_prompt)] for _ in range(batch)]
        self._clock.noted.clear()
        await asyncio.gather(*(self._reply(prompt, n_tokens) for prompt in prompts))
        return self._clock.steps(batch)

    async def _reply(self, prompt: list[int], n_tokens: int) -> None:
        self._number += 1
        number = self._number
        wanted = self._generation(
            max_new_tokens=n_tokens, ignore_eos=True, do_sample=False, top_k=1, temperature=1.0, top_p=1.0
        )
        async for _ in self.engine.create_instance().async_stream_infer(number, prompt, gen_config=wanted):
            pass


async def answer(driver: Driver, answers: Any) -> None:
    """Until stdin ends."""
    loop = asyncio.get_running_loop()
    if hasattr(driver.engine, "start_loop"):
        driver.engine.start_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        asked = json.loads(line)
        await driver.run(asked["batch"], asked["n_prompt"], 4)  # prompts of this size for the first time
        print(json.dumps({"seconds": await driver.run(**asked)}), file=answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.perf_counter()
    driver = Driver(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    told = {"name": f"lmdeploy {driver.version}", "start_s": time.perf_counter() - began}
    print(json.dumps(told), file=answers, flush=True)
    asyncio.new_event_loop().run_until_complete(answer(driver, answers))
    answers.flush()
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
