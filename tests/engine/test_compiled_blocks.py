"""Steps made and taken by compiled code are those of the plain code, to the bit: any block, many replies that come, go
on, give up and end, and what is told of a step only when its places and unmaskings are others'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from ramet.denoise.commits import Passed
from ramet.denoise.draws import Draws
from ramet.denoise.noise import Noise
from ramet.denoise.running import GOES_ON, Beginning, Chunks, Emitted, Mode
from ramet.denoise.running_blocks import RunningBlocks
from ramet.denoise.unmask_policy import UnmaskPolicy
from ramet.engine.compiled_blocks import CompiledBlocks
from ramet.ops.native.loader import library
from ramet.tree import IntArray, Sampling

LIBRARY = library()
pytestmark = pytest.mark.skipif(LIBRARY is None, reason="nothing is compiled here")
STATE = ("rows", "tokens", "logprobs", "start", "until", "n_open", "steps")
STRATEGIES = ("low_confidence_dynamic", "low_confidence_static", "sequential", "entropy_bounded")


@dataclass
class Twins:
    """The same replies in both, at the same places."""

    rng: np.random.Generator
    block: int
    mask: int
    vocab: int
    mode: Mode
    ahead: bool
    is_plain: bool  # rows pass by thresholds alone

    def __post_init__(self) -> None:
        assert LIBRARY is not None
        self.plain = RunningBlocks(self.block, self.mask, self.mode, self.ahead)
        self.compiled = CompiledBlocks(LIBRARY, self.block, self.mask, self.mode, self.ahead)
        self.places: list[int] = []

    def add(self, beginning: Beginning) -> None:
        place = self.plain.add(beginning)
        assert self.compiled.add(beginning) == place
        self.places.append(place)

    def drop(self, place: int) -> None:
        self.plain.drop(place)
        self.compiled.drop(place)
        self.places.remove(place)

    def give_up(self, place: int) -> None:
        """And go on."""
        beginning = self.plain.beginning(place)
        same(beginning, self.compiled.beginning(place))
        self.drop(place)
        self.add(beginning)

    def beginning(self) -> Beginning:
        rng, block = self.rng, self.block
        n = int(rng.integers(1, 4 * block))
        start = n // block * block
        tokens = rng.integers(0, self.vocab + 1, n - start).astype(np.int32)
        end = n + int(rng.choice([1, 2, block, int(rng.integers(1, 5 * block))]))
        ends = frozenset(rng.integers(0, self.vocab, int(rng.choice([0, 1, 3, 9]))).tolist())
        draws = Draws(float(rng.choice([0, 1.3])), int(rng.integers(9)), 0.5, Noise(int(rng.integers(1 << 60))))
        return Beginning(start, tokens, np.ones(n - start, np.bool_), n, n, end, ends, self.unmasking(), draws)

    def unmasking(self) -> UnmaskPolicy:
        rng, steps = self.rng, None
        if not self.is_plain and rng.random() < 0.4:
            steps = int(rng.integers(1, self.block + 1))
        threshold = float(rng.choice([0, 0.3, 0.5, 0.9, 1, rng.random()]))
        strategy: Any = STRATEGIES[0 if self.is_plain else int(rng.integers(len(STRATEGIES)))]
        return UnmaskPolicy(block=self.block, strategy=strategy, threshold=threshold, steps=steps)

    def asked(self, places: IntArray, sizes: IntArray) -> tuple[Chunks, Chunks]:
        for found, expected in zip(self.compiled.uncached(places), self.plain.uncached(places), strict=True):
            same(expected, found)
        expected, found = self.plain.chunks(places, sizes), self.compiled.chunks(places, sizes)
        same(expected, found)
        return expected, found

    def took(self, plain: Chunks, compiled: Chunks) -> tuple[Emitted, Emitted]:
        """Confidence in steps of a tenth, some of which are equal, or any; now and then none at all."""
        rng, n = self.rng, len(plain.reads)
        tokens = rng.integers(0, self.vocab, n).astype(np.int32)
        tokens[tokens == self.mask] = (self.mask + 1) % self.vocab
        confidence = (
            (rng.integers(0, 11, n) / 10).astype(np.float32) if rng.random() < 0.5 else rng.random(n, np.float32)
        )
        confidence[rng.random(n) < rng.choice([0, 0, 0, 0.3])] = np.nan
        entropy = rng.random(n, np.float32)
        expected = self.plain.take(plain, tokens, confidence, entropy)
        found = self.compiled.take(compiled, tokens, confidence, entropy)
        for name in ("n_emitted", "tokens", "logprobs", "finish"):
            same(getattr(expected, name), getattr(found, name))
        for name in STATE:
            same(getattr(self.plain._live, name), getattr(self.compiled._live, name))
        for name in ("_group", "_streaks"):
            same(getattr(self.plain, name), getattr(self.compiled, name))
        same(self.plain._table.end, self.compiled._table.end)
        return expected, found


def same(expected: Any, found: Any) -> None:
    """Arrays, or what consists of them."""
    if isinstance(expected, Beginning | Chunks | Sampling | Passed):
        for each in fields(expected):
            same(getattr(expected, each.name), getattr(found, each.name))
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype or expected.dtype == np.int64
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


def same_shown(expected: Mapping[UnmaskPolicy, Passed], found: Mapping[UnmaskPolicy, Passed]) -> None:
    assert list(found) == list(expected)
    for unmasking, passed in expected.items():
        same(passed, found[unmasking])


@pytest.mark.parametrize("seed", range(40))
def test_the_same_step_by_step(seed: int) -> None:
    rng = np.random.default_rng(seed)
    block, vocab = (2, 3, 5, 8, 16, 33, 64)[seed % 7], int(rng.choice([5, 50, 1000]))
    mask, mode = int(rng.choice([0, vocab - 1, vocab])), "block" if seed % 3 == 2 else "chunk"
    twins = Twins(rng, block, mask, vocab, mode, ahead=bool(seed % 2), is_plain=rng.random() < 0.4)  # type: ignore[arg-type]
    most, untold = int(rng.choice([1, 5, 40])), list[tuple[Emitted, Emitted]]()
    for _ in range(60):
        while not twins.places or (len(twins.places) < most and rng.random() < 0.7):
            twins.add(twins.beginning())
        if rng.random() < 0.2:
            place = int(rng.choice(twins.places))
            twins.give_up(place) if rng.random() < 0.7 or len(twins.places) == 1 else twins.drop(place)
        for _ in range(int(rng.integers(1, 3))):  # it may be asked again, for others
            places = rng.permutation(twins.places)[: int(rng.integers(1, len(twins.places) + 1))].astype(np.int32)
            chunks = twins.asked(
                places, rng.integers(2, min(twins.plain.largest, block + 2) + 1, len(places)).astype(np.int32)
            )
        taken = twins.took(*chunks)
        for place in places[taken[0].finish != GOES_ON].tolist():
            twins.drop(place)
        untold.append(taken)
        if len(untold) > 3:
            expected, found = untold.pop(0)
            same_shown(expected.passed(), found.passed())
            same(expected.tokens, found.tokens)
