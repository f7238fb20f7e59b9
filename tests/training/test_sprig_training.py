"""The training's own parts: what is masked and seen, and a model that is the reference's and learns."""

from __future__ import annotations

import json
import re
from itertools import cycle, islice
from pathlib import Path
from string import ascii_uppercase

import numpy as np
import pytest
import torch
from oracles.block_models import BlockModel, block_causal
from safetensors.torch import load_file
from tokenizers import Tokenizer

from ramet.decide import prompt
from ramet.decision import ChoiceAnswer
from ramet.engine import Engine
from ramet.question import Choice
from training import drills
from training.data import BLOCK, TASK_NAMES, Document, Packer, Packs, Sizes, rendered
from training.decode import at_first_mask, decode
from training.model import Model, Shape, seen
from training.muon import orthogonal
from training.run import chances, save
from training.score import decided, held_out, ids_of
from training.tasks.all import TASKS
from training.tasks.example import examples
from training.tasks.tickets import TOPICS
from training.train import options
from training.vocabulary import END, MASK, STOP, id_of, train_tokenizer

TOPIC_NAMES = {name for topic in TOPICS for name in (topic.name, *topic.others)}
SHAPE = Shape(
    1024, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    head_dim=32,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(1024, n_examples=300)


@pytest.fixture(scope="module")
def packs(tokenizer: Tokenizer) -> Packs:
    return Packer(tokenizer, Sizes(24, 768, 400), 1).packs()


def test_unknown_tasks_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["train", "--out", "x", "--tasks", "tickets,spelling"])
    with pytest.raises(SystemExit):
        options()
    assert "--tasks: spelling: no task; there are arithmetic" in capsys.readouterr().err


def test_text_survives_the_vocabulary(tokenizer: Tokenizer) -> None:
    for text in ("Hello, world!\n\n 12  3", "naïve 你好 🦩\t\x00", '{"a": [1, null]}'):
        assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text
    assert tokenizer.encode("481").tokens == ["4", "8", "1"]


def test_packs_repeat(tokenizer: Tokenizer, packs: Packs) -> None:
    again = Packer(tokenizer, Sizes(24, 768, 400), 1).packs()
    assert all(np.array_equal(getattr(packs, name), getattr(again, name)) for name in Packs.__dataclass_fields__)


def test_only_replies_in_noisy_copies_are_masked(tokenizer: Tokenizer, packs: Packs) -> None:
    masked = packs.tokens == id_of(tokenizer, MASK)
    assert masked.any()
    assert (packs.copies[masked] > 0).all()
    rows = np.take_along_axis(masked, packs.rows.astype(int), 1)
    assert (rows == (packs.weights > 0)).all()
    assert (packs.weights > 0).sum() == masked.sum(), "every mask learns where there is room"
    start = id_of(tokenizer, END)
    assert ((packs.targets == start) & (packs.weights > 0)).any(), "what stands behind the end is learnt"


def test_a_short_reply_weighs_as_much_as_a_block(tokenizer: Tokenizer, packs: Packs) -> None:
    """A label and what ends it, of whole blocks where both are masked."""
    at = np.nonzero((packs.tasks == TASK_NAMES.index("decisions")) & (packs.weights > 0))
    assert (packs.weights[at] == BLOCK / 2).all()
    assert packs.weights[packs.weights > 0].min() == 1
    behind = (packs.targets == id_of(tokenizer, END)) & (packs.weights > 0)
    assert (packs.tasks[behind] == -1).all()
    assert (packs.weights[behind] == 1).all()


def test_labels_learn_where_there_is_no_room_for_all(tokenizer: Tokenizer) -> None:
    packs = Packer(tokenizer, Sizes(12, 768, 60, (1,)), 4).packs()
    assert (packs.weights > 0).all()
    assert (np.diff(packs.weights, axis=1) <= 0).all(), "the heaviest come first"
    assert packs.weights.max() == BLOCK / 2


def test_labels_are_mostly_read_from_masks_alone(tokenizer: Tokenizer) -> None:
    packs = Packer(tokenizer, Sizes(48, 512, 400, shares={"decisions": 1.0}), 3).packs()
    noisy = packs.tokens.reshape(-1, BLOCK)[(packs.copies > 0).reshape(-1, BLOCK)[:, 0]]
    masks = noisy == id_of(tokenizer, MASK)
    runs = (np.diff(masks.astype(int), axis=1) != 0).sum(1)
    assert ((runs == 1) & masks[:, -1]).mean() > 0.6


@pytest.mark.parametrize("seed", [1, 2])
def test_drills_are_right(seed: int) -> None:
    n_single = 0
    for each in islice(examples(drills.make, seed, held_out=False), 300):
        said, words = each.prompt.split("\n\nQuestion: ")
        options = dict(re.findall(r"^([A-J]): (.*?)(?: - .*)?$", words, re.MULTILINE))
        told = each.answer.split("\n")
        if "fit these" in words:
            assert len(told) == len(said.split("\n"))
            assert {options[letter] for letter in told} <= TOPIC_NAMES
        elif "these letters" in words:
            assert told == [options[letter] for letter in said.split("\n")]
        else:
            assert [options[letter] for letter in told] == said.split(", ")
            n_single += prompt.CLOSINGS["choice"] in words
    assert n_single > 20


def test_decisions_are_read_as_decide_reads_them(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Model(SHAPE)
    with torch.no_grad():
        model.embed_tokens.weight *= 8  # so that the options are not all about as likely
    save(tmp_path, model, tokenizer)
    asked = [each for each in held_out(40)["decisions"] if isinstance(each.question, Choice)]
    prompts = [tokenizer.encode(rendered(example.prompt)).ids for example in asked]
    logits = at_first_mask(Model.load(tmp_path), prompts, ids_of(tokenizer))
    with Engine.load(tmp_path, device="cpu", cache_bytes=1 << 24) as engine:
        for example, row in zip(asked, logits, strict=True):
            assert example.question is not None
            answer = engine.decide(state=example.state, questions={"q": example.question}).answers["q"]
            assert isinstance(answer, ChoiceAnswer)
            labels = [id_of(tokenizer, letter) for letter in ascii_uppercase[: len(answer.probabilities)]]
            found = torch.tensor(list(answer.probabilities.values()))
            assert found.max() - found.min() > 0.02
            torch.testing.assert_close(found, row[labels].softmax(0), atol=0.03, rtol=0)


def test_decisions_are_counted_by_kind(tokenizer: Tokenizer) -> None:
    torch.manual_seed(4)
    asked = held_out(60)["decisions"]
    found = decided(Model(SHAPE), tokenizer, asked)
    assert {"noul", "score", "choice of 2", "choice of 4"} <= set(found)
    assert sum(each["n"] for each in found.values()) == 60
    assert all(0 <= each["right"] <= each["n"] for each in found.values())


def test_a_noisy_copy_is_the_clean_one_but_for_its_masks(packs: Packs, tokenizer: Tokenizer) -> None:
    mask = id_of(tokenizer, MASK)
    for row in range(len(packs.tokens)):
        clean = {
            (d, p): t
            for t, d, p, c in zip(
                packs.tokens[row], packs.documents[row], packs.positions[row], packs.copies[row], strict=True
            )
            if c == 0 and d >= 0
        }
        target = dict(zip(packs.rows[row].tolist(), packs.targets[row], strict=True))
        for at in np.flatnonzero(packs.copies[row] > 0).tolist():
            key = (packs.documents[row, at], packs.positions[row, at])
            given = packs.tokens[row, at]
            assert clean[key] == (target[at] if given == mask else given)


def test_blocks_lie_on_the_grid(packs: Packs) -> None:
    assert np.array_equal(packs.blocks, packs.positions // BLOCK)
    blocks = packs.blocks.reshape(-1, BLOCK)
    assert (blocks == blocks[:, :1])[packs.documents.reshape(-1, BLOCK) >= 0].all()


def test_who_sees_whom(packs: Packs) -> None:
    """The rule in words, row by row."""
    blocks = packs.blocks
    fields = (packs.documents, packs.copies, blocks, packs.stages)
    found = seen(*(torch.from_numpy(each.astype(np.int32))[:2] for each in fields))
    rng = np.random.default_rng(0)
    for _ in range(4000):
        row, q, k = rng.integers(2), *rng.integers(0, 768, 2)
        (dq, cq, bq, sq), (dk, ck, bk, sk) = ([each[row, at] for each in fields] for at in (q, k))
        own = bk == bq and ck == cq and sk <= sq
        earlier = ck == 0 and bk < bq
        assert bool(found[row, q, k]) == (dq == dk and (own or earlier))
    assert found.diagonal(dim1=1, dim2=2).all()


def test_half_of_the_blocks_are_plain(packs: Packs, tokenizer: Tokenizer) -> None:
    masked = (packs.tokens == id_of(tokenizer, MASK)).reshape(-1, BLOCK)
    stages = packs.stages.reshape(-1, BLOCK)[masked.any(1)]
    plain = (stages == 0).all(1).mean()
    assert 0.4 < plain < 0.65


@pytest.mark.parametrize("size", [1, 4])
def test_smaller_blocks(tokenizer: Tokenizer, size: int) -> None:
    """Every row of single ones is masked, and goes by the clean tokens before it alone."""
    packs = Packer(tokenizer, Sizes(12, 768, 400, (size,)), 2).packs()
    masked = packs.tokens == id_of(tokenizer, MASK)
    assert (packs.stages == 0).all()
    real = packs.documents >= 0
    assert np.array_equal(packs.blocks[real], packs.positions[real] // size)
    share = masked[packs.copies > 0].mean()
    assert share > 0.7 if size == 1 else 0.2 < share < 0.7
    if size == 1:
        assert packs.copies.max() == 1
        fields = (packs.documents, packs.copies, packs.blocks, packs.stages)
        found = seen(*(torch.from_numpy(each.astype(np.int32))[:1] for each in fields))[0]
        for at in np.flatnonzero(packs.copies[0] == 1)[::17].tolist():
            keys = np.flatnonzero(found[at].numpy())
            before = (packs.documents[0] == packs.documents[0, at]) & (packs.copies[0] == 0)
            before &= packs.positions[0] < packs.positions[0, at]
            assert set(keys) == {at, *np.flatnonzero(before)}


def test_the_course_of_blocks() -> None:
    assert chances(0) == [1, 0, 0]
    assert chances(1.2) == [0, 0, 1]
    for done in np.linspace(0, 1, 33):
        assert sum(chances(float(done))) == pytest.approx(1)


def test_orthogonal() -> None:
    for shape in ((3, 8, 20), (2, 20, 8)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0))))
        assert values.min() > 0.5
        assert values.max() < 1.5


def test_the_model_is_the_reference(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(1)
    save(tmp_path, Model(SHAPE), tokenizer)
    weights = {name: weight.float() for name, weight in load_file(tmp_path / "model.safetensors").items()}
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    reference = BlockModel(json.loads((tmp_path / "config.json").read_text()), weights)
    ids, positions = torch.arange(4, 104), torch.arange(100)[None]
    same = torch.zeros_like(positions)
    with torch.no_grad():
        model = Model.load(tmp_path)
        found = model.head(model(ids[None], positions, seen(same, same, positions // BLOCK, same)))[0]
    torch.testing.assert_close(found, reference.logits(ids, block_causal(100, BLOCK)), atol=1e-4, rtol=1e-4)


def test_a_checkpoint_loads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    torch.manual_seed(2)
    save(tmp_path, Model(SHAPE), tokenizer)
    with Engine.load(tmp_path, device="cpu", cache_bytes=1 << 24) as engine:
        masking = engine.blocks
        assert masking is not None
        assert (masking.size, masking.mask) == (BLOCK, id_of(tokenizer, MASK))
        assert masking.stop_ids == {id_of(tokenizer, STOP), id_of(tokenizer, END)}
        (example,) = held_out(1)["decisions"]
        assert example.question is not None
        answers = engine.decide(state=example.state, questions={"q": example.question}).answers
        assert set(answers) == {"q"}


def test_prompts_are_those_of_the_template(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from ramet.text.conversation import Conversation
    from ramet.text.tokenizer_json import read_template, read_tokenizer

    save(tmp_path, Model(SHAPE), tokenizer)
    conversation = Conversation(read_tokenizer(tmp_path), read_template(tmp_path))
    messages = [("system", "Be brief."), ("user", "1 2"), ("assistant", "3."), ("user", "é\n4")]
    asked = [{"role": role, "content": content} for role, content in messages]
    given = rendered("é\n4", [("1 2", "3.")], "Be brief.")
    assert conversation.chat(asked) == tokenizer.encode(given).ids


@pytest.mark.slow
def test_a_few_prompts_are_learnt_by_heart(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    from training.muon import Muon
    from training.run import _forward, _mean, _sent

    few = [example for name in ("extraction", "decisions") for example in islice(
        examples(TASKS[name], 3, held_out=False), 2)]  # fmt: skip
    prompts = [tokenizer.encode(rendered(example.prompt)).ids for example in few]
    documents = []
    for example, ids in zip(few, prompts, strict=True):
        told = [*ids, *tokenizer.encode(example.answer).ids, id_of(tokenizer, STOP)]
        documents.append(Document(np.array(told + [0] * (-len(told) % BLOCK), np.int32), len(ids), len(told)))
    monkeypatch.setattr("training.data.Source.__iter__", lambda _: cycle(documents))
    torch.manual_seed(0)
    model, packer = Model(SHAPE), Packer(tokenizer, Sizes(2, 512, 200), 0)
    muon = Muon([weight for weight in model.layers.parameters() if weight.ndim == 2])
    adam = torch.optim.AdamW([model.embed_tokens.weight], lr=4e-3)
    for n in range(260):
        muon.rate = 0.02 * min(1, (260 - n) / 130)
        on = _sent(packer.packs(), torch.device("cpu"))
        loss = _mean(_forward(model, on), on.weights)
        model.zero_grad()
        loss.backward()
        muon.step()
        adam.step()
    assert loss.item() < 0.3
    replies = decode(model, prompts, ids_of(tokenizer), most=96)
    told = [tokenizer.decode(reply.ids, skip_special_tokens=True) for reply in replies]
    assert told == [example.answer for example in few]
