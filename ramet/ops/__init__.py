"""The operations that layers are made of, and the choice of who computes them."""

from ramet.ops.backends import check_card
from ramet.ops.choice import OpChoice, choose, reasons
from ramet.ops.contracts import AttentionOp, Draw, Experts, GatedDeltaOp, Linear, Ops, OpsFor, Pack, Sample, Variant
from ramet.ops.shape import OpShape

__all__ = [
    "AttentionOp", "Draw", "Experts", "GatedDeltaOp", "Linear", "OpChoice", "OpShape", "Ops", "OpsFor", "Pack",
    "Sample", "Variant", "check_card", "choose", "reasons",
]  # fmt: skip
