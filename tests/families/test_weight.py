"""Weight: what a family may say of how one is kept."""

from __future__ import annotations

import pytest

from ramet.families.weight import STORAGES, Weight


def test_a_plain_weight_is_whole_on_every_device() -> None:
    weight = Weight(("a.weight",), (4, 6))
    assert (weight.storage, weight.axis) == (STORAGES[0], None)
    assert [Weight(("a.weight",), (4, 6), axis=axis).axis for axis in (0, 1)] == [0, 1]


def test_a_storage_that_is_not_known() -> None:
    with pytest.raises(ValueError, match="storage is 'int3'; known are numbers"):
        Weight(("a.weight",), (4, 6), storage="int3")


@pytest.mark.parametrize("axis", [-1, 2])
def test_an_axis_that_the_weight_has_not(axis: int) -> None:
    with pytest.raises(ValueError, match=f"axis is {axis}, but the weight has 2 dimensions"):
        Weight(("a.weight",), (4, 6), axis=axis)
