"""Run: training itself, from packs to a scored checkpoint."""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.clock import Clock
from training.data import BLOCK, TASK_NAMES, Feed, Packs
from training.held_out import write as write_held_out
from training.model import Model, Shape, seen
from training.muon import Muon
from training.score import decided, held_out, score
from training.vocabulary import CONTROL, END, MASK, STOP, id_of

_LOG_EVERY = 4.0  # seconds
_WARM_UP = 150  # steps
_ALIKE = 0.98  # of gradients in bfloat16; 0.9998 where all is well
# Not cuDNN's: under a mask, in a compiled pass, its gradients were wrong (torch 2.11, H200).
_KERNELS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# How far training is, and by then the chances of the kinds of blocks: single rows, some rows, whole ones. Between two
# of these the chances lie between theirs.
_COURSE = (
    (0.0, (1.0, 0.0, 0.0)), (0.25, (1.0, 0.0, 0.0)), (0.3, (0.4, 0.6, 0.0)), (0.38, (0.2, 0.8, 0.0)),
    (0.48, (0.15, 0.15, 0.7)), (0.65, (0.05, 0.05, 0.9)), (1.0, (0.0, 0.0, 1.0)),
)  # fmt: skip


def chances(done: float) -> list[float]:
    """Of each kind of blocks."""
    at = [point for point, _ in _COURSE]
    return [float(np.interp(done, at, values)) for values in zip(*(each for _, each in _COURSE), strict=True)]


class Trainer:
    def __init__(self, args: argparse.Namespace, model: Model, clock: Clock) -> None:
        self.model, self.clock, self.curve = model, clock, list[dict[str, Any]]()
        self.n_steps, self.n_tokens, self.n_learnt = 0, 0, 0
        self._args, self._device = args, torch.device(args.device)
        self._rng = random.Random(args.seed)  # noqa: S311
        matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
        taken = set(map(id, matrices))
        rest = [weight for weight in model.parameters() if id(weight) not in taken]
        self._muon, self._tally = Muon(matrices), Tally(self._device)
        self._adam = torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0, fused=self._device.type == "cuda")

    def first(self, packs: Packs, plain: Model) -> None:
        """Raises RuntimeError where gradients are not those of the same model in float32 with plain attention."""
        on = _sent(packs, self._device)
        with sdpa_kernel(SDPBackend.MATH):
            _mean(_forward(plain, on, narrow=False), on.weights).backward()
        if (least := self._alike(plain, on)) < _ALIKE:
            raise RuntimeError(f"gradients are wrong here: {least:.3f} is the least cosine with the right ones")
        self.model.zero_grad(set_to_none=True)
        plain.zero_grad(set_to_none=True)

    def _alike(self, plain: Model, on: Packs) -> float:
        """The least cosine between gradients of a parameter, here and in the plain model, which has its own."""
        loss = _mean(_forward(self.model, on), on.weights)
        loss.backward()
        found = {
            name: F.cosine_similarity(_gradient(a), _gradient(b), dim=0).item()
            for (name, a), (_, b) in zip(self.model.named_parameters(), plain.named_parameters(), strict=True)
        }
        name = min(found, key=lambda each: found[each])
        self.clock.say(f"first loss {loss.item():.3f}; gradients differ most in {name}: cosine {found[name]:.4f}")
        return found[name]

    def step(self, packs: Packs) -> torch.Tensor:
        """One step on a batch; returns the loss, on the device."""
        self._set_rates()
        on = _sent(packs, self._device)
        losses = _forward(self.model, on)
        loss = _mean(losses, on.weights)
        loss.backward()
        self._tally.add(losses.detach(), on)
        self._muon.step()
        self._adam.step()
        self.model.zero_grad(set_to_none=True)
        self.n_steps += 1
        self.n_tokens += packs.tokens.size
        self.n_learnt += int((packs.weights > 0).sum())
        return loss.detach()

    def _set_rates(self) -> None:
        begin = self._args.decay_from
        rate = min((self.n_steps + 1) / _WARM_UP, 1.0) * min(1.0, max(1 - self.clock.done, 0.0) / (1 - begin))
        self._muon.rate = self._args.muon * rate
        for group in self._adam.param_groups:
            group["lr"] = self._args.adam * rate

    def run(self, feed: Feed, check: Callable[[], None]) -> None:
        """Until the time is up."""
        said, checked, waited = self.clock.seconds, self.clock.seconds, 0.0
        recent: list[list[torch.Tensor]] = [[], [], []]
        while self.clock.done < 1:
            (kind,) = self._rng.choices(range(3), chances(self.clock.done))
            began = self.clock.seconds
            packs = feed.next(kind)
            waited += self.clock.seconds - began
            recent[kind].append(self.step(packs))
            if self.clock.seconds - said > _LOG_EVERY:
                self._say(recent, self.clock.seconds - said, waited)
                said, waited, recent = self.clock.seconds, 0.0, [[], [], []]
            if self.clock.seconds - checked > self._args.check_every and 0.5 < self.clock.done < 0.9:
                check()
                said = checked = self.clock.seconds

    def _say(self, recent: Sequence[Sequence[torch.Tensor]], seconds: float, waited: float) -> None:
        losses = [round(torch.stack([*each]).mean().item(), 4) if each else None for each in recent]
        n, at = sum(map(len, recent)), round(self.clock.seconds, 1)
        tasks = self._tally.taken()
        rate = round(self._muon.rate, 6)
        self.curve.append({"seconds": at, "step": self.n_steps, "losses": losses, "tasks": tasks, "rate": rate})
        shown = " ".join(f"{loss:6.4f}" if loss is not None else "   -  " for loss in losses)
        per_second = n * self._args.rows * self._args.tokens / seconds
        self.clock.say(
            f"step {self.n_steps} losses by kind {shown} rate {self._muon.rate:.4f} "
            f"{n / seconds:.1f} steps/s {per_second:.3g} tokens/s, waited {waited / seconds:.0%}; "
            + " ".join(f"{name} {loss:.4f}" for name, loss in tasks.items())
        )


class Tally:
    """Losses by task of rows that say something, each row as much as another, summed on the device until taken."""

    def __init__(self, device: torch.device) -> None:
        self._sums = torch.zeros(2, 1 + len(TASK_NAMES), device=device)

    def add(self, losses: torch.Tensor, on: Packs) -> None:
        learnt = (on.weights > 0).float()
        for sums, each in zip(self._sums, (losses * learnt, learnt), strict=True):
            sums.index_add_(0, on.tasks.flatten().long() + 1, each.flatten())

    def taken(self) -> dict[str, float]:
        """Mean of each task that there was; what follows begins anew."""
        losses, counts = self._sums[:, 1:].tolist()
        self._sums.zero_()
        pairs = zip(TASK_NAMES, losses, counts, strict=True)
        return {name: round(loss / count, 4) for name, loss, count in pairs if count}


def _forward(model: Model, on: Packs, *, narrow: bool = True) -> torch.Tensor:
    """Losses [N, R] of packs that are on the device; narrow: products in bfloat16, on a card."""
    with torch.autocast(on.tokens.device.type, torch.bfloat16, enabled=on.tokens.is_cuda and narrow):
        visible = seen(on.documents, on.copies, on.blocks, on.stages)
        hidden = model(on.tokens, on.positions, visible)
        rows = on.rows.long()[..., None].expand(-1, -1, hidden.shape[2])
        logits = F.linear(hidden.gather(1, rows), model.embed_tokens.weight).float()
        return F.cross_entropy(logits.flatten(0, 1), on.targets.long().flatten(), reduction="none").view_as(on.weights)


def _gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad.flatten()


def _sent(packs: Packs, device: torch.device) -> Packs:
    """To the device, in few pieces."""
    names = ("tokens", "positions", "blocks", "documents", "copies", "stages")
    wide = torch.from_numpy(np.stack([getattr(packs, name) for name in names]).astype(np.int32))
    narrow = torch.from_numpy(np.stack([packs.rows, packs.targets, packs.tasks]))
    weights = torch.from_numpy(packs.weights)
    if device.type == "cuda":
        wide, narrow, weights = (each.pin_memory().to(device, non_blocking=True) for each in (wide, narrow, weights))
    found = dict(zip(names, wide.unbind(), strict=True))
    return Packs(**found, rows=narrow[0], targets=narrow[1], tasks=narrow[2], weights=weights)


def _mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Over all masks that learn, by their weights."""
    return (losses * weights).sum() / weights.sum()


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
    write_held_out(out)
    shutil.copy(Path(__file__).with_name("template.jinja"), out / "chat_template.jinja")


def run(args: argparse.Namespace, path: Path, feed: Feed, clock: Clock) -> None:
    """Train, save and score."""
    clock.say("torch is here")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    tokenizer = Tokenizer.from_file(str(path))
    n_ids = -(-tokenizer.get_vocab_size() // 64) * 64
    shape = Shape(
        n_ids, hidden_size=args.hidden, intermediate_size=args.inner, num_hidden_layers=args.layers,
        num_attention_heads=args.heads, num_key_value_heads=max(1, args.heads // 3),
    )  # fmt: skip
    model = Model(shape)
    scored = Model(shape)  # as it is saved: of weights in bfloat16, not compiled
    scored.load_state_dict(model.state_dict())
    model.to(args.device)
    scored.to(args.device)
    n_weights = sum(weight.numel() for weight in model.parameters())
    clock.say(f"model: {n_weights:,} parameters on {_hardware(args.device)}")
    trainer, few, checks = (
        Trainer(args, model, clock),
        held_out(32, args.tasks.split(",")),
        list[dict[str, Any]](),
    )
    first = feed.next(0)
    clock.say("first batch is there")

    def check() -> None:
        save(args.out, model, tokenizer)
        scored.load_state_dict(_rounded(model))
        found = score(scored, tokenizer, few)
        checks.append({"seconds": clock.seconds, **{name: each["exact_match"] for name, each in found.items()}})
        clock.say(_line(found))
        if "decisions" in few:
            clock.say(_kinds(decided(scored, tokenizer, few["decisions"])))

    with sdpa_kernel(_KERNELS):
        trainer.first(first, scored)
        clock.begin()
        trainer.run(feed, check)
    log = {
        "arguments": {name: str(value) if isinstance(value, Path) else value for name, value in vars(args).items()},
        "hardware": _hardware(args.device), "torch": torch.__version__, "python": platform.python_version(),
        "parameters": n_weights, "seconds": round(clock.seconds, 1),
        "steps": trainer.n_steps, "tokens": trainer.n_tokens, "learnt_masks": trainer.n_learnt,
        "scoring": "held-out prompts, greedy, whole block each step, threshold 0.9, weights in bfloat16",
        "checks": checks, "curve": trainer.curve,
    }  # fmt: skip
    save(args.out, model, tokenizer)
    _write(args.out / "log.json", log)
    scored.load_state_dict(_rounded(model))
    clock.say("saved; scoring")
    found = score(scored, tokenizer, held_out(args.held_out, args.tasks.split(",")))
    clock.say(_line(found))
    _write(args.out / "log.json", {"scores": found, **log})
    if "decisions" in found:
        kinds = decided(scored, tokenizer, held_out(4 * args.held_out, ["decisions"])["decisions"])
        clock.say(_kinds(kinds))
        _write(args.out / "log.json", {"scores": found, "decided": kinds, **log})
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


def _kinds(found: dict[str, dict[str, int]]) -> str:
    return "decided: " + ", ".join(f"{kind} {each['right']} of {each['n']}" for kind, each in found.items())


def _hardware(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
