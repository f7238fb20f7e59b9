"""DiffusionGemma: a prompt and its canvases in one pass, against transformers' DiffusionGemmaForBlockDiffusion."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracles import decoders
from oracles import diffusion_gemma as oracle
from safetensors.torch import load_file, save_file
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

from ramet.cache.pages import Pages
from ramet.engine.batch import Batch
from ramet.engine.host import host_for
from ramet.engine.job import Job
from ramet.engine.load import load_model
from ramet.engine.runner import Runner
from ramet.engine.scheduler import Scheduler
from ramet.engine.settings import EngineSettings
from ramet.errors import CheckpointError
from ramet.families import FAMILIES
from ramet.layers.conditioning import Soft
from ramet.layers.decoder import Decoder
from ramet.ops import choose
from ramet.round import pack
from ramet.tree import WHOLE, FloatArray, Read, Reads, Segment, Tree
from ramet.units import Unit, Units
from ramet.weights import open_checkpoint
from tests.families.test_gemma4 import PUBLISHED, unclaimed

CPU = torch.device("cpu")
NAMES = sorted(oracle.CONFIGS)
WIDTHS = (1, 7, 20)  # the last wider than two of the windows, which are 3, 11 and 40
LENGTHS = (1, 10, 11, 12, 45)
PAGE, N_PAGES = 4, 64
GEMMA4_ALONE = ("hidden_size_per_layer_input", "attention_k_eq_v", "enable_moe_block")
SETTINGS = EngineSettings(device="cpu", dtype="float32").resolved()
Ids = list[int]


def ids(seed: int, *sizes: int, vocab_size: int = oracle.VOCAB_SIZE) -> list[Ids]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab_size, n).tolist() for n in sizes]


def tree_of(prompt: Ids, *canvases: Ids, vocab_size: int = oracle.VOCAB_SIZE) -> Tree:
    """Canvases below one prompt, of which every row and column is read."""
    columns = np.arange(vocab_size, dtype=np.int32)
    below = [Segment(c, 0, WHOLE, [Read(columns, row) for row in range(len(c))]) for c in canvases]
    return Tree.of([Segment(prompt), *below])


def probabilities(reads: Reads) -> FloatArray:
    """[R, V] of all reads."""
    return np.exp(np.stack([reads.logprobs(i) for i in range(len(reads.logsumexp))]))


def expected(model: DiffusionGemmaForBlockDiffusion, prompt: Ids, *canvases: Ids) -> FloatArray:
    """The same by transformers, the canvases one behind the other."""
    return torch.cat(oracle.several_logits(model, prompt, canvases)).softmax(-1).numpy()


def assert_close(found: FloatArray, wanted: FloatArray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


@cache
def decoder(name: str, attention: str = "cpu") -> Decoder:
    return decoders.made_of(oracle.model(name), choose(CPU, {"attention": attention}))


def one_pass(model: Decoder, units: Sequence[Unit], soft: Soft | None = None) -> list[Reads]:
    packed = pack(Units.of(units))
    return packed.results(*model(packed.on(CPU), None, soft))


@pytest.mark.parametrize("attention", ["cpu", "reference"])
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_prompt_and_canvas_in_one_pass(name: str, length: int, attention: str) -> None:
    for width in WIDTHS:
        prompt, canvas = ids(length, length, width)
        found = one_pass(decoder(name, attention), [Unit(tree_of(prompt, canvas))])[0]
        assert_close(probabilities(found), expected(oracle.model(name), prompt, canvas))


@pytest.mark.parametrize("name", NAMES)
def test_siblings_equal_each_canvas_alone(name: str) -> None:
    """Of several prompts in one round."""
    requests = [ids(1, 30, 5, 16, 1), ids(2, 8, 9), ids(3, 13, 3, 3)]
    found = one_pass(decoder(name), [Unit(tree_of(*each)) for each in requests])
    for (prompt, *canvases), reads in zip(requests, found, strict=True):
        wanted = [expected(oracle.model(name), prompt, canvas) for canvas in canvases]
        assert_close(probabilities(reads), np.concatenate(wanted))


def through_rounds(
    run: Callable[[Batch], list[Reads]], trees: Sequence[Tree], budget: int, page: int = PAGE
) -> tuple[list[Job], int]:
    """One tree after another, what was kept of the earlier at hand; and how many rounds it took."""
    scheduler, jobs, n_rounds = Scheduler(Pages(N_PAGES, page), budget), [], 0
    for tree in trees:
        jobs.append(Job(tree, Future(), n_keep=int(tree.lengths[0])))
        scheduler.add(jobs[-1])
        while len(scheduler):
            batch = scheduler.next()
            scheduler.commit(batch, run(batch))
            n_rounds += 1
    return jobs, n_rounds


@pytest.mark.parametrize("length", [40, 41])
@pytest.mark.parametrize("name", NAMES)
def test_two_steps_equal_one(name: str, length: int) -> None:
    """The prompt in pages first, in one round or in chunks, and the canvases on it."""
    prompt, *canvases = ids(4, length, 6, 16)
    wanted = expected(oracle.model(name), prompt, *canvases)
    shape, trees = decoder(name).shape, [Tree.of([Segment(prompt)]), tree_of(prompt, *canvases)]
    for budget, parts, n_rounds in ((4096, trees, 2), (24, trees[1:], 3), (16, trees[1:], 5)):
        runner = Runner(decoder(name), decoders.poisoned(shape, N_PAGES, PAGE), host_for(decoder(name).device))
        jobs, n = through_rounds(runner.run, parts, budget)
        assert (n, jobs[-1].n_cached) == (n_rounds, 40 if len(parts) > 1 else 0)
        assert_close(probabilities(jobs[-1].reads), wanted)


def test_one_pass_and_two_have_the_same_bits() -> None:
    """Where bits are promised: the canvas alone in its round, or beside its prompt and another's."""
    model = decoders.made_of(oracle.model("plain"), choose(CPU, invariant=True))
    prompt, canvas, other, others = ids(5, 40, 16, 23, 9)
    one = one_pass(model, [Unit(tree_of(other, others)), Unit(tree_of(prompt, canvas))])[1]
    runner = Runner(model, decoders.poisoned(model.shape, N_PAGES, PAGE), host_for(model.device))
    for budget in (4096, 16):
        jobs, _ = through_rounds(runner.run, [Tree.of([Segment(prompt)]), tree_of(prompt, canvas)], budget)
        assert jobs[-1].n_cached == 40
        np.testing.assert_array_equal(jobs[-1].reads.logits, one.logits)
        np.testing.assert_array_equal(jobs[-1].reads.logsumexp, one.logsumexp)


@pytest.mark.parametrize("name", NAMES)
def test_poisoned_neighbours_change_nothing(name: str) -> None:
    """A sibling canvas of NaN, and another request that reads NaN from its pages."""
    prompt, canvas, bad, other = ids(6, 30, 12, 9, 15)
    model = decoder(name)
    poisoned = decoders.poisoned(model.shape, N_PAGES, PAGE)
    units = [
        Unit(tree_of(other, bad), np.arange(5, dtype=np.int32), 17, forks=np.zeros(1, np.int32)),
        Unit(tree_of(prompt, bad, canvas)),
    ]
    packed = pack(Units.of(units))
    stream = packed.on(CPU)
    rows = torch.arange(30, 39, dtype=torch.int32) + int(stream.starts[2])
    soft = Soft(rows, torch.full((9, model.shape.hidden_size), torch.nan))
    spoilt, found = (probabilities(reads) for reads in packed.results(*model(stream, poisoned, soft)))
    assert np.isnan(spoilt).all()
    assert np.isnan(found[:9]).all()
    assert_close(found[9:], expected(oracle.model(name), prompt, canvas))


@pytest.mark.parametrize("name", NAMES)
def test_a_step_is_conditioned_on_the_one_before(name: str) -> None:
    """Some canvases at their second step, one at its first."""
    theirs, (prompt, *canvases) = oracle.model(name), ids(7, 20, 8, 5, 12)
    before: list[torch.Tensor | None] = list(oracle.several_logits(theirs, prompt, canvases))
    before[1] = None
    wanted = torch.cat(oracle.several_logits(theirs, prompt, canvases, before)).softmax(-1).numpy()
    rows = torch.tensor([*range(20, 28), *range(33, 45)], dtype=torch.int32)
    values = torch.cat([oracle.soft_embeddings(theirs, logits) for logits in before if logits is not None])
    found = one_pass(decoder(name), [Unit(tree_of(prompt, *canvases))], Soft(rows, values))[0]
    assert_close(probabilities(found), wanted)
    first = one_pass(decoder(name), [Unit(tree_of(prompt, *canvases))])[0]
    assert np.abs(probabilities(found) - probabilities(first))[:8].max() > 1e-2
    zeros = one_pass(decoder(name), [Unit(tree_of(prompt, *canvases))], Soft(rows, torch.zeros_like(values)))[0]
    np.testing.assert_array_equal(zeros.logits, first.logits)


def test_a_saved_checkpoint() -> None:
    directory = oracle.saved("plain")
    model = load_model(open_checkpoint(directory), SETTINGS)
    n = model.shape.vocab_size
    prompt, canvas = ids(8, 33, 16, vocab_size=n)
    found = one_pass(model, [Unit(tree_of(prompt, canvas, vocab_size=n))])[0]
    assert_close(probabilities(found), expected(oracle.load(directory), prompt, canvas))


def test_the_published_shape() -> None:
    text = {key: value for key, value in PUBLISHED["26B-A4B"].items() if key not in GEMMA4_ALONE}
    made = DiffusionGemmaConfig(text_config=text, vision_config={})
    with torch.device("meta"):
        state = {n: tuple(t.shape) for n, t in DiffusionGemmaForBlockDiffusion(made).state_dict().items()}
    tied = [n for n in state if n.startswith("model.encoder.language_model.") and not n.endswith("layer_scalar")]
    for name in [*tied, "lm_head.weight"]:  # which no checkpoint has
        del state[name]
    family = FAMILIES["diffusion_gemma"]
    left = unclaimed("diffusion_gemma", family.shape(made.get_text_config()), state)
    assert left
    assert all(name.startswith(family.unused) for name in left)
    assert len([n for n in state if n.startswith(("model.decoder.", "model.encoder.language_model."))]) == 657 + 34


@pytest.mark.parametrize(("changed", "message"), [
    ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention is 'all'"),
    ({"hidden_activation": "silu"}, "hidden_activation is 'silu'"),
    ({"attention_bias": True}, "attention_bias is True"),
    ({"num_experts": None}, "num_experts is None"),
])  # fmt: skip
def test_what_is_not_served(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        FAMILIES["diffusion_gemma"].shape(oracle.config("plain", **changed).get_text_config())


def copied(tmp_path: Path) -> Path:
    shutil.copytree(oracle.saved("plain"), tmp_path / "c")
    return tmp_path / "c"


@pytest.mark.parametrize("name", [
    "model.encoder.language_model.layers.1.layer_scalar", "model.decoder.layers.0.layer_scalar",
    "model.decoder.self_conditioning.pre_norm.weight",
])  # fmt: skip
def test_a_missing_parameter(name: str, tmp_path: Path) -> None:
    file = copied(tmp_path) / "model.safetensors"
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=f"missing are {name}"):
        load_model(open_checkpoint(file.parent), SETTINGS)


def test_conditioning_of_another_size(tmp_path: Path) -> None:
    """Some configurations are said to name its size: this one's follows from the MLP's."""
    file = copied(tmp_path) / "config.json"
    raw = json.loads(file.read_text())
    raw["text_config"]["intermediate_size"] = 80
    file.write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="the configuration needs"):
        load_model(open_checkpoint(file.parent), SETTINGS)
