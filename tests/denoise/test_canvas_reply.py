"""A reply, canvas by canvas: what each of its trees asks, what is emitted, and what may be asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from oracles import denoising
from scipy.special import log_softmax

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.canvas_reply import CanvasReply
from ramet.denoise.noise import Noise
from ramet.errors import InvalidRequest
from ramet.generation import Generation, GenerationRequest, Piece
from ramet.tree import WHOLE, FloatArray, Tree
from ramet.values import MAX_SEED, MIN_SEED

WIDTH, VOCAB_SIZE, EOS = 8, 50, 49
SETTINGS = CanvasConfig(
    vocab_size=VOCAB_SIZE, canvas_length=WIDTH, max_steps=4, t_min=0.4, t_max=0.8, entropy_bound=0.1,
    stability_threshold=1, confidence_threshold=0.005, max_new_tokens=20, stop_ids=frozenset({EOS, 48}), pad=0,
)  # fmt: skip
PROMPT = (3, 1, 4, 1, 5)
SEED_CANVAS = tuple(range(10, 10 + WIDTH))
Logits = Callable[[int], FloatArray]


def logits_of(n_tree: int) -> FloatArray:
    """[WIDTH, V] of the n-th tree, from 0: some that end no reply."""
    made = np.random.default_rng(n_tree).normal(size=(WIDTH, VOCAB_SIZE)).astype(np.float32) * 3
    made[:, [48, EOS]] = -30
    return made


def ending(row: int) -> Logits:
    """The same, but for an end in one row."""

    def logits(n_tree: int) -> FloatArray:
        made = logits_of(n_tree)
        made[row, EOS] = 30
        return made

    return logits


def written(
    logits: Logits = logits_of, settings: CanvasConfig = SETTINGS, **asked: Any
) -> tuple[list[Piece], list[Tree]]:
    """A request's pieces, and the trees that it took, of which every result is a logit of `logits`."""
    pieces: list[Piece] = []
    course = CanvasReply(GenerationRequest(**{"prompt": PROMPT} | asked), settings, pieces.append)
    embedding, trees, ended = torch.ones(VOCAB_SIZE, 4), [], False
    while not ended:
        trees.append(course.tree())
        width = int(trees[-1].lengths[1])
        ended = course.take(denoising.answered(trees[-1], torch.from_numpy(logits(len(trees) - 1)[:width]), embedding))
        assert trees[-1].max_position <= course.limits.max_position
        assert len(pieces) == 0 or (pieces[-1].finish is not None) == ended
    return pieces, trees


def tokens_of(pieces: list[Piece]) -> list[list[int]]:
    return [[position.token for position in piece.positions] for piece in pieces]


def test_a_canvas_hangs_below_the_prompt_and_all_finished_ones() -> None:
    """Their steps are all the passes that there are."""
    pieces, trees = written()
    assert [piece.n_steps for piece in pieces] == [4, 4, 4]
    likeliest = [logits_of(i).argmax(1).tolist() for i in (3, 7, 11)]
    assert tokens_of(pieces) == [likeliest[0], likeliest[1], likeliest[2][:4]]  # of max_new_tokens, 20
    assert [piece.finish for piece in pieces] == [None, None, "length"]
    for i, tree in enumerate(trees):
        trunk = [*PROMPT, *chain(*likeliest[: i // 4])]
        assert tree.parents.tolist() == [-1, 0]
        assert tree.blocks.tolist() == [1, WHOLE]
        assert tree.lengths.tolist() == [len(trunk), WIDTH]
        assert tree.tokens[: len(trunk)].tolist() == trunk
        ((segment, step),) = tree.steps
        assert segment == 1
        assert step.rows.tolist() == list(range(WIDTH))
        assert (step.soft is None) == (i % 4 == 0)  # a new canvas is conditioned on nothing
        assert step.leaves_soft == (i % 4 != 3)
        assert len(tree.columns) == 0
    generation = Generation.of(pieces, n_prompt=5, n_cached=0)
    assert (len(generation.tokens), generation.n_steps, generation.n_canvases) == (20, 12, 3)


def test_canvases_begin_from_noise_of_their_own() -> None:
    noise = Noise.of(8, np.array(PROMPT, np.int32))
    _, trees = written(seed=8)
    for canvas in range(3):
        np.testing.assert_array_equal(trees[4 * canvas].tokens[-WIDTH:], noise.ids(canvas, 0, WIDTH, VOCAB_SIZE))
        for s in range(4):
            np.testing.assert_array_equal(trees[4 * canvas + s].steps[0][1].uniforms, noise.uniforms(canvas, s, WIDTH))


def test_requests_repeat() -> None:
    """Those that name no seed too, by their prompts."""

    def inputs(**asked: Any) -> list[bytes]:
        return [tree.tokens[-WIDTH:].tobytes() for tree in written(**asked)[1]]

    assert inputs() == inputs()
    assert inputs() == inputs(max_tokens=20, cache_salt="x")
    others = [inputs(), inputs(prompt=(*PROMPT, 9)), *(inputs(seed=seed) for seed in (0, -1, 1, MIN_SEED, MAX_SEED))]
    assert len({each[0] for each in others}) == len(others)


def test_a_canvas_ends_early() -> None:
    sure = logits_of(0)
    sure[np.arange(WIDTH), np.arange(WIDTH)] = 60
    pieces, trees = written(lambda _: sure)
    assert tokens_of(pieces) == [[*range(WIDTH)]] * 2 + [[*range(4)]]
    assert [piece.n_steps for piece in pieces] == [2, 2, 2]
    assert [step.leaves_soft for tree in trees for _, step in tree.steps] == [True] * 6


@pytest.mark.parametrize("row", [0, 3, 7])
def test_an_end_in_a_canvas(row: int) -> None:
    """It is emitted, what is behind it is dropped, and no further canvas is begun."""
    pieces, trees = written(ending(row))
    assert tokens_of(pieces) == [[*logits_of(3).argmax(1)[:row], EOS]]
    assert (pieces[0].finish, len(trees)) == ("stop", 4)


def test_ends_that_end_nothing() -> None:
    pieces, _ = written(ending(3), ignore_eos=True)
    assert [len(piece.positions) for piece in pieces] == [8, 8, 4]
    assert [ids[3] for ids in tokens_of(pieces)] == [EOS] * 3
    pieces, _ = written(ending(3), max_tokens=3)  # it lies behind what was asked for
    assert (tokens_of(pieces), pieces[0].finish) == ([logits_of(3).argmax(1)[:3].tolist()], "length")
    pieces, _ = written(ending(3), max_tokens=4)
    assert (tokens_of(pieces)[0][3], pieces[0].finish) == (EOS, "stop")
    pieces, _ = written(ending(3), read_only=True)
    assert (len(pieces), len(pieces[0].positions), pieces[0].finish) == (1, WIDTH, "length")


@pytest.mark.parametrize(("max_tokens", "sizes"), [(1, [1]), (7, [7]), (8, [8]), (9, [8, 1]), (16, [8, 8])])
def test_max_tokens(max_tokens: int, sizes: list[int]) -> None:
    pieces, _ = written(max_tokens=max_tokens)
    assert [len(piece.positions) for piece in pieces] == sizes
    assert [piece.finish for piece in pieces] == [*[None] * (len(sizes) - 1), "length"]


def test_a_narrow_canvas() -> None:
    pieces, trees = written(canvas_length=3, max_tokens=7)
    assert [len(piece.positions) for piece in pieces] == [3, 3, 1]
    assert {int(tree.lengths[1]) for tree in trees} == {3}
    assert (
        CanvasReply(GenerationRequest(PROMPT, canvas_length=3, max_tokens=7), SETTINGS, print).limits.n_tokens == 5 + 9
    )


def test_a_read() -> None:
    """One canvas of one step: the seed is what runs, and its likeliest ids come back with what was asked for."""
    pieces, trees = written(
        seed_canvas=SEED_CANVAS, max_steps=1, read_only=True, logprob_ids=(30, 7, 30), n_best=2, max_tokens=100
    )
    (tree,), (piece,) = trees, pieces
    assert tree.tokens[-WIDTH:].tolist() == list(SEED_CANVAS)
    assert not tree.steps[0][1].leaves_soft
    assert tree.normalize[:WIDTH].all()
    wanted = log_softmax(logits_of(0).astype(np.float64), 1)
    assert (piece.n_steps, piece.finish, len(piece.positions)) == (1, "length", WIDTH)
    for row, position in enumerate(piece.positions):
        likeliest = np.argsort(-wanted[row])[:2].tolist()
        assert position.token == likeliest[0]
        assert position.best == tuple((i, pytest.approx(wanted[row, i], abs=1e-5)) for i in likeliest)
        assert position.listed == tuple((i, pytest.approx(wanted[row, i], abs=1e-5)) for i in (30, 7, 30))


def test_a_read_of_some_rows() -> None:
    """Only they go through the head."""
    pieces, (tree,) = written(seed_canvas=SEED_CANVAS, max_steps=1, read_only=True, logprob_ids=(7,), max_tokens=2)
    assert tree.lengths[1] == WIDTH
    assert tree.steps[0][1].rows.tolist() == [0, 1]
    assert set(tree.read_rows.tolist()) == {0, 1}
    assert tokens_of(pieces) == [logits_of(0).argmax(1)[:2].tolist()]


def test_a_read_of_several_steps() -> None:
    """Temperatures are those of the first steps of all; pinned places hold the seed. Ids are asked for where a step
    may be the last."""
    pieces, trees = written(seed_canvas=SEED_CANVAS, pinned=(0, 6), max_steps=3, read_only=True, logprob_ids=(7, 9))
    assert [piece.n_steps for piece in pieces] == [3]
    assert tokens_of(pieces) == [logits_of(2).argmax(1).tolist()]
    for i, tree in enumerate(trees):
        step, ids = tree.steps[0][1], tree.tokens[-WIDTH:].tolist()
        assert (ids[0], ids[6]) == (SEED_CANVAS[0], SEED_CANVAS[6])
        assert (ids == list(SEED_CANVAS)) == (i == 0)
        assert list(step.pinned) == [0, 6]
        assert step.temperature == pytest.approx(0.4 + 0.4 * (4 - i) / 4)
        assert tree.columns.tolist() == ([7, 9] * WIDTH if i else [])
    assert len(written(seed_canvas=SEED_CANVAS, max_steps=99, read_only=True)[1]) == SETTINGS.max_steps


def test_what_is_seeded_is_the_first_canvas_alone() -> None:
    _, trees = written(seed_canvas=SEED_CANVAS, pinned=(0, 6), max_tokens=16, seed=8)
    noise = Noise.of(8, np.array(PROMPT, np.int32))
    np.testing.assert_array_equal(trees[4].tokens[-WIDTH:], noise.ids(1, 0, WIDTH, VOCAB_SIZE))
    assert [len(tree.steps[0][1].pinned) for tree in trees] == [2] * 4 + [0] * 4


def test_a_constrained_read() -> None:
    """The logits of what may be drawn are all that is asked for."""
    asked = (30, 7, 21, 30)
    pieces, (tree,) = written(
        seed_canvas=SEED_CANVAS, max_steps=1, read_only=True, constrained=True, logprob_ids=asked, n_best=9
    )
    ((_, step),) = tree.steps
    assert (step.columns is not None, step.n_best, step.leaves_soft) == (True, 3, False)
    assert step.columns.tolist() == [7, 21, 30]
    assert not tree.normalize.any()
    assert tree.columns.tolist() == [7, 21, 30] * WIDTH
    wanted = log_softmax(logits_of(0)[:, [7, 21, 30]].astype(np.float64), 1)
    places = {7: 0, 21: 1, 30: 2}
    for row, position in enumerate(pieces[0].positions):
        order = sorted(places, key=lambda i: -wanted[row, places[i]])
        assert position.token == order[0]
        assert position.best == tuple((i, pytest.approx(wanted[row, places[i]], abs=1e-5)) for i in order)
        assert position.listed == tuple((i, pytest.approx(wanted[row, places[i]], abs=1e-5)) for i in asked)


def test_of_equal_ids_the_lower_is_read() -> None:
    flat = np.zeros((WIDTH, VOCAB_SIZE), np.float32)
    asked = tuple(range(40, 6, -1))
    odd = flat + np.arange(VOCAB_SIZE, dtype=np.float32) % 2
    pieces, _ = written(lambda _: odd, max_steps=1, read_only=True, constrained=True, logprob_ids=asked, n_best=34)
    assert tokens_of(pieces) == [[7] * WIDTH]
    assert [i for i, _ in pieces[0].positions[0].best] == [*range(7, 41, 2), *range(8, 41, 2)]
    assert pieces[0].n_steps == 1
    pieces, _ = written(lambda _: flat, max_steps=1, read_only=True)
    assert tokens_of(pieces) == [[0] * WIDTH]


def test_constrained_text_of_several_canvases() -> None:
    pieces, trees = written(max_steps=1, max_tokens=19, constrained=True, logprob_ids=(5, 6, 7))
    picked = [5 + logits_of(i)[:, 5:8].argmax(1) for i in range(3)]
    assert [*chain(*tokens_of(pieces))] == np.concatenate(picked)[:19].tolist()
    assert [int(tree.lengths[0]) for tree in trees] == [5, 13, 21]


def test_nothing_is_told_that_was_not_asked_for() -> None:
    pieces, trees = written(max_tokens=8)
    assert all(position.best == position.listed == () for position in pieces[0].positions)
    assert {step.n_best for tree in trees for _, step in tree.steps} == {1}


def test_the_likeliest_are_told_where_a_step_may_be_the_last() -> None:
    pieces, trees = written(max_tokens=8, n_best=3)
    assert [step.n_best for tree in trees for _, step in tree.steps] == [1, 3, 3, 3]
    assert all(len(position.best) == 3 for position in pieces[0].positions)


@pytest.mark.parametrize(("asked", "field"), [
    ({"prompt": ()}, "prompt"),
    ({"prompt": (3, VOCAB_SIZE)}, "prompt"),
    ({"prompt": (-1,)}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_steps": 0}, "max_steps"),
    ({"seed": MIN_SEED - 1}, "seed"),
    ({"seed": MAX_SEED + 1}, "seed"),
    ({"n_best": -1}, "n_best"),
    ({"n_best": VOCAB_SIZE + 1}, "n_best"),
    ({"logprob_ids": (3, VOCAB_SIZE)}, "logprob_ids"),
    ({"canvas_length": 0}, "canvas_length"),
    ({"canvas_length": WIDTH + 1}, "canvas_length"),
    ({"canvas_length": WIDTH + 1, "seed_canvas": (*SEED_CANVAS, 1)}, "canvas_length"),
    ({"seed_canvas": SEED_CANVAS[1:]}, "seed_canvas"),
    ({"seed_canvas": SEED_CANVAS, "canvas_length": 4}, "seed_canvas"),
    ({"seed_canvas": ()}, "seed_canvas"),
    ({"seed_canvas": (*SEED_CANVAS[1:], VOCAB_SIZE)}, "seed_canvas"),
    ({"seed_canvas": (*SEED_CANVAS[1:], -1)}, "seed_canvas"),
    ({"pinned": (0,)}, "pinned"),
    ({"seed_canvas": SEED_CANVAS, "pinned": (WIDTH,)}, "pinned"),
    ({"seed_canvas": SEED_CANVAS, "pinned": (-1,)}, "pinned"),
    ({"seed_canvas": SEED_CANVAS[:4], "canvas_length": 4, "pinned": (4,)}, "pinned"),
    ({"constrained": True, "max_steps": 1}, "constrained"),
    ({"logprob_ids": (3, 1 << 40)}, "logprob_ids"),
    ({"logprob_ids": (3, True)}, "logprob_ids"),
    ({"prompt": (3, False)}, "prompt"),
    ({"temperature": 0.5}, "temperature"),
    ({"top_k": 1}, "top_k"),
    ({"top_p": 0.5}, "top_p"),
    ({"confidence_threshold": 0.5}, "confidence_threshold"),
    ({"unmasking_strategy": "sequential"}, "unmasking_strategy"),
    ({"denoising_steps": 1}, "denoising_steps"),
    ({"entropy_bound": 0.1}, "entropy_bound"),
    ({"chunk_size": 4}, "chunk_size"),
])  # fmt: skip
def test_what_does_not_fit(asked: dict[str, Any], field: str) -> None:
    request = GenerationRequest(**{"prompt": PROMPT} | asked)
    with pytest.raises(InvalidRequest) as error:
        CanvasReply(request, SETTINGS, lambda _: pytest.fail("a piece of nothing"))
    assert error.value.field == field


def test_what_just_fits() -> None:
    """The other side of each bound above."""
    full = {"seed_canvas": SEED_CANVAS, "canvas_length": WIDTH, "pinned": (0, WIDTH - 1, 0)}
    for asked in (full, {"n_best": VOCAB_SIZE}, {"logprob_ids": (0, VOCAB_SIZE - 1)}, {"prompt": (0, VOCAB_SIZE - 1)}):
        assert written(**asked, max_tokens=1)[0][0].finish == "length"
    assert written(constrained=True, logprob_ids=(3,), max_steps=5)[0][0].positions[0].token == 3
    assert written(temperature=1, max_tokens=8)[0] == written(max_tokens=8)[0]


def test_an_id_that_is_none_is_named_with_the_bound() -> None:
    for field, ids in (
        ("prompt", (3, 1 << 40)),
        ("logprob_ids", (VOCAB_SIZE,)),
        ("seed_canvas", (*SEED_CANVAS[1:], -7)),
    ):
        with pytest.raises(InvalidRequest, match=f"^{field}: ids run from 0 to {VOCAB_SIZE - 1}; {ids[-1]} is none"):
            CanvasReply(GenerationRequest(**{"prompt": PROMPT, field: ids}), SETTINGS, lambda _: None)


def test_at_temperature_0_each_step_draws_the_likeliest() -> None:
    """Rows that are sure hold it; how sure they are, and the others' noise, is as ever."""
    sure = replace(SETTINGS, entropy_bound=1e9)
    noise = Noise.of(8, np.array(PROMPT, np.int32))
    _, trees = written(settings=sure, temperature=0, seed=8, max_tokens=8)
    np.testing.assert_array_equal(trees[0].tokens[-WIDTH:], noise.ids(0, 0, WIDTH, VOCAB_SIZE))
    for i, tree in enumerate(trees[1:]):
        np.testing.assert_array_equal(tree.tokens[-WIDTH:], logits_of(i).argmax(1))
    _, drawn = written(settings=sure, seed=8, max_tokens=8)
    assert any((a.tokens != b.tokens).any() for a, b in zip(trees[1:], drawn[1:], strict=True))
    assert [step.temperature for tree in trees for _, step in tree.steps] == [
        step.temperature for tree in drawn for _, step in tree.steps
    ]


def test_a_constrained_reply_of_several_steps() -> None:
    """Every step draws among the ids, and its likeliest and their log-probabilities are over them alone."""
    asked = (30, 7, 21)
    pieces, trees = written(
        seed_canvas=SEED_CANVAS, pinned=(0, 1), read_only=True, constrained=True, logprob_ids=asked, n_best=9
    )
    assert len(trees) == pieces[0].n_steps > 1
    assert all(step.columns is not None and step.columns.tolist() == [7, 21, 30] for t in trees for _, step in t.steps)
    wanted = log_softmax(logits_of(len(trees) - 1)[:, [7, 21, 30]].astype(np.float64), 1)
    for row, position in enumerate(pieces[0].positions):
        assert position.token == (7, 21, 30)[int(wanted[row].argmax())]
        told = dict(zip((7, 21, 30), wanted[row], strict=True))
        assert dict(position.best) == pytest.approx(told, abs=1e-5)
        assert dict(position.listed) == pytest.approx(told, abs=1e-5)
