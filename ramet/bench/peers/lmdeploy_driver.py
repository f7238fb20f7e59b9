"""LMDeploy's steps, timed in a process of its own: run by a Python that has LMDeploy, which need not have Ramet.

    python lmdeploy_driver.py CHECKPOINT BLOCK MAX_BATCH MAX_TOKENS

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
import traceback
from importlib import import_module
from typing import Any

_N_WARM = 3  # steps of a batch before those that are timed
_LEAST_SESSION = 2048  # tokens


class PassClock:
    """Notes when the device has unmasked each forward pass, of how many sequences it is, and whether all of them
    decode. The host is a pass ahead, so its own clock would not do."""

    def __init__(self, block: int) -> None:
        self.noted: list[tuple[Any, int, bool]] = []  # CUDA events first
        self._block, self._decodes = block, False

    def install(self) -> None:
        agent = import_module("lmdeploy.pytorch.engine.model_agent.agent").BaseModelAgent
        unmasking = import_module("lmdeploy.pytorch.strategies.dllm.unmasking").UnmaskingProcessor
        cuda = import_module("torch").cuda
        forward, unmask = agent._async_model_forward, unmasking.__call__

        async def forwarded(this: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            self._decodes = bool(inputs.is_decoding)
            return await forward(this, inputs, *rest, **more)

        def unmasked(this: Any, logits: Any, *rest: Any, **more: Any) -> Any:
            found = unmask(this, logits, *rest, **more)
            ended = cuda.Event(enable_timing=True)
            ended.record()
            self.noted.append((ended, logits.size(0) // self._block, self._decodes))
            return found

        agent._async_model_forward, unmasking.__call__ = forwarded, unmasked

    def steps(self, batch: int) -> list[float]:
        """Seconds from one full step to the next, once the device is done."""
        full = [n == batch and decodes for _, n, decodes in self.noted]
        ended = [each for each, _, _ in self.noted]
        pairs = [i for i in range(1, len(full)) if full[i - 1] and full[i]]
        return [ended[i - 1].elapsed_time(ended[i]) / 1e3 for i in pairs[_N_WARM:]]


class Driver:
    """max_tokens: of a prompt and its reply."""

    def __init__(self, checkpoint: str, block: int, max_batch: int, max_tokens: int) -> None:
        lmdeploy, engine = import_module("lmdeploy"), import_module("lmdeploy.pytorch.engine")
        status = import_module("lmdeploy.messages").ResponseType
        self._generation = lmdeploy.GenerationConfig
        self._good = (status.SUCCESS, status.FINISH)
        self._clock = PassClock(block)
        self._clock.install()
        self._number = 0
        self._ids = random.Random(0)  # noqa: S311
        config = lmdeploy.PytorchEngineConfig(
            max_batch_size=max_batch,
            session_len=max(max_tokens, _LEAST_SESSION),
            cache_max_entry_count=0.3,
            dllm_block_length=block,
            dllm_unmasking_strategy="low_confidence_dynamic",
            dllm_confidence_threshold=0.9,
            dllm_denoising_steps=block,
            distributed_executor_backend="uni",
        )
        self.engine = engine.Engine.from_pretrained(checkpoint, engine_config=config, trust_remote_code=True)
        self.version = str(lmdeploy.__version__)

    async def run(self, batch: int, n_prompt: int, n_tokens: int) -> list[float]:
        prompts = [[self._ids.randrange(256) for _ in range(n_prompt)] for _ in range(batch)]
        self._clock.noted.clear()
        await asyncio.gather(*(self._reply(prompt, n_tokens) for prompt in prompts))
        import_module("torch").cuda.synchronize()
        return self._clock.steps(batch)

    async def _reply(self, prompt: list[int], n_tokens: int) -> None:
        self._number += 1
        number = self._number
        wanted = self._generation(
            max_new_tokens=n_tokens, ignore_eos=True, do_sample=False, top_k=1, temperature=1.0, top_p=1.0
        )
        async for output in self.engine.create_instance().async_stream_infer(number, prompt, gen_config=wanted):
            if output.status not in self._good:
                raise RuntimeError(f"a reply to {len(prompt)} tokens ended with {output.status}")


async def answer(driver: Driver, answers: Any) -> None:
    """Until stdin ends."""
    loop = asyncio.get_running_loop()
    driver.engine.start_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps({"seconds": await driver.run(**json.loads(line))}), file=answers, flush=True)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began = time.perf_counter()
    checkpoint, *sizes = sys.argv[1:]
    driver = Driver(checkpoint, *map(int, sizes))
    first = {"name": f"lmdeploy {driver.version}", "start_s": time.perf_counter() - began}
    print(json.dumps(first), file=answers, flush=True)
    asyncio.new_event_loop().run_until_complete(answer(driver, answers))


if __name__ == "__main__":
    code = 1
    try:
        main()
        code = 0
    except BaseException:  # a process that waits for its threads would never say so
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # LMDeploy's threads do not end by themselves
