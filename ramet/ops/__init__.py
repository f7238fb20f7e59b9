"""The operations that layers are made of, and the choice of who computes them."""

from ramet.ops.backends import check_card
from ramet.ops.choice import Choice, choose, reasons
from ramet.ops.contracts import Attention, Draw, Experts, GatedDelta, Linear, Ops, OpsFor, Pack, Sample, Variant
from ramet.ops.shape import OpShape

__all__ = [
    "Attention", "Choice", "Draw", "Experts", "GatedDelta", "Linear", "OpShape", "Ops", "OpsFor", "Pack", "Sample",
    "Variant", "check_card", "choose", "reasons",
]  # fmt: skip
