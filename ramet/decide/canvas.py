"""Canvas: what the reply of a diffusion model is read from, where a causal model's is read from the prompt's last
row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.noise import Noise
from ramet.errors import CheckpointError
from ramet.text.chat import Frame
from ramet.text.tokenizer import Tokenizer
from ramet.tree import IntArray

GRAIN = 16  # a canvas is so many rows wide, or a multiple, as DiffusionGemma's structured reads have it in vLLM
NOISE = -1  # a slot: an id is drawn for each prompt
_ENDING = 2  # rows behind what is written, at least: the end of a reply, and padding
_THOUGHT = ("<|channel>", "thought\n", "<channel|>")


@dataclass(frozen=True, slots=True)
class Canvas:
    """A reply still to be denoised: what is written of it, with slots of noise, the id that ends a reply, and padding.

    How it is denoised is the model's own way; `denoising` also says how wide it may be.
    """

    end: int
    pad: int
    denoising: CanvasConfig

    @classmethod
    def of(cls, tokenizer: Tokenizer, frame: Frame, denoising: CanvasConfig) -> Canvas:
        """Raises CheckpointError where the tokenizer names no padding, or a canvas holds no label."""
        pad = tokenizer.control.get(tokenizer.specials.get("pad_token", ""))
        if pad is None:
            raise CheckpointError(
                "the tokenizer names no pad_token, which fills a canvas: set it in tokenizer_config.json"
            )
        if denoising.canvas_length <= _ENDING:
            raise CheckpointError(
                f"canvas_length is {denoising.canvas_length}; a label, the end of a reply and padding take "
                f"{_ENDING + 1} tokens"
            )
        return cls(frame.end, pad, denoising)

    @property
    def room(self) -> int:
        """How many ids one canvas can hold."""
        return self.denoising.canvas_length - _ENDING

    def filled(self, written: Sequence[int]) -> list[int]:
        """The ids of a canvas that begins with `written`, no more than `room`."""
        assert len(written) <= self.room
        width = min(-(-(len(written) + _ENDING) // GRAIN) * GRAIN, self.denoising.canvas_length)
        return [*written, self.end, *[self.pad] * (width - len(written) - 1)]


@dataclass(frozen=True, slots=True, eq=False)
class CanvasSegment:
    """A canvas in a tree: its segment, its `slots` [N], and the noise that fills them. The noise follows from the
    prompt above the canvas, so that a read repeats, whatever shares its round. `number` counts the canvases below a
    prompt."""

    segment: int
    slots: IntArray
    noise: Noise
    number: int

    def fill(self, tokens: IntArray, vocab_size: int) -> None:
        """Fill the slots of the canvas' tokens [W] with noise."""
        tokens[self.slots] = self.noise.ids(self.number, 0, len(tokens), vocab_size)[self.slots]


def thoughtless(tokenizer: Tokenizer, frame: Frame) -> Frame:
    """The frame with an empty thought behind it, where the vocabulary has thoughts and the template writes none.
    Without it a model would begin a thought where its label is read."""
    begin, _, end = (tokenizer.control.get(text) for text in _THOUGHT)
    if begin is None or end is None or end in frame.tail:
        return frame
    return replace(frame, tail=(*frame.tail, *tokenizer.encode_rendered("".join(_THOUGHT))))
