"""NextTokens: replies of a token at a time, side by side."""

from __future__ import annotations

import numpy as np
import pytest

from ramet.denoise.draws import Draws
from ramet.denoise.next_tokens import NextTokens
from ramet.denoise.noise import Noise
from ramet.denoise.running import LENGTH, STOP, Beginning, Chunks, Emitted
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.tree import IntArray


def one(n_prompt: int, n_tokens: int, *, stop_ids: tuple[int, ...] = (), temperature: float = 0.0) -> Beginning:
    return Beginning(
        start=n_prompt - 1,
        tokens=np.array([n_prompt], np.int32),
        known=np.ones(1, np.bool_),
        n_prompt=n_prompt,
        emitted=n_prompt,
        end=n_prompt + n_tokens,
        stop_ids=frozenset(stop_ids),
        unmasking=UnmaskPolicy(block=2),
        draws=Draws(temperature, 5, 0.5, Noise(n_prompt)),
    )


def asked(live: NextTokens, *places: int) -> Chunks:
    of = np.array(places, np.int32)
    assert [each.tolist() for each in live.uncached(of)] == [[1] * len(of), [0] * len(of), [1] * len(of)]
    return live.chunks(of, np.full(len(of), 2, np.int32))


def took(live: NextTokens, chunks: Chunks, *tokens: int) -> Emitted:
    chances = np.full(len(tokens), 0.5, np.float32)
    taken = live.take(chunks, np.array(tokens, np.int32), chances, chances)
    assert taken.tokens.tolist() == list(tokens)
    assert taken.n_emitted.tolist() == [1] * len(tokens)
    np.testing.assert_allclose(taken.logprobs, np.log(chances))
    assert not taken.passed()
    return taken


def test_what_is_drawn_is_told_and_run_next() -> None:
    live = NextTokens()
    first, second = live.add(one(5, 3, stop_ids=(2,))), live.add(one(9, 9, stop_ids=(3, 4)))
    chunks = asked(live, second, first)
    assert (chunks.tokens.tolist(), chunks.positions.tolist()) == ([9, 5], [8, 4])
    for each in (chunks.n_rows, chunks.n_kept, chunks.n_segments, chunks.n_reads, chunks.lengths):
        assert each.tolist() == [1, 1]
    assert took(live, chunks, 2, 3).finish.tolist() == [0, 0], "each has its own ends"
    chunks = asked(live, first, second)
    assert (chunks.tokens.tolist(), chunks.positions.tolist()) == ([3, 2], [5, 9])
    assert (chunks.reads.tolist(), chunks.sampling.top_k.tolist()) == ([0, 1], [5, 5])
    assert took(live, chunks, 7, 4).finish.tolist() == [0, STOP]
    assert took(live, asked(live, first), 8).finish.tolist() == [LENGTH]


def test_an_ending_id_as_the_last_token_is_a_stop() -> None:
    live = NextTokens()
    place = live.add(one(5, 1, stop_ids=(2,)))
    assert took(live, asked(live, place), 2).finish.tolist() == [STOP]


def test_a_reply_goes_on_from_its_last_token() -> None:
    live = NextTokens()
    place = live.add(one(5, 9, temperature=1.0))
    took(live, asked(live, place), 7)
    beginning = live.beginning(place)
    assert (beginning.start, beginning.tokens.tolist(), beginning.emitted, beginning.end) == (5, [7], 6, 14)
    before = asked(live, place)
    live.drop(place)
    other = live.add(one(30, 2, temperature=1.0))
    again = live.add(beginning)
    after = asked(live, other, again)
    assert (after.tokens[1:].tolist(), after.positions[1:].tolist()) == ([7], [5])
    assert after.sampling.uniforms[1:].tolist() == before.sampling.uniforms.tolist()


@pytest.mark.parametrize("n_prompt", [1, 63, 64, 100])
def test_numbers_are_of_a_reply_and_a_position(n_prompt: int) -> None:
    live = NextTokens()
    hot, cold = live.add(one(n_prompt, 150, temperature=2.0)), live.add(one(n_prompt, 150))
    found = list[float]()
    for _ in range(149):
        chunks = asked(live, hot, cold)
        assert chunks.sampling.temperatures.tolist() == [2.0, 0.0]
        assert chunks.sampling.uniforms[1] == 0
        found.append(float(chunks.sampling.uniforms[0]))
        took(live, chunks, 1, 1)
    noise = Noise(n_prompt)
    every = np.concatenate([noise.uniforms(run, 0, 64) for run in range(5)])
    assert found == every[n_prompt : n_prompt + 149].tolist()


def test_places_are_used_again() -> None:
    live = NextTokens()
    places = [live.add(one(n, 9)) for n in range(1, 30)]
    assert sorted(places) == sorted(set(places))
    live.drop(places[4])
    assert live.add(one(50, 9)) == places[4]
    tokens: IntArray = asked(live, *places).tokens
    assert tokens.tolist() == [1, 2, 3, 4, 50, *range(6, 30)]
