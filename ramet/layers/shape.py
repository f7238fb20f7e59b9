"""ModelShape: what a family's configuration means to a decoder, without weights; and the shapes that it is made of."""

from __future__ import annotations

from dataclasses import dataclass

from ramet.layers.layer import LayerShape
from ramet.layers.mlp import MLPShape
from ramet.layers.per_layer import PerLayerShape


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder. rotaries: the layer types whose rotary embeddings it has (None: the configuration's only one).
    embedding_scale: what embeddings are multiplied by. softcap: logits become softcap * tanh(logits / softcap); 0
    leaves them. per_layer: token embeddings that each layer has of its own. conditioning: the MLP by which a canvas
    begins from what the step before made of it (DiffusionGemma)."""

    vocab_size: int
    hidden_size: int
    layers: tuple[LayerShape, ...]
    eps: float
    max_positions: int
    rotaries: tuple[str | None, ...] = (None,)
    embedding_scale: float = 1.0
    softcap: float = 0.0
    per_layer: PerLayerShape | None = None
    conditioning: MLPShape | None = None

    @property
    def n_every(self) -> int:
        """How many layers, from the first, need every row: up to the last whose keys, values or state later rows
        may want. What lies behind them, and the rest of that last one, computes the rows that are read alone."""
        return 1 + max(i for i, layer in enumerate(self.layers) if layer.mixer.keeps)

    @property
    def lenders(self) -> frozenset[int]:
        """The layers whose keys and values others read."""
        owners = (layer.mixer.keys_of for layer in self.layers)
        return frozenset(owner for owner in owners if owner is not None)

    @property
    def recurrent(self) -> bool:
        """Whether some layer folds what it has seen into a state."""
        return any(layer.mixer.recurrent for layer in self.layers)

    def kinds(self) -> list[int]:
        """Layers of which every other is a repetition: a pass through these alone launches all kernels of a pass."""
        kinds: dict[object, int] = {}
        for i, own in enumerate(self.layers):
            place = (i + 1 > self.n_every) - (i + 1 < self.n_every)
            kind = own.mixer.kind, own.mlp, own.post_norms, own.scaled
            kinds.setdefault((kind, i in self.lenders, place), i)
        return sorted({*kinds.values(), *self.lenders})
