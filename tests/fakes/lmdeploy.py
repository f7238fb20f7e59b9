"""LMDeploy 0.18's modules as far as its driver uses them, with its signatures and its order of things, and a device
whose steps take a millisecond a sequence."""

from __future__ import annotations

import asyncio
import enum
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Self

PREFILL_TOKENS = 8192
ResponseType = enum.Enum("ResponseType", ["SUCCESS", "FINISH", "INPUT_LENGTH_ERROR"])


class Device:
    """Seconds of its own."""

    now = 0.0


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self) -> None:
        self.at = Device.now

    def elapsed_time(self, later: Event) -> float:
        """In milliseconds."""
        assert self.at is not None
        assert later.at is not None
        return (later.at - self.at) * 1e3


@dataclass
class GenerationConfig:
    n: int = 1
    max_new_tokens: int = 512
    do_sample: bool = False
    top_p: float = 1.0
    top_k: int = 50
    temperature: float = 0.8
    ignore_eos: bool = False


@dataclass
class PytorchEngineConfig:
    dtype: str = "auto"
    session_len: int | None = None
    max_batch_size: int | None = None
    cache_max_entry_count: float = 0.8
    distributed_executor_backend: str | None = None
    dllm_block_length: int | None = None
    dllm_unmasking_strategy: str = "low_confidence_dynamic"
    dllm_denoising_steps: int | None = None
    dllm_confidence_threshold: float = 0.85


@dataclass
class EngineOutput:
    status: Any
    token_ids: list[int]


@dataclass
class Rows:
    """A tensor's sizes."""

    rows: int

    def size(self, dim: int) -> int:
        return (self.rows, 1000)[dim]


class UnmaskingProcessor:
    def __call__(self, logits: Rows, input_ids: Rows, token_ids: Rows, dllm_mask: Rows) -> tuple[Rows, Rows]:
        return dllm_mask, token_ids


class BaseModelAgent:
    async def _async_model_forward(
        self, inputs: Any, return_logits: bool, cache_inputs: Any = None
    ) -> dict[str, list[Rows]]:
        await asyncio.sleep(0)
        Device.now += inputs.batch / 1e3
        return {"logits": [Rows(inputs.rows)]}


@dataclass(eq=False)
class Sequence:
    n_prompt: int
    max_new_tokens: int
    n_forwards: int = 0
    n_new: int = 0
    told: asyncio.Queue[EngineOutput] = field(default_factory=asyncio.Queue)

    def step(self, block: int) -> bool:
        """Whether it goes on: each forward unmasks a token, and one behind them stores the block."""
        self.n_forwards += 1
        if self.n_forwards % (block + 1) == block:
            self.n_new += block
            done = self.n_new >= self.max_new_tokens
            self.told.put_nowait(EngineOutput(ResponseType.FINISH if done else ResponseType.SUCCESS, [7] * block))
        return self.n_new < self.max_new_tokens


class Engine:
    def __init__(self, config: PytorchEngineConfig) -> None:
        assert config.dllm_block_length
        assert config.max_batch_size
        assert config.session_len
        self.config, self.block = config, config.dllm_block_length
        self.waiting, self.running = list[Sequence](), list[Sequence]()
        self.agent, self.unmask = BaseModelAgent(), UnmaskingProcessor()

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str,
        engine_config: PytorchEngineConfig | None = None,
        speculative_config: Any = None,
        trust_remote_code: bool = False,
    ) -> Self:
        assert engine_config is not None
        return cls(engine_config)

    def start_loop(self) -> bool:
        self.loop = asyncio.get_running_loop().create_task(self._loop())
        return True

    def create_instance(self, cuda_stream_id: int = 0) -> EngineInstance:
        return EngineInstance(self)

    async def _loop(self) -> None:
        while True:
            await asyncio.sleep(0)
            if self.waiting:
                n = max(1, PREFILL_TOKENS // self.waiting[0].n_prompt)
                some, self.waiting = self.waiting[:n], self.waiting[n:]
                await self._step(some, decodes=False)
                self.running += some
            elif self.running:
                assert len(self.running) <= (self.config.max_batch_size or 0)
                await self._step(self.running, decodes=True)
                self.running = [each for each in self.running if each.step(self.block)]

    async def _step(self, some: list[Sequence], decodes: bool) -> None:
        rows = Rows(len(some) * self.block)
        inputs = SimpleNamespace(is_decoding=decodes, batch=len(some), rows=rows.rows)
        output = await self.agent._async_model_forward(inputs, return_logits=False, cache_inputs=None)
        self.unmask(output["logits"][0], rows, rows, rows)


class EngineInstance:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def async_stream_infer(
        self,
        session_id: int,
        input_ids: list[int],
        gen_config: GenerationConfig | None = None,
        multimodal: Any = None,
        adapter_name: str | None = None,
    ) -> AsyncIterator[EngineOutput]:
        if len(input_ids) > (self.engine.config.session_len or 0):
            yield EngineOutput(ResponseType.INPUT_LENGTH_ERROR, [])
            return
        assert gen_config is not None
        sequence = Sequence(len(input_ids), gen_config.max_new_tokens)
        self.engine.waiting.append(sequence)
        while True:
            told = await sequence.told.get()
            yield told
            if told.status is ResponseType.FINISH:
                return


def install() -> None:
    """In place of what this process may have."""
    agent, unmasking = "lmdeploy.pytorch.engine.model_agent.agent", "lmdeploy.pytorch.strategies.dllm.unmasking"
    names: dict[str, dict[str, Any]] = {
        "lmdeploy": {
            "__version__": "0.18.0", "GenerationConfig": GenerationConfig, "PytorchEngineConfig": PytorchEngineConfig,
        },
        "lmdeploy.messages": {"ResponseType": ResponseType},
        "lmdeploy.pytorch.engine": {"Engine": Engine},
        agent: {"BaseModelAgent": BaseModelAgent},
        unmasking: {"UnmaskingProcessor": UnmaskingProcessor},
        "torch": {"cuda": SimpleNamespace(Event=Event, synchronize=lambda: None)},
    }  # fmt: skip
    for name, members in names.items():
        for i in range(name.count(".") + 1):  # packages on its way
            package = name.rsplit(".", i)[0]
            sys.modules.setdefault(package, ModuleType(package))
        vars(sys.modules[name]).update(members)
