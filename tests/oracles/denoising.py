"""Denoising without an engine: what a step returns, in plain torch, and a course followed on a Decoder in float32; and
transformers' own loop with the same noise."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from fixtures import tiny
from oracles import decoders
from oracles import diffusion_gemma as oracle
from transformers import DiffusionGemmaForBlockDiffusion, LogitsProcessor, LogitsProcessorList
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSampler

from ramet.denoise.noise import Noise
from ramet.engine.multi_step_read import MultiStepRead
from ramet.layers.conditioning import Soft
from ramet.layers.decoder import Decoder
from ramet.ops import choose
from ramet.round import pack
from ramet.tree import WHOLE, Read, Reads, Segment, Step, Stepped, Tree
from ramet.units import Unit, Units

CPU = torch.device("cpu")


def calm(made: DiffusionGemmaForBlockDiffusion) -> DiffusionGemmaForBlockDiffusion:
    """The model, with layers that add less to a row, and less of the step before: what its steps make of a rounding
    stays one over many of them, and its canvases settle, some early."""
    for place, weight in made.named_parameters():
        if place.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            weight.data *= 0.4
        if "self_conditioning.down_proj" in place:
            weight.data *= 0.3
    return made


@cache
def model(name: str) -> DiffusionGemmaForBlockDiffusion:
    """The oracle's, calm."""
    return calm(copy.deepcopy(oracle.model(name)))


def saved(model: DiffusionGemmaForBlockDiffusion, generation: Mapping[str, Any]) -> Path:
    """A checkpoint of a model of the shared tokenizer's vocabulary, with a generation_config.json."""
    directory = Path(tempfile.mkdtemp(prefix="denoising-", dir=tiny.root()))
    model.generation_config = model.generation_config.__class__(**generation)
    model.save_pretrained(directory)
    tiny.save_tokenizer(directory)
    return directory


@cache
def decoder(name: str) -> Decoder:
    """Ours, of the same weights."""
    return decoders.made_of(model(name), choose(CPU))


def stepped(logits: torch.Tensor, step: Step, table: torch.Tensor | None = None) -> Stepped:
    """What a step returns of its rows' logits [N, V], soft cap included. table [V, C]: the embeddings as a canvas has
    them, needed where a step follows."""
    if step.columns is not None:
        which = torch.from_numpy(step.columns).long()
        of_them = stepped(logits[:, which], replace(step, columns=None), None if table is None else table[which])
        return replace(of_them, tokens=step.columns[of_them.tokens], best=step.columns[of_them.best])
    tempered = (logits / step.temperature).log_softmax(-1)
    best = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, : step.n_best]
    return Stepped(
        tokens=drawn(tempered.exp(), step.uniforms).int().numpy(),
        best=best.int().numpy(),
        logprobs=logits.log_softmax(-1).gather(1, best).numpy(),
        entropy=-(tempered.exp() * tempered).sum(-1).numpy(),
        soft=tempered.exp() @ table if step.leaves_soft and table is not None else None,
    )


def drawn(probabilities: torch.Tensor, uniforms: Any) -> torch.Tensor:
    """[N] the first id of each row whose cumulative probability exceeds the row's number."""
    sums = probabilities.double().cumsum(-1)
    found = (sums <= torch.as_tensor(uniforms).double()[:, None]).sum(-1)
    return found.clamp_max(probabilities.shape[-1] - 1)  # where rounding leaves the sum of all below the number


def run(model: Decoder, tree: Tree) -> Reads:
    """A tree of a trunk and one canvas, in one pass from nothing."""
    trunk, canvas = np.split(tree.tokens, [int(tree.starts[1])])
    assert tree.blocks.tolist() == [1, WHOLE]
    assert tree.parents.tolist() == [-1, 0]
    columns = np.arange(model.shape.vocab_size, dtype=np.int32)
    every = Tree.of([Segment(trunk), Segment(canvas, 0, WHOLE, [Read(columns, row) for row in range(len(canvas))])])
    packed = pack(Units.of([Unit(every)]))
    found = packed.results(*model(packed.on(CPU), None, soft_of(tree)))[0]
    return answered(tree, torch.from_numpy(found.logits).view(len(canvas), -1), model.embedding.float())


def soft_of(tree: Tree) -> Soft | None:
    """What the step before expects of the canvas' rows, nothing of those that are pinned."""
    values = next((step.soft for _, step in tree.steps), None)
    if values is None:
        return None
    assert isinstance(values, torch.Tensor)
    values = values.index_fill(0, torch.as_tensor(tree.steps[0][1].pinned).long(), 0)
    return Soft(torch.arange(len(values), dtype=torch.int32) + int(tree.starts[1]), values)


def answered(tree: Tree, logits: torch.Tensor, embedding: torch.Tensor) -> Reads:
    """What a tree asks of its canvas, whose logits are [W, V]; the input's embeddings are [V, C]."""
    offsets = tree.offsets.tolist()
    parts = [logits[row, tree.columns[a:b]] for row, a, b in zip(tree.read_rows, offsets, offsets[1:], strict=False)]
    norms = logits.logsumexp(-1).numpy()[tree.read_rows]
    steps = [step for _, step in tree.steps]
    table = embedding * embedding.shape[1] ** 0.5
    return Reads(
        torch.cat(parts).numpy(),
        np.where(tree.normalize, norms, np.float32(np.nan)),
        tree.offsets,
        tuple(stepped(logits[torch.from_numpy(step.rows).long()], step, table) for step in steps),
    )


def follow(model: Decoder, course: MultiStepRead) -> list[Tree]:
    """A read to its end; the trees that it took."""
    trees = [course.tree()]
    while not course.take(run(model, trees[-1])):
        trees.append(course.tree())
    return trees


class _Among(LogitsProcessor):
    """Leaves the logits of these ids alone."""

    def __init__(self, columns: Sequence[int]) -> None:
        self.columns = list(columns)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        kept = torch.full_like(scores, -1e9)
        kept[..., self.columns] = scores[..., self.columns]
        return kept


class _Sampler(EntropyBoundSampler):
    """transformers', with numbers of ours: it draws a canvas before the first step, and one after each."""

    likeliest = False

    def __init__(self, noise: Noise, **settings: Any) -> None:
        super().__init__(**settings)
        self.noise, self.canvas, self.step, self.n_steps = noise, -1, 0, []

    def begin(self) -> None:
        self.canvas, self.step = self.canvas + 1, 0
        self.n_steps.append(0)

    def initialize_canvas(self, batch_size: int, device: torch.device) -> torch.Tensor:
        assert batch_size == 1
        ids = self.noise.ids(self.canvas, self.step, self.canvas_length, self.vocab_size)
        return torch.from_numpy(ids).long()[None]

    def multinomial(self, probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        assert num_samples == 1
        found = drawn(probabilities, self.noise.uniforms(self.canvas, self.step, self.canvas_length))
        found = probabilities.argmax(-1) if self.likeliest else found
        self.step += 1
        self.n_steps[-1] += 1
        return found[:, None]


def generated(
    model: DiffusionGemmaForBlockDiffusion, prompt: Sequence[int], noise: Noise, generation: Mapping[str, Any], *,
    columns: Sequence[int] | None = None, likeliest: bool = False,
) -> tuple[list[int], list[int]]:  # fmt: skip
    """All ids of transformers' whole canvases, and how many steps each took; `generation` is what its
    generation_config.json would hold. columns: the ids that may be drawn. likeliest: instead of what is drawn."""
    with _sampled(model, noise) as samplers:
        config = model.generation_config.__class__(**generation)
        processors = LogitsProcessorList([] if columns is None else [_Among(columns)])
        with mock.patch.object(_Sampler, "likeliest", likeliest):
            made = model.generate(torch.tensor([list(prompt)]), generation_config=config, logits_processor=processors)
        found = made.sequences[0, len(prompt) :]
        return found.tolist(), samplers[0].n_steps


@contextmanager
def _sampled(model: DiffusionGemmaForBlockDiffusion, noise: Noise) -> Iterator[list[_Sampler]]:
    made: list[_Sampler] = []
    prepare = model._prepare_denoiser_inputs

    def sampler(generation: Any) -> _Sampler:
        sizes = {"canvas_length": model.config.canvas_length, "vocab_size": model.config.text_config.vocab_size}
        steps = generation.max_denoising_steps
        made.append(_Sampler(noise, config=generation.sampler_config, max_denoising_steps=steps, **sizes))
        return made[-1]

    def begun(**inputs: Any) -> Any:
        made[-1].begin()
        return prepare(**inputs)

    with (
        mock.patch.object(model, "_prepare_sampler", sampler),
        mock.patch.object(model, "_prepare_denoiser_inputs", begun),
        mock.patch.object(torch.compiler, "cudagraph_mark_step_begin"),  # imports torch's compiler, which takes seconds
        mock.patch.object(torch, "multinomial", lambda p, num_samples: made[-1].multinomial(p, num_samples)),
    ):
        yield made
