"""Commit curves: how often the masked rows of a chunk are sure, in place of a trained model. Whatever is measured with
them is simulated.

They are fitted to what a published table says of SDAR-8B with blocks of 32 and a threshold of 0.9: mean and standard
deviation of the tokens that a step commits, on seven data sets (tests/oracles/curve_fit.py fits them). The j-th masked
row passes with a probability that falls off geometrically in j; and some steps are runs, in which every row passes: the
deviations, about twice the means, say that there are such, and they cannot be had from rows that pass independently.
Steps that only store keys count as none: the table is of tokens decoded in a step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Curve:
    """The j-th masked row, from 0, passes with probability first * decay ** j. With probability `runs` a step begins
    a run, in which all pass: one that is `lasting` goes on to the block's end, for what is sure stays sure, in
    however many chunks it is taken. Of whole blocks both kinds are the same."""

    first: float
    runs: float
    decay: float = 0.85
    lasting: bool = True

    def passing(self, block: int = 32) -> Floats:
        """[block] of steps that are no runs."""
        return np.array([self.first * self.decay**j for j in range(block)])


@dataclass(frozen=True, slots=True)
class Dataset:
    """Means and standard deviations: tokens of prompts and of replies, tokens that a step commits."""

    name: str
    prompt: tuple[float, float]
    reply: tuple[float, float]
    step: tuple[float, float]
    curve: Curve


DATASETS = (
    Dataset("ShareGPT", (213, 508), (321, 214), (5.29, 9.44), Curve(0.13657379150390625, 0.16372299194335938)),
    Dataset("LMSYS-Chat", (89, 133), (183, 163), (4.81, 8.80), Curve(0.15185546875, 0.14757537841796875)),
    Dataset("LongBench", (4015, 2057), (116, 138), (6.06, 10.74), Curve(0.01219940185546875, 0.18914031982421875)),
    Dataset("GSM8K", (89, 22), (175, 67), (3.20, 5.68), Curve(0.2619781494140625, 0.08031845092773438)),
    Dataset("HumanEval", (172, 65), (103, 62), (3.75, 5.96), Curve(0.344757080078125, 0.09281158447265625)),
    Dataset("MBPP", (155, 77), (49, 28), (1.96, 3.33), Curve(0.2076568603515625, 0.0304718017578125)),
    Dataset("IFEval", (58, 24), (281, 264), (1.88, 3.90), Curve(0.12220001220703125, 0.038555145263671875)),
)
