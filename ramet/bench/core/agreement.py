"""Whether contestants answer alike: there is no figure for a wrong answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ramet.bench.core.timing import Answer
from ramet.errors import RametError

# On the mean difference of a probability over the labels; the largest may be LARGEST times that. In bfloat16 random
# ids leave transformers itself up to 0.09 from its own float32 (docs/quality.md): a single value says little.
TOLERANCE = {torch.bfloat16: 0.02, torch.float16: 0.005, torch.float32: 1e-4}
LARGEST = 5
Number = TypeVar("Number", np.float32, np.float64)


def agree(answers: Mapping[str, Answer], tolerance: float) -> dict[str, float]:
    """The largest difference of each one's label probabilities from ours. Raises RametError where their mean is beyond
    `tolerance`, or the largest beyond LARGEST times that."""
    ours = answers["ours"]
    assert ours is not None
    found = {}
    for name, theirs in answers.items():
        if theirs is not None and name != "ours":
            differences = np.abs(probabilities(theirs) - probabilities(ours))
            mean = float(differences.mean())
            found[name] = float(differences.max())
            if not (mean <= tolerance and found[name] <= LARGEST * tolerance):
                raise RametError(
                    f"no figures: {name} answers otherwise, by {mean:.4f} on average and {found[name]:.4f} at most; "
                    f"{tolerance} and {LARGEST * tolerance} are allowed"
                )
    return found


def probabilities(logits: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """The softmax of each question's logits [questions, columns], in their dtype."""
    found: npt.NDArray[Number] = torch.from_numpy(np.ascontiguousarray(logits)).softmax(-1).numpy()
    return found
