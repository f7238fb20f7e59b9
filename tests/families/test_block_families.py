"""SDAR, SDAR-MoE and LLaDA2.0: their passes against plain models, files as they are published, decisions at masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.cpu_variants import experts_refused
from fixtures.tiny_engine import expected, tiny_engine
from oracles import block_models, decoders
from oracles.answers import assert_close
from oracles.block_models import BlockModel, block_causal
from safetensors.torch import load_file, save_file

from ramet.decide import prompt
from ramet.decision import NoulAnswer
from ramet.engine import Engine
from ramet.engine.load import load_model
from ramet.engine.settings import EngineSettings
from ramet.errors import CheckpointError, InvalidRequest
from ramet.families import FAMILIES
from ramet.layers.experts import ChosenExperts, GroupsRouter
from ramet.request import DecisionRequest
from ramet.tree import Read, Reads, Segment, Tree
from ramet.weights import open_checkpoint
from tests.families.test_exactness import run
from tests.weights.test_checkpoint import copied

NAMES = sorted(block_models.RAW)
COLUMNS = np.arange(decoders.VOCAB_SIZE)
SIZE = 4


def drawn(seed: int, n: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.random.default_rng(seed).integers(0, decoders.VOCAB_SIZE, n).astype(np.int32)


def whole(name: str, ids: Any, size: int = SIZE) -> torch.Tensor:
    """Log-probabilities [n, V] of a sequence by itself, each block seeing itself."""
    model = decoders.oracle(name)
    assert isinstance(model, BlockModel)
    return model.logits(torch.as_tensor(ids).long(), block_causal(len(ids), size)).log_softmax(-1)


def assert_rows(reads: Reads, first: int, wanted: torch.Tensor) -> None:
    for i, row in enumerate(wanted.exp().numpy()):
        np.testing.assert_allclose(np.exp(reads.logprobs(first + i)), row, rtol=0, atol=1e-5)


# Passes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_round_tokens", [8, 4096])
def test_prompts_of_every_length(name: str, max_round_tokens: int) -> None:
    """From one row to two blocks and one, in one piece and in chunks of two blocks, which come from pages."""
    prompts = [drawn(n, n) for n in range(1, 2 * SIZE + 2)] + [drawn(30, 30)]
    trees = [
        Tree.of([Segment(ids, block=SIZE, reads=[Read(COLUMNS, row) for row in range(len(ids))])]) for ids in prompts
    ]
    for ids, job in zip(prompts, run(name, trees, max_round_tokens=max_round_tokens), strict=True):
        assert_rows(job.reads, 0, whole(name, ids))


@pytest.mark.parametrize("name", NAMES)
def test_a_prompt_resumed_from_pages(name: str) -> None:
    """Blocks end with pages, so that another prompt with the same whole pages has the same rows there."""
    ids, other = drawn(1, 70), drawn(2, 70)

    def tree(n: int, size: int) -> Tree:
        return Tree.of([Segment(np.concatenate((ids[:n], other[n:])), block=size, reads=[Read(COLUMNS)])])

    lengths = (70, 70, 41, 40, 24, 16)
    jobs = run(name, [tree(n, SIZE) for n in lengths], max_round_tokens=100, page_size=8)
    assert [job.n_cached for job in jobs] == [0, 64, 40, 40, 24, 16]
    wide = run(name, [tree(n, 16) for n in lengths], max_round_tokens=100, page_size=8)
    assert [job.n_cached for job in wide] == [0] * 6  # a page of 8 would hold rows that depend on the next
    for size, found in ((SIZE, jobs), (16, wide)):
        for n, job in zip(lengths, found, strict=True):
            assert_rows(job.reads, 0, whole(name, np.concatenate((ids[:n], other[n:])), size)[-1:])


def test_blocks_of_other_sizes_share_no_pages() -> None:
    ids = drawn(3, 40)
    trees = [Tree.of([Segment(ids, block=size, reads=[Read(COLUMNS)])]) for size in (4, 8, 1, 4)]
    jobs = run("sdar", trees, max_round_tokens=40, page_size=8)
    assert [job.n_cached for job in jobs] == [0, 0, 0, 32]
    for size, job in zip((4, 8, 1, 4), jobs, strict=True):
        assert_rows(job.reads, 0, whole("sdar", ids, size)[-1:])


@pytest.mark.parametrize("name", NAMES)
def test_forks_within_a_block_see_what_is_above_them_whole(name: str) -> None:
    """A fork's rows see the trunk's last rows, which do not see them: what is pending beside masks."""
    trunk, forks = drawn(4, 10), [drawn(n, n) for n in (1, 2, 3, 7)]
    reads = [Read(COLUMNS, row) for row in range(len(trunk))]
    segments = [Segment(trunk, block=SIZE, reads=reads)]
    segments += [Segment(ids, 0, SIZE, [Read(COLUMNS, row) for row in range(len(ids))]) for ids in forks]
    (job,) = run(name, [Tree.of(segments)], max_round_tokens=4096)
    assert_rows(job.reads, 0, whole(name, trunk))
    model, at = decoders.oracle(name), len(trunk)
    assert isinstance(model, BlockModel)
    for ids in forks:
        seen = block_causal(len(trunk) + len(ids), SIZE)
        seen[: len(trunk), len(trunk) :] = False
        logits = model.logits(torch.from_numpy(np.concatenate((trunk, ids))).long(), seen)
        assert_rows(job.reads, at, logits.log_softmax(-1)[len(trunk) :])
        at += len(ids)


@pytest.mark.parametrize("name", NAMES)
def test_blocks_matter(name: str) -> None:
    """Guards the tests above: another block, or none, gives other numbers."""
    ids = drawn(5, 16)
    found = [whole(name, ids, size).exp() for size in (1, 4, 8)]
    assert min(float((found[i] - found[j]).abs().max()) for i, j in ((0, 1), (1, 2), (0, 2))) > 1e-2


# Files


def loaded(source: Path, **settings: Any) -> Any:
    return load_model(open_checkpoint(source), EngineSettings(device="cpu", dtype="float32", **settings).resolved())


def rewritten(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], Any], **config: Any) -> Path:
    """A copy of a checkpoint with other parameters."""
    directory = copied(source, target, **config)
    weights = load_file(directory / "model.safetensors")
    change(weights)
    save_file({k: v.contiguous() for k, v in weights.items()}, directory / "model.safetensors", {"format": "pt"})
    return directory


def logprobs(source: Path) -> Any:
    """Of every token at each of 20 rows."""
    with tiny_engine(source=source) as engine:
        columns, ids = np.arange(engine.shape.vocab_size), [37 * i for i in range(20)]
        tree = Tree.of([Segment(ids, block=SIZE, reads=[Read(columns, row) for row in range(20)])])
        reads = engine.submit(tree).result()
        return np.stack([reads.logprobs(row) for row in range(20)])


def test_the_families_are_known() -> None:
    assert set(NAMES) <= FAMILIES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_a_published_checkpoint(name: str) -> None:
    directory, model = block_models.saved(name)
    wanted = model.logits(torch.arange(20) * 37, block_causal(20, SIZE)).softmax(-1).numpy()
    np.testing.assert_allclose(np.exp(logprobs(directory)), wanted, rtol=0, atol=1e-5)


def inside(weights: dict[str, torch.Tensor]) -> None:
    """As multimodal derivatives name them."""
    for name in [name for name in weights if name.startswith("model.")]:
        weights[f"model.language_model.{name.removeprefix('model.')}"] = weights.pop(name)


def inverse_frequencies(weights: dict[str, torch.Tensor]) -> None:
    weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(8)


def fused(weights: dict[str, torch.Tensor]) -> None:
    """Gates, ups and downs of a layer in one parameter each."""
    for at in sorted({name.partition(".experts.")[0] for name in weights if ".experts." in name}):
        n = sum(name.startswith(f"{at}.experts.") for name in weights) // 3
        for part in ("gate_proj", "up_proj", "down_proj"):
            each = [weights.pop(f"{at}.experts.{e}.{part}.weight") for e in range(n)]
            weights[f"{at}.experts.{part}"] = torch.stack(each)


@pytest.mark.parametrize(("name", "change"), [
    ("llada2_moe", inside), ("llada2_moe", fused), ("sdar_moe", fused), ("sdar", inverse_frequencies), ("sdar", inside),
])  # fmt: skip
def test_other_names_of_the_same(name: str, change: Callable[[dict[str, torch.Tensor]], Any], tmp_path: Path) -> None:
    source, _ = block_models.saved(name)
    np.testing.assert_array_equal(logprobs(rewritten(source, tmp_path / "c", change)), logprobs(source))


@pytest.mark.parametrize("name", ["sdar", "llada2_moe"])
@pytest.mark.filterwarnings("ignore:.*though config.json says otherwise")
def test_the_head_is_the_one_in_the_file(name: str, tmp_path: Path) -> None:
    source, model = block_models.saved(name)
    tied = rewritten(source, tmp_path / "c", lambda w: w.pop("lm_head.weight"), tie_word_embeddings=True)
    embedding = next(w for name, w in model.weights.items() if "embed" in name)
    head = BlockModel(model.raw, model.weights | {"lm_head.weight": embedding})
    wanted = head.logits(torch.arange(20) * 37, block_causal(20, SIZE)).softmax(-1).numpy()
    np.testing.assert_allclose(np.exp(logprobs(tied)), wanted, rtol=0, atol=1e-5)
    kept = copied(source, tmp_path / "d", tie_word_embeddings=True)
    np.testing.assert_array_equal(logprobs(kept), logprobs(source))


@pytest.mark.parametrize(("name", "change", "message"), [
    ("sdar", lambda w: w.pop("model.layers.1.self_attn.k_norm.weight"), r"missing are model\.layers\.1.*k_norm"),
    ("sdar", lambda w: w.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(96)}), r"nothing uses .*q_proj\.b"),
    ("sdar_moe", lambda w: w.pop("model.layers.2.mlp.experts.7.up_proj.weight"), r"missing are .*experts\.7\.up_proj"),
    ("sdar_moe", lambda w: w.update({"model.layers.0.mlp.shared_expert.up_proj.weight": torch.ones(2, 2)}),
     "nothing uses .*shared_expert"),
    ("llada2_moe", lambda w: w.pop("model.layers.1.mlp.gate.expert_bias"), r"missing are .*expert_bias"),
    ("llada2_moe", lambda w: w.update({"model.layers.0.attention.query_key_value.weight": torch.ones(96, 96)}),
     r"query_key_value\.weight \(96, 96\), but the configuration needs \(160, 96\)"),
    ("llada2_moe", lambda w: w.update({"model.layers.3.eh_proj.weight": torch.ones(2)}), "nothing uses .*eh_proj"),
])  # fmt: skip
def test_parameters_that_do_not_fit(
    name: str, change: Callable[[dict[str, torch.Tensor]], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        loaded(rewritten(block_models.saved(name)[0], tmp_path / "c", change))


def test_the_router_is_wide_in_a_narrow_model() -> None:
    """Its bits, and its bias's, decide what is chosen."""
    directory, model = block_models.saved("llada2_moe")
    narrow = load_model(open_checkpoint(directory), EngineSettings(device="cpu", dtype="bfloat16").resolved())
    mlp = narrow.layers[1].mlp
    assert isinstance(mlp, ChosenExperts)
    assert isinstance(mlp.router, GroupsRouter)
    torch.testing.assert_close(mlp.router.bias, model.weights["model.layers.1.mlp.gate.expert_bias"], rtol=0, atol=0)
    x = torch.randn(300, 96).bfloat16()
    logits = x.float() @ model.weights["model.layers.1.mlp.gate.weight"].T
    torch.testing.assert_close(mlp.router.proj(x.float()), logits, rtol=1e-5, atol=1e-5)


def test_blocks_are_resolved_and_told() -> None:
    directory, model = block_models.saved("sdar", suffix="-b8")
    with tiny_engine(source=directory) as engine:
        told = engine.describe()
        assert told["block_size"] == "8 (the model's name)"
        assert told["mask_token_id"] == f"{model.raw['mask_token_id']} (config.json)"
        ends = [engine.decider._tokenizer.control[text] for text in ("<|endoftext|>", "<|im_end|>")]
        assert told["stop_token_ids"].startswith(f"{ends[0]}, {ends[1]} (")
        assert "pages of 16 tokens" in told["cache"]
    with tiny_engine(source=directory, block_size=32) as engine:
        assert engine.describe()["block_size"] == "32 (the option)"
        assert "pages of 32 tokens" in engine.describe()["cache"]


@pytest.mark.parametrize(
    "setting",
    [
        {"block_size": 4}, {"mode": "block"}, {"chunk_size": "4"}, {"chunk_tiers": "4:8"}, {"ahead": True},
        {"unmasking_strategy": "sequential"}, {"confidence_threshold": 0.5}, {"denoising_steps": 2},
        {"latency_cache": "x"},
    ],
)  # fmt: skip
def test_models_without_masks_have_no_blocks(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="qwen3 has no blocks of masks") as caught:
        tiny_engine(**setting)
    assert caught.value.field in setting


@pytest.mark.parametrize("setting", [{"canvas_length": 8}, {"max_denoising_steps": 2}, {"single_pass_reads": False}])
def test_models_with_masks_have_no_canvases(setting: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="sdar has no canvases") as caught:
        tiny_engine(source=block_models.saved("sdar")[0], **setting)
    assert caught.value.field in setting


# Decisions

STATE = "The parcel is late, it was to be here on Monday: A yes, B no. "
QUESTIONS: dict[str, Any] = {
    "noul": {"type": "noul", "instructions": "Is it late?"},
    "choice": {"type": "choice", "instructions": "Where is it?", "criteria": dict.fromkeys(["here", "lost", "at sea"])},
    "score": {"type": "score", "instructions": "How late?", "criteria": ["not", "a day", "a week"]},
}


def request(state: str = STATE, **extras: Any) -> DecisionRequest:
    return DecisionRequest.parse({"state": state, "questions": QUESTIONS, **extras})


def alone(engine: Engine, model: BlockModel, state: str, words: str, labels: list[str]) -> list[float]:
    """The labels' shares at the first mask behind a whole prompt, whose last block is filled with masks."""
    frame, tokenizer, masking = engine.decider._frame, engine.decider._tokenizer, engine.blocks
    assert masking is not None
    ids = frame.prompt(tokenizer, f"{state}\n\n{prompt.QUESTION} {words}")
    n = len(ids)
    ids += [masking.mask] * (masking.size - n % masking.size)
    logits = model.logits(torch.tensor(ids), block_causal(len(ids), masking.size))[n]
    return logits[[tokenizer.encode(label)[0] for label in labels]].softmax(-1).tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [4, 32])
def test_a_question_alone(name: str, size: int) -> None:
    """Of prompts of many lengths, also shorter than a block: fresh, and from pages of one that began alike."""
    directory, model = block_models.saved(name)
    words = "Is it late?\nyes\nno\nAnswer with yes or no only."
    seen = set()
    with tiny_engine(source=directory, block_size=size, max_round_tokens=128) as engine:
        for state in [STATE[:n] for n in range(5)] + [STATE * 4 + "x" * n for n in range(5)]:
            answer = engine.decide(state=state, questions={"q": QUESTIONS["noul"]})["q"]
            assert isinstance(answer, NoulAnswer)
            plan = engine.decider.plan(DecisionRequest.parse({"state": state, "questions": {"q": QUESTIONS["noul"]}}))
            seen.add(int(plan.tree.read_rows[0] + plan.tree.origins[-1]) % size)
            if not state:
                continue
            assert answer.noul == pytest.approx(alone(engine, model, state, words, ["yes", "no"])[0], abs=1e-5)
    assert len(seen) > 3


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("max_round_tokens", [96, 4096])
def test_decisions(name: str, max_round_tokens: int) -> None:
    """Several questions, in chunks, in several orders, and again from what is kept."""
    directory, model = block_models.saved(name, suffix="-b16")
    with tiny_engine(source=directory, max_round_tokens=max_round_tokens) as engine:
        for state in (STATE * 3, STATE * 3, STATE * 3 + "the end", "x"):
            asked = request(state, x_debias=3)
            found = engine.decide(asked)
            assert_close(found.answers, expected(engine, model, asked), 1e-5)
        again = engine.decide(request(STATE * 3))
        plan = engine.decider.plan(request(STATE * 3))
        assert plan.trunk % 16 == 0
        assert again.usage.x_cached_tokens == plan.trunk


def test_masks_go_on_to_the_end_of_the_block() -> None:
    directory, _ = block_models.saved("sdar", suffix="-b16")
    with tiny_engine(source=directory) as engine:
        assert engine.blocks is not None
        tree = engine.decider.plan(request()).tree
        masks = tree.tokens == engine.blocks.mask
        for segment, row in zip(tree.read_segments, tree.read_rows, strict=True):
            first, n = int(tree.starts[segment]), int(tree.lengths[segment])
            assert masks[first : first + n].tolist() == [at >= row for at in range(n)]
            assert 1 <= n - row <= 16
            assert (int(tree.origins[segment]) + n) % 16 == 0


def test_a_callers_mask_stays_text() -> None:
    directory, _ = block_models.saved("sdar")
    with tiny_engine(source=directory) as engine:
        assert engine.blocks is not None
        tree = engine.decider.plan(request(f"{STATE}{block_models.MASK}")).tree
        assert all(
            (tree.tokens[int(tree.starts[s]) :][: int(tree.read_rows[i])] != engine.blocks.mask).all()
            for i, s in enumerate(tree.read_segments)
        )


def test_methods_that_blocks_do_not_have() -> None:
    directory, _ = block_models.saved("sdar")
    with tiny_engine(source=directory) as engine:
        with pytest.raises(InvalidRequest, match='at a mask for one label: leave it at "letters"'):
            engine.decide(request(x_method="options"))
        for extra in ({"x_samples": 2}, {"x_steps": 2}, {"joint": True}):
            with pytest.raises(InvalidRequest):
                engine.decide(request(**extra))
    with pytest.raises(CheckpointError, match='takes the method "letters" alone'):
        tiny_engine(source=directory, method="options")


def test_a_trunk_without_a_whole_block_is_none() -> None:
    """The branches are roots, and nothing is kept."""
    directory, _ = block_models.saved("sdar", suffix="-b64")
    with tiny_engine(source=directory) as engine:
        plan = engine.decider.plan(request("a"))
        assert (plan.tree.parents < 0).all()
        assert plan.trunk == 0
        assert_close(engine.decide(request("a")).answers, expected(engine, block_models.saved("sdar")[1], request("a")))


def test_equal_answers_whatever_shares_the_round() -> None:
    directory, model = block_models.saved("llada2_moe", suffix="-b32")
    with tiny_engine(source=directory) as engine:
        asked = [request(STATE * n) for n in (1, 2, 3, 2)]
        plans = [engine.decider.plan(each) for each in asked]
        futures = [engine.submit(plan.tree, n_keep=plan.trunk) for plan in plans]
        for each, plan, future in zip(asked, plans, futures, strict=True):
            assert_close(plan.answers(future.result()), expected(engine, model, each), 1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_the_question_asked_alone(name: str, dtype: str) -> None:
    """Whatever shares the round, in chunks, and resumed."""
    directory, _ = block_models.saved(name, suffix="-b32")
    settings: dict[str, Any] = {"dtype": dtype, "batch_invariant": True}
    if experts_refused(lambda: tiny_engine(source=directory, **settings), name, dtype):
        return
    with (
        tiny_engine(source=directory, prefix_caching=False, **settings) as lone,
        tiny_engine(source=directory, max_round_tokens=160, **settings) as loaded,
    ):
        states = [STATE * 3, STATE * 3 + "the end", STATE, STATE * 3]
        for state, answers in zip(states, [loaded.decide(request(state)).answers for state in states], strict=True):
            for question, asked in QUESTIONS.items():
                alone = DecisionRequest.parse({"state": state, "questions": {question: asked}})
                assert lone.decide(alone).answers[question] == answers[question]
        assert loaded.stats()["prefix_hit_tokens_total"] > 0
