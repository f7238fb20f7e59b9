"""Canvas: what a diffusion model's reply is read from, instead of the prompt's last row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Protocol

from ramet.errors import CheckpointError
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.tree import IntArray

WIDTH = 16  # rows of a canvas with one slot, as DiffusionGemma's structured reads have it in vLLM
NOISE = -1  # where an id is drawn for each prompt
_THOUGHT = ("<|channel>", "thought\n", "<channel|>")


class Hash(Protocol):
    """Of hashlib."""

    def copy(self) -> Hash: ...

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


def hashed(trunk: IntArray) -> Hash:
    """What noise is drawn by, behind a trunk."""
    return sha256(trunk.astype("<i4").tobytes())


@dataclass(frozen=True, slots=True)
class Canvas:
    """A reply of one label, still to be denoised: a slot of noise, the id that ends a reply, and padding.

    Noise is drawn from the ids below vocab_size by a hash of the prompt's, so that a read repeats, whatever shares its
    round.
    """

    end: int
    pad: int
    vocab_size: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, frame: Frame) -> Canvas:
        """Raises CheckpointError where the tokenizer names no padding."""
        pad = tokenizer.control.get(tokenizer.specials.get("pad_token", ""))
        if pad is None:
            raise CheckpointError(
                "the tokenizer names no pad_token, which fills a canvas: set it in tokenizer_config.json"
            )
        return cls(frame.end, pad, tokenizer.vocab_size)

    @property
    def ids(self) -> list[int]:
        """[WIDTH], the slot first."""
        return [NOISE, self.end, *[self.pad] * (WIDTH - 2)]

    def noise(self, trunk: Hash, prompt: IntArray, sample: int) -> int:
        """The id in the slot of canvas number `sample` behind a trunk, as `hashed` has it, and a question's prompt."""
        digest = trunk.copy()
        digest.update(prompt.astype("<i4").tobytes() + sample.to_bytes(4, "little"))
        return int.from_bytes(digest.digest()[:8], "little") % self.vocab_size


def thoughtless(tokenizer: Tokenizer, frame: Frame) -> Frame:
    """The frame with an empty thought behind it, where the vocabulary has thoughts and the template writes none: on a
    canvas a model would begin one where its label is to be read."""
    begin, _, end = (tokenizer.control.get(text) for text in _THOUGHT)
    if begin is None or end is None or end in frame.tail:
        return frame
    return replace(frame, tail=(*frame.tail, *tokenizer.encode_rendered("".join(_THOUGHT))))
