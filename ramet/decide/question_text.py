"""A question in words, before tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class QuestionText:
    """What a question says to the model and which replies it compares; equal forms have equal branches.

    `prompts` are the words behind the state, or those on a sheet with others, one for each order of the options.
    The replies are either `labels` [orders][options], the id of each option's label in each order; or `replies`,
    each option's own text, in the one order that there is. `n_samples`: on how many canvases each is read.
    """

    prompts: tuple[str, ...]
    labels: tuple[tuple[int, ...], ...] = ()
    replies: tuple[str, ...] = ()
    n_samples: int = 1

    @property
    def n_characters(self) -> int:
        """Its size in characters, for the cache."""
        return sum(map(len, self.prompts)) + sum(map(len, self.replies))
