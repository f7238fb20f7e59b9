"""Canvas: what a diffusion model's reply is read from, instead of the prompt's last row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256, shake_256

import numpy as np

from ramet.errors import CheckpointError
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.tree import IntArray

GRAIN = 16  # a canvas is so many rows wide, or a multiple, as DiffusionGemma's structured reads have it in vLLM
NOISE = -1  # a slot: where an id is drawn for each prompt
_ENDING = 2  # rows behind what is written, at least: the end of a reply, and padding
_THOUGHT = ("<|channel>", "thought\n", "<channel|>")


def hashed(trunk: IntArray) -> bytes:
    """What noise is drawn by, behind a trunk."""
    return sha256(trunk.astype("<i4").tobytes()).digest()


@dataclass(frozen=True, slots=True)
class Canvas:
    """A reply still to be denoised: what is written of it, with slots of noise, the id that ends a reply, and padding.

    No wider than `length`. Noise is drawn from the ids below vocab_size by a hash of the prompt's, so that a read
    repeats, whatever shares its round.
    """

    end: int
    pad: int
    vocab_size: int
    length: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, frame: Frame, length: int) -> Canvas:
        """Raises CheckpointError where the tokenizer names no padding, or a canvas of `length` holds no label."""
        pad = tokenizer.control.get(tokenizer.specials.get("pad_token", ""))
        if pad is None:
            raise CheckpointError(
                "the tokenizer names no pad_token, which fills a canvas: set it in tokenizer_config.json"
            )
        if length <= _ENDING:
            raise CheckpointError(
                f"canvas_length is {length}; a label, the end of a reply and padding take {_ENDING + 1} tokens"
            )
        return cls(frame.end, pad, tokenizer.vocab_size, length)

    @property
    def room(self) -> int:
        """How many ids can be written on one canvas."""
        return self.length - _ENDING

    def filled(self, written: Sequence[int]) -> list[int]:
        """Its ids, from those that are written: no more than there is `room`."""
        assert len(written) <= self.room
        width = min(-(-(len(written) + _ENDING) // GRAIN) * GRAIN, self.length)
        return [*written, self.end, *[self.pad] * (width - len(written) - 1)]

    def noise(self, trunk: bytes, prompt: IntArray, sample: int, n_slots: int) -> IntArray:
        """[n_slots] ids, of canvas number `sample` behind a trunk, as `hashed` has it, and a question's prompt."""
        digest = shake_256(trunk + prompt.astype("<i4").tobytes() + sample.to_bytes(4, "little")).digest(8 * n_slots)
        return (np.frombuffer(digest, "<u8") % np.uint64(self.vocab_size)).astype(np.int32)


def thoughtless(tokenizer: Tokenizer, frame: Frame) -> Frame:
    """The frame with an empty thought behind it, where the vocabulary has thoughts and the template writes none: on a
    canvas a model would begin one where its label is to be read."""
    begin, _, end = (tokenizer.control.get(text) for text in _THOUGHT)
    if begin is None or end is None or end in frame.tail:
        return frame
    return replace(frame, tail=(*frame.tail, *tokenizer.encode_rendered("".join(_THOUGHT))))
