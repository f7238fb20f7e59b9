"""Batch -> reads: packs a round, runs the pass on the device, cuts the results."""

from __future__ import annotations

from ramet.cache.store import Store
from ramet.engine.scheduler import Batch
from ramet.layers.decoder import Decoder
from ramet.round import pack
from ramet.tree import Reads

# oneDNN compiles a product for each number of rows that it meets, in about half a millisecond: rounds of nearly equal
# length share one.
ROW_MULTIPLE = 16


class Runner:
    """A model and its pages on a device."""

    def __init__(self, model: Decoder, store: Store) -> None:
        self.model, self.store = model, store

    def run(self, batch: Batch) -> list[Reads]:
        """One pass over a batch's units."""
        for source, target in batch.copies:
            self.store.copy_page(source, target)
        packed = pack(batch.units, ROW_MULTIPLE)
        logits, logsumexp = self.model(packed.on(self.model.device), self.store)
        return packed.results(logits, logsumexp)[: len(batch.units)]
