"""Engine.load: the same model from every kind of file gives the same numbers, and the same prompt."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures import tiny
from fixtures.tiny_engine import MAKERS, tiny_engine
from transformers import AutoTokenizer, PreTrainedModel

from ramet.errors import CheckpointError
from ramet.request import DecisionRequest
from ramet.tree import FloatArray, Read, Segment, Tree
from tests.decide.test_chat import GEMMA
from tests.text.test_tokenizer import post_processor
from tests.weights.test_checkpoint import EMBEDDING, copied, with_head

IDS = [37 * i for i in range(20)]
BOS = "<|endoftext|>"


def logprobs(source: Path) -> FloatArray:
    """Of every token behind each of IDS [20, V], by our engine."""
    with tiny_engine(source=source, method="options") as engine:
        columns = np.arange(engine.shape.vocab_size)
        tree = Tree.of([Segment(IDS, reads=[Read(columns, row) for row in range(len(IDS))])])
        reads = engine.submit(tree).result()
        return np.stack([reads.logprobs(row) for row in range(len(IDS))])


@torch.no_grad()
def theirs(model: PreTrainedModel) -> FloatArray:
    return model(torch.tensor([IDS])).logits[0].log_softmax(-1).numpy()  # type: ignore[no-any-return]


@pytest.mark.parametrize("model_type", ["gemma3", "llama", "qwen2", "qwen3"])  # those that come as GGUF
def test_safetensors_and_gguf_are_one_model(model_type: str) -> None:
    """D7: query and key rows stand in another order in a Llama's GGUF, not in a Qwen's."""
    directory = MAKERS[model_type](tied=False)
    wanted = theirs(tiny.model(directory))
    np.testing.assert_allclose(logprobs(directory), wanted, rtol=0, atol=2e-4)
    np.testing.assert_allclose(logprobs(tiny.gguf_of(directory)), wanted, rtol=0, atol=2e-4)
    quantised = logprobs(tiny.gguf_of(directory, "Q8_0"))
    assert not np.allclose(quantised, wanted, rtol=0, atol=2e-4)
    np.testing.assert_allclose(quantised, wanted, rtol=0, atol=0.5)


@pytest.mark.parametrize(("tied", "head", "warning"), [
    (True, "none", None), (True, "equal", None),
    (True, "own", "differs from the embedding, so it is used"),
    (False, "none", "the embedding serves as head"), (False, "own", None),
])  # fmt: skip
def test_the_head_is_the_one_in_the_file(tied: bool, head: str, warning: str | None, tmp_path: Path) -> None:
    """D6: whatever config.json says; and never without a word where the two disagree."""
    source = tiny.llama(tied=head != "own")
    weights = tiny.model(source).state_dict()
    directory = with_head(
        copied(source, tmp_path / "c", tie_word_embeddings=tied),
        {"none": None, "equal": weights[EMBEDDING].clone(), "own": weights["lm_head.weight"]}[head],
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = logprobs(directory)
    said = [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    assert [warning in text for text in said] == [True] if warning else not said
    np.testing.assert_allclose(found, theirs(tiny.model(source)), rtol=0, atol=2e-4)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head", [True, False])
def test_the_head_of_a_gguf_file(tied: bool, head: bool) -> None:
    """D6: with output.weight that is the head, without it the embedding."""
    directory = tiny.llama(tied=tied)
    model = tiny.model(directory)
    with torch.no_grad():
        hidden = model.model(torch.tensor([IDS])).last_hidden_state[0]
        weight = model.state_dict()["lm_head.weight" if head else EMBEDDING]
        wanted = (hidden @ weight.T).log_softmax(-1).numpy()
    np.testing.assert_allclose(logprobs(tiny.gguf_of(directory, head=head)), wanted, rtol=0, atol=2e-4)


def gguf_with_bos(path: Path, flag: bool | None, template: str | None) -> Path:
    config, state = tiny.model(tiny.llama()).config, dict(tiny.model(tiny.llama()).state_dict())
    writer = gguf.GGUFWriter(path, "llama")
    tiny.write_config(writer, config)
    tiny.write_tokenizer(writer, template=template)
    if flag is not None:
        writer.add_add_bos_token(flag)
    for name in set(state) - {"lm_head.weight"}:
        tiny.write_tensor(writer, config, name, state[name].numpy())
    tiny.finish(writer)
    return path


def safetensors_with_bos(directory: Path, template: str | None) -> Path:
    copied(tiny.llama(), directory)
    tiny.save_tokenizer(directory, template, bos_token=BOS)
    post_processor(directory)
    return directory


def prompt(source: Path, state: str, method: str = "letters") -> tuple[list[int], list[int], int]:
    """Ids of a decision's whole tree, those before its state, and the tokens that its answer counts."""
    asked: dict[str, Any] = {"state": state, "questions": {"q": {"type": "noul", "instructions": "Is it?"}}}
    with tiny_engine(source=source, method="options") as engine:
        request = DecisionRequest.parse(asked | {"x_method": method})
        plan = engine.decider.plan(request)
        return plan.tree.tokens.tolist(), list(engine.decider._frame.head), engine.decide(request).usage.input_tokens


@pytest.mark.parametrize("state", ["hi", f"{BOS}hi"])
def test_bos_once_where_the_template_writes_it_and_the_tokenizer_would_add_it(state: str, tmp_path: Path) -> None:
    """D5: and bitwise the same ids from either file. A state that spells it stays text."""
    directory = safetensors_with_bos(tmp_path / "c", GEMMA)
    ids, head, n_tokens = prompt(directory, state)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    bos = tokenizer.convert_tokens_to_ids(BOS)
    assert (ids[0], ids.count(bos), head.count(bos), n_tokens) == (bos, 1, 1, len(ids))
    content = tokenizer.decode(ids, skip_special_tokens=False).split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi" + content.removeprefix(state)}], add_generation_prompt=True, return_dict=False
    )
    assert n_tokens == len(whole) + len(ids) - len(prompt(directory, "hi")[0])
    for flag in (True, False, None):
        assert prompt(gguf_with_bos(tmp_path / f"{flag}.gguf", flag, GEMMA), state)[0] == ids


@pytest.mark.parametrize(("flag", "expected"), [(True, 1), (False, 0), (None, 0)])
def test_bos_of_a_gguf_file_without_a_template(flag: bool | None, expected: int, tmp_path: Path) -> None:
    """D5: as its metadata says."""
    ids, head, _ = prompt(gguf_with_bos(tmp_path / "m.gguf", flag, None), "hi", "options")
    bos = tiny.tokenizer().token_to_id(BOS)
    assert (ids.count(bos), head) == (expected, [bos] * expected)


def test_a_family_that_is_not_served_is_refused_by_name(tmp_path: Path) -> None:
    directory = copied(tiny.llama(), tmp_path / "c", model_type="gpt2")
    with pytest.raises(CheckpointError, match=r"gpt2.*llama.*qwen3"):
        tiny_engine(source=directory)
