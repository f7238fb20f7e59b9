"""Train the small model on generated tasks, score it on held-out ones, and save it as a checkpoint.

    python -m training.train --out models/sprig-10m-b32 --minutes 8

The schedule goes by the clock: what there is when the time is up is saved, then scored.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from torch.nn.attention import sdpa_kernel

from training.attention import fastest
from training.data import BLOCK, Feed, Packs, Sizes
from training.model import Model, Shape, seen
from training.muon import Muon
from training.score import held_out, score
from training.vocabulary import CONTROL, END, MASK, STOP, id_of, train_tokenizer

_LOG_EVERY = 4.0  # seconds


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--minutes", type=float, default=8, help="from the start of the script to the end of training")
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--vocabulary", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=320)
    parser.add_argument("--inner", type=int, default=896)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rows", type=int, default=192, help="packs a step")
    parser.add_argument("--tokens", type=int, default=512, help="tokens a pack")
    parser.add_argument("--learn", type=int, default=192, help="masks a pack, at most, that are learnt from")
    parser.add_argument("--muon", type=float, default=0.02, help="rate of the matrices")
    parser.add_argument("--adam", type=float, default=2e-3, help="rate of the embedding and the norms")
    parser.add_argument("--decay-from", type=float, default=0.45, help="part of the time from which rates fall to 0")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--check-every", type=float, default=120, help="seconds between scores on a few prompts")
    parser.add_argument("--held-out", type=int, default=400, help="prompts a task that the result is scored on")
    parser.add_argument("--examples", type=int, default=6000, help="a task, that the vocabulary is made from")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eager", action="store_true", help="compile nothing")
    return parser.parse_args()


@dataclass(slots=True)
class Clock:
    """Seconds since the start, and how far training is."""

    minutes: float
    started: float

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    @property
    def done(self) -> float:
        return self.seconds / (60 * self.minutes)

    def say(self, text: str) -> None:
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)


class Trainer:
    def __init__(self, asked: argparse.Namespace, model: Model, clock: Clock) -> None:
        self.model, self.clock, self.curve = model, clock, list[dict[str, float]]()
        self.n_steps, self.n_tokens, self.n_learnt = 0, 0, 0
        self._asked, self._device = asked, torch.device(asked.device)
        matrices = [weight for name, weight in model.layers.named_parameters() if weight.ndim == 2]
        taken = set(map(id, matrices))
        rest = [weight for weight in model.parameters() if id(weight) not in taken]
        self._muon = Muon(matrices)
        self._adam = torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0, fused=self._device.type == "cuda")
        self._loss = _loss
        if not asked.eager:
            for layer in model.layers:
                layer.compile()
            self._loss = torch.compile(_loss)

    def first(self, packs: Packs) -> float:
        """The first step and its loss; where nothing can be compiled here, all go without."""
        try:
            return self.step(packs).item()
        except Exception as error:
            if self._asked.eager:
                raise
            self.clock.say(f"not compiled: {type(error).__name__}: {str(error)[:300]}")
            for layer in self.model.layers:
                layer._compiled_call_impl = None
            self._loss = _loss
            return self.step(packs).item()

    def step(self, packs: Packs) -> torch.Tensor:
        """One step on a batch; returns the loss, on the device."""
        self._set_rates()
        on = packs.tensors(self._device)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            loss = self._forward(on)
        loss.backward()
        self._muon.step()
        self._adam.step()
        self.model.zero_grad(set_to_none=True)
        self.n_steps += 1
        self.n_tokens += packs.tokens.size
        self.n_learnt += int(packs.weights.sum())
        return loss.detach()

    def _forward(self, on: Packs) -> torch.Tensor:
        positions, tokens = on.positions.int(), on.tokens.int()
        visible = seen(on.documents, on.copies, positions // BLOCK, on.stages)
        hidden = self.model(tokens, positions, visible)
        rows = on.rows.long()[..., None].expand(-1, -1, hidden.shape[2])
        return self._loss(hidden.gather(1, rows), self.model.embed_tokens.weight, on.targets.long(), on.weights)

    def _set_rates(self) -> None:
        done, begin = self.clock.done, self._asked.decay_from
        rate = min((self.n_steps + 1) / 100, 1.0) * min(1.0, max(1 - done, 0.0) / (1 - begin))
        self._muon.rate = self._asked.muon * rate
        for group in self._adam.param_groups:
            group["lr"] = self._asked.adam * rate

    def run(self, feed: Iterator[Packs], check: Any) -> None:
        """Until the time is up."""
        told, checked, recent = self.clock.seconds, self.clock.seconds, list[torch.Tensor]()
        while self.clock.done < 1:
            recent.append(self.step(next(feed)))
            if self.clock.seconds - told > _LOG_EVERY:
                self._tell(torch.stack(recent).mean().item(), len(recent) / (self.clock.seconds - told))
                told, recent = self.clock.seconds, []
            if self.clock.seconds - checked > self._asked.check_every and self.clock.done < 0.9:
                check()
                told = checked = self.clock.seconds

    def _tell(self, loss: float, rate: float) -> None:
        seconds, at = round(self.clock.seconds, 1), self._muon.rate
        self.curve.append({"seconds": seconds, "step": self.n_steps, "loss": round(loss, 5), "rate": round(at, 6)})
        per_second = rate * self._asked.rows * self._asked.tokens
        self.clock.say(
            f"step {self.n_steps} loss {loss:.4f} rate {at:.4f} {rate:.2f} steps/s {per_second:.3g} tokens/s"
        )


def _loss(hidden: torch.Tensor, head: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Mean over all masks that learn, each with the same weight."""
    logits = F.linear(hidden, head).float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def save(out: Path, model: Model, tokenizer: Tokenizer) -> None:
    """The checkpoint as loaders expect it, but for what it scores."""
    mask, stop, end = (id_of(tokenizer, text) for text in (MASK, STOP, END))
    model.save(out, model.shape.config(block=BLOCK, mask=mask, stop=stop, end=end))
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    (out / "model.safetensors").chmod(0o644)
    generation = {"eos_token_id": [stop, end], "pad_token_id": end, "do_sample": False}
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": STOP, "pad_token": END, "mask_token": MASK,
        "additional_special_tokens": list(CONTROL), "clean_up_tokenization_spaces": False,
        "model_max_length": model.shape.max_position_embeddings,
    }  # fmt: skip
    _write(out / "generation_config.json", generation)
    _write(out / "tokenizer_config.json", settings)
    shutil.copy(Path(__file__).with_name("template.jinja"), out / "chat_template.jinja")


def main() -> None:
    clock, asked = Clock(1, time.perf_counter()), options()
    clock = replace(clock, minutes=asked.minutes)
    torch.manual_seed(asked.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = train_tokenizer(asked.vocabulary, n_examples=asked.examples)
    n_ids = -(-tokenizer.get_vocab_size() // 64) * 64
    clock.say(f"vocabulary: {tokenizer.get_vocab_size()} ids")
    feed = Feed(tokenizer, Sizes(asked.rows, asked.tokens, asked.learn), asked.seed, asked.workers)
    shape = Shape(n_ids, hidden_size=asked.hidden, intermediate_size=asked.inner, num_hidden_layers=asked.layers)
    model = Model(shape).to(asked.device)
    scored = Model(shape).to(asked.device)  # as it is saved: of weights in bfloat16, not compiled
    clock.say(
        f"model: {sum(weight.numel() for weight in model.parameters()):,} parameters on {_hardware(asked.device)}"
    )
    backend = fastest(asked.device, asked.rows, asked.tokens, shape, clock.say)
    trainer, few, checks = Trainer(asked, model, clock), held_out(32), list[dict[str, Any]]()

    def check() -> None:
        save(asked.out, model, tokenizer)
        scored.load_state_dict(_rounded(model))
        found = score(scored, tokenizer, few)
        checks.append({"seconds": clock.seconds, **{name: each["exact_match"] for name, each in found.items()}})
        clock.say(_line(found))

    packs = iter(feed)
    with sdpa_kernel(backend, set_priority=True):
        first = next(packs)
        clock.say("first batch is there")
        clock.say(f"first step done, loss {trainer.first(first):.3f}")
        trainer.run(packs, check)
    seconds = clock.seconds
    feed.close()
    log = {
        "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(asked).items()},
        "hardware": _hardware(asked.device), "torch": torch.__version__, "python": platform.python_version(),
        "parameters": sum(weight.numel() for weight in model.parameters()), "seconds": round(seconds, 1),
        "steps": trainer.n_steps, "tokens": trainer.n_tokens, "learnt_masks": trainer.n_learnt,
        "scoring": "held-out prompts, greedy, whole block each step, threshold 0.9, weights in bfloat16",
        "checks": checks, "curve": trainer.curve,
    }  # fmt: skip
    save(asked.out, model, tokenizer)
    _write(asked.out / "log.json", log)
    scored.load_state_dict(_rounded(model))
    clock.say("saved; scoring")
    found = score(scored, tokenizer, held_out(asked.held_out))
    clock.say(_line(found))
    _write(asked.out / "log.json", {"scores": found, **log})
    for name, each in found.items():
        for wrong in each["wrong"]:
            clock.say(f"{name}: {wrong}")


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def _rounded(model: Model) -> dict[str, torch.Tensor]:
    return {name: weight.bfloat16().float() for name, weight in model.state_dict().items()}


def _line(found: dict[str, Any]) -> str:
    return " ".join(
        f"{name} {each['exact_match']:.3f} ({each['tokens_per_step']:.1f} tokens/step)" for name, each in found.items()
    )


def _hardware(device: str) -> str:
    return (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"{platform.processor()}, {torch.get_num_threads()} threads"
    )


if __name__ == "__main__":
    main()
