"""EngineMetrics: what an engine counts, in Prometheus' terms."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ramet.server.served import Served

SIZES = tuple(1 << n for n in range(11))  # upper ends of the buckets of histograms
HELP: Mapping[str, str] = {
    "rounds_total": "rounds run",
    "tokens_total": "rows of rounds",
    "requests_total": "trees answered, and replies of models without canvases",
    "cancelled_total": "trees and replies whose caller went away, or had enough, since a stop was written",
    "failed_rounds_total": "rounds that raised, or whose logits are not finite",
    "canvas_reads_total": "requests to diffusion models whose first canvas was read, replies among them",
    "two_step_reads_total": "canvas reads whose canvas was read in a later round than its prompt",
    "read_fallbacks_total": "canvas reads for which there was no room in one round",
    "open_requests": "trees and replies that wait or run",
    "round_requests": "histogram of the trees and replies in a round",
    "reply_tokens_total": "tokens of replies of models without canvases, those that nobody waited for among them",
    "reply_steps_total": "steps of replies of models without canvases, counted for each reply in them",
    "reply_rows_total": "rows of steps of replies",
    "step_replies": "histogram of the replies in a step",
    "chunk_size": "histogram of the rows that a reply ran in a step",
    "preemptions_total": "replies that gave up their pages and began again",
    "replies_live": "replies that are being written",
    "replies_waiting": "replies whose prompts wait, or are on their way into pages",
    "pages": "pages of keys and values",
    "pages_free": "pages that neither a request nor the index holds",
    "pages_indexed": "pages of the index, which a later state may find again",
    "pages_evicted_total": "pages given up for others",
    "states": "slots of recurrent states; 0 for models without recurrent layers",
    "states_free": "slots that neither a request nor the index holds",
    "checkpoints": "slots of the index, at which a later state may be continued",
    "checkpoints_evicted_total": "checkpoints given up for others",
    "cache_device_bytes": "bytes of the index's pages and checkpoints",
    "prefix_hit_tokens_total": "tokens of states found in pages",
    "prefix_missed_tokens_total": "tokens of states not found in pages",
    "cache_memory_tier_entries": "entries in main memory",
    "cache_memory_tier_bytes": "bytes of the entries in main memory",
    "cache_memory_tier_hits_total": "entries found in main memory",
    "cache_memory_tier_evicted_total": "entries that had to leave main memory, to disk or for good",
    "cache_tiers_misses_total": "entries that were looked for and are neither in main memory nor on disk",
    "cache_disk_tier_entries": "files in the directory, those of other models counted",
    "cache_disk_tier_bytes": "bytes of the files in the directory",
    "cache_disk_tier_hits_total": "entries found on disk, or on their way there",
    "cache_disk_tier_evicted_total": "files removed for others",
    "cache_disk_tier_dropped_total": (
        "entries not written: the queue was full, they were too large, or writing failed"
    ),
    "cache_disk_tier_damaged_total": "files found damaged, and removed",
    "cache_disk_tier_failures_total": "writes that failed",
    "cache_disk_tier_written_bytes_total": "bytes written",
    "cache_disk_tier_queued_bytes": "bytes that wait to be written",
    "cache_disk_tier_writing": "1 while files are written; 0 after three writes in a row that failed",
}


class EngineMetrics(Collector):
    """The engine's own figures. Each request of /metrics reads them anew."""

    def __init__(self, engine: Served) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        for key, value in self._engine.stats().items():
            kind = CounterMetricFamily if key.endswith("_total") else GaugeMetricFamily
            yield kind(_name(key), _help(key), value=value)
        for key, times in self._engine.histograms().items():
            buckets, total = _bucketed(times)
            yield HistogramMetricFamily(_name(key), _help(key), buckets=buckets, sum_value=total)


def _name(key: str) -> str:
    return "ramet_engine_" + re.sub(r"\W", "_", key, flags=re.ASCII)


def _help(key: str) -> str:
    return HELP.get(key, f"the engine's {key}")


def _bucketed(times: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """The counts of values up to each size, and the sum of all values."""
    counts = [0] * (len(SIZES) + 1)
    for value, n in times.items():
        counts[bisect_left(SIZES, value)] += n
    ends = (*(str(float(size)) for size in SIZES), "+Inf")
    return list(zip(ends, map(float, accumulate(counts)), strict=True)), float(sum(v * n for v, n in times.items()))
