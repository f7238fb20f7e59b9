"""A real model of another kind: Gemma 3 270M, a base model with sliding layers and a SentencePiece vocabulary.

transformers' own GGUF loader takes 37 s for this file and its tokenizer 18 s, so that the reference is transformers'
model with our weights, these are compared with the gguf package's own reading, and the ids with a few that
transformers' tokenizer gave; over 20,000 slices of English, Python and Markdown the two agreed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from fixtures.tiny_engine import expected
from oracles.answers import assert_close
from oracles.trees import evaluate, path_tokens
from transformers import PreTrainedModel
from transformers.models.gemma3.modeling_gemma3 import Gemma3ForCausalLM, Gemma3RotaryEmbedding

from ramet.decision import ChoiceAnswer
from ramet.engine import Engine
from ramet.request import DecisionRequest
from ramet.tree import FloatArray, Read, Segment, Tree
from ramet.weights.checkpoint import Checkpoint, open_checkpoint

pytestmark = [pytest.mark.slow, pytest.mark.gemma3_270m]

NAME = "gemma3-270m"
IDS = (
    ("Hello  world", [9259, 138, 12392]),
    ("naïve café, 你好世界!", [1789, 238527, 560, 33443, 236764, 43758, 237389, 12811, 236888]),
    ("🦩 and 👩\u200d🚀\u200b", [478, 397, 404, 407, 532, 236743, 243767, 237243, 242015, 237141]),
    (
        "def f(x):\n\treturn x  # 3.14159\n\n\n",
        [2063, 517, 236769, 236781, 1473, 107, 255968, 2060, 1123, 138, 236865, 236743, 236800, 236761, 236770, 236812,
         236770, 236810, 236819, 109],
    ),
    ("<table><tr><td>1</td></tr></table>", [168, 173, 175, 236770, 183, 181, 176]),
    ("x" + " " * 40 + "y", [236781, 152, 160, 236762]),
    ("a ▁▁ b > </", [236746, 140, 236763, 1890, 1454]),
    (
        "Antidisestablishmentarianism isn't 1234567",
        [14054, 33090, 163524, 8225, 1929, 5889, 236789, 236745, 236743, 236770, 236778, 236800, 236812, 236810, 236825,
         236832],
    ),
)  # fmt: skip
PROMPTS = {  # and what follows, where it is plain
    "The capital of Italy is the city of": None, "Two plus two equals": " four", "def fibonacci(n):\n": None,
    "Der Zug kommt spät. Warum?": None, "你好": None, "a b c d " * 200 + "a b c": " d",  # longer than a window
}  # fmt: skip
REQUEST: dict[str, Any] = {
    "state": "I was charged twice, and nobody answers my mails. I want my money back.",
    "questions": {
        "money": {"type": "noul", "instructions": "Does the customer want money back?"},
        "topic": {"type": "choice", "instructions": "What is it about?",
                  "criteria": {"billing": "A wrong charge", "parcel": "A late parcel", "other": None}},
        "anger": {"type": "score", "instructions": "How angry?", "criteria": ["calm", "annoyed", "furious"]},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_checkpoint(NAME)


@pytest.fixture(scope="module")
def theirs(checkpoint: Checkpoint) -> PreTrainedModel:
    weights = {name: checkpoint.tensor(name).float() for name in checkpoint.names}
    with torch.device("meta"):
        model = Gemma3ForCausalLM(checkpoint.config)
    model.model.rotary_emb = Gemma3RotaryEmbedding(checkpoint.config)
    scale = model.model.embed_tokens.scalar_embed_scale
    model.model.embed_tokens.embed_scale = torch.tensor(scale)
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, assign=True)
    return model.eval()


@pytest.fixture(scope="module")
def ours() -> Iterator[Engine]:
    with Engine.load(NAME, device="cpu", dtype="float32", cache_bytes=1 << 26) as engine:
        yield engine


@pytest.fixture(scope="module")
def trees(ours: Engine) -> list[Tree]:
    """Each prompt, and the whole distribution of what follows it."""
    tokenizer, frame = ours.decider._tokenizer, ours.decider._frame
    whole = [Read(np.arange(ours.shape.vocab_size))]
    return [Tree.of([Segment(frame.prompt(tokenizer, prompt), reads=whole)]) for prompt in PROMPTS]


def of_ours(engine: Engine, trees: list[Tree]) -> list[FloatArray]:
    return [future.result().logprobs(0) for future in [engine.submit(tree) for tree in trees]]


def test_the_file(checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    assert (checkpoint.name, checkpoint.model_type, config.sliding_window) == (NAME, "gemma3_text", 512)
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [5, 11, 17]
    assert (config.tie_word_embeddings, len(checkpoint.names)) == (True, 2 + 18 * 13)
    assert {kind: rope["rope_theta"] for kind, rope in config.rope_parameters.items()} == {
        "full_attention": 1e6, "sliding_attention": 1e4,
    }  # fmt: skip


def test_every_stored_type_is_read_and_norms_are_shifted(checkpoint: Checkpoint) -> None:
    """Norms are stored with one more than transformers' parameters; the rest is as the gguf package reads it."""
    file, kinds = checkpoint._file, set()  # type: ignore[attr-defined]
    layers = [name for name in checkpoint.names if ".layers.0." in name or ".layers.17." in name]
    for name in layers:
        entry = file._entries[checkpoint._sources[name]]  # type: ignore[attr-defined]
        stored = file._bytes[entry.offset : entry.offset + entry.n_bytes].reshape(entry.shape[0], -1)
        whole = torch.from_numpy(gguf.quants.dequantize(stored, entry.kind)).view(entry.shape)
        expected = whole - 1 if name.endswith("norm.weight") else whole
        assert torch.equal(checkpoint.tensor(name), expected), name
        kinds.add(entry.kind.name)
    assert kinds >= {"F32", "Q5_0", "Q4_K", "Q6_K"}
    assert 0 < float(checkpoint.tensor("model.layers.0.self_attn.q_norm.weight").abs().mean()) < 10


@pytest.mark.parametrize(("text", "ids"), IDS)
def test_the_tokenizer_gives_transformers_ids(ours: Engine, text: str, ids: list[int]) -> None:
    assert ours.decider._tokenizer.encode(text) == ids
    assert ours.decider._tokenizer.decode(ids).replace("▁", " ") == text.replace("▁", " ")


def test_float32(ours: Engine, theirs: PreTrainedModel, trees: list[Tree]) -> None:
    tokenizer = ours.decider._tokenizer
    for found, tree, due in zip(of_ours(ours, trees), trees, PROMPTS.values(), strict=True):
        wanted = evaluate(theirs, tree).logprobs(0)
        assert found.argsort()[-3:].tolist() == wanted.argsort()[-3:].tolist()
        np.testing.assert_allclose(np.exp(found), np.exp(wanted), rtol=0, atol=1e-4)
        assert np.exp(wanted).max() > 0.05
        assert due is None or tokenizer.decode([int(found.argmax())]) == due


def test_bfloat16(ours: Engine, trees: list[Tree]) -> None:
    exact = of_ours(ours, trees)
    with Engine.load(NAME, device="cpu", dtype="bfloat16", cache_bytes=1 << 26) as engine:
        found = of_ours(engine, trees)
    for wanted, got in zip(exact, found, strict=True):
        np.testing.assert_allclose(np.exp(got), np.exp(wanted), rtol=0, atol=0.05)


def test_decisions_in_float32(ours: Engine, theirs: PreTrainedModel) -> None:
    """It is a base model: the options' own text is scored."""
    assert ours.describe()["method"] == "options"
    request = DecisionRequest.parse(REQUEST)
    found = ours.decide(request).answers
    assert_close(found, expected(ours, theirs, request), atol=1e-4)
    assert isinstance(found["topic"], ChoiceAnswer)
    assert found["topic"].choice == "billing"


def test_bos_stands_once_at_the_start(ours: Engine) -> None:
    """D5: of every path, also where a caller writes it."""
    bos = ours.decider._tokenizer.bos
    for state in ("hi", "<bos>hi", ""):
        tree = ours.decider.plan(DecisionRequest.parse(REQUEST | {"state": state})).tree
        for leaf in set(range(len(tree.lengths))) - set(tree.parents.tolist()):
            prompt = path_tokens(tree, leaf)
            assert (prompt[0], prompt.count(bos)) == (bos, 1)


def test_a_tokens_value_does_not_depend_on_what_else_is_asked(ours: Engine) -> None:
    """D3: "true" and "▁true" read alike; each keeps its own value, whatever stands beside it."""
    tokenizer = ours.decider._tokenizer
    prompt = [tokenizer.bos, *tokenizer.encode("Is snow cold? Reply true or false:")]
    words = [tokenizer.encode(word) for word in ("true", " true", "false", " false")]
    assert [len(ids) for ids in words] == [1] * 4
    columns = [*(ids[0] for ids in words), *range(1000, 1016)]
    values = {}
    for n in (2, 4, 20):
        reads = ours.submit(Tree.of([Segment(prompt, reads=[Read(columns[:n])])])).result()
        for column, value in zip(columns, reads.logprobs(0).tolist(), strict=False):
            assert values.setdefault(column, value) == pytest.approx(value, abs=1e-5)
    assert len({round(values[column], 4) for column in columns[:4]}) == 4
