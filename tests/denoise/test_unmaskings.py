"""Numbers of unmaskings while replies have them."""

from __future__ import annotations

from ramet.denoise.unmask import Unmasking
from ramet.denoise.unmaskings import Unmaskings


def test_replies_that_come_and_go_with_thresholds_of_their_own_take_no_room() -> None:
    unmaskings = Unmaskings()
    stays = [unmaskings.add(Unmasking(block=8, threshold=0.5)) for _ in range(2)]
    for i in range(100):
        own = Unmasking(block=8, threshold=i / 128, steps=1 + i % 8)
        number = unmaskings.add(own)
        assert unmaskings.groups[number] == own
        unmaskings.drop(number)
    unmaskings.drop(stays[0])
    assert stays[0] == stays[1] == unmaskings.add(Unmasking(block=8, threshold=0.5))
    assert len(unmaskings.groups) == 2
