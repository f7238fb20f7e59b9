"""Numbers of unmaskings while replies have them."""

from __future__ import annotations

from ramet.denoise.unmask_policies import UnmaskPolicies
from ramet.denoise.unmask_policy import UnmaskPolicy


def test_replies_that_come_and_go_with_thresholds_of_their_own_take_no_room() -> None:
    unmaskings = UnmaskPolicies()
    stays = [unmaskings.add(UnmaskPolicy(block=8, threshold=0.5)) for _ in range(2)]
    for i in range(100):
        own = UnmaskPolicy(block=8, threshold=i / 128, steps=1 + i % 8)
        number = unmaskings.add(own)
        assert unmaskings.groups[number] == own
        unmaskings.drop(number)
    unmaskings.drop(stays[0])
    assert stays[0] == stays[1] == unmaskings.add(UnmaskPolicy(block=8, threshold=0.5))
    assert len(unmaskings.groups) == 2
