"""The parts of an engine, by its model and settings."""

from __future__ import annotations

from collections.abc import Callable

from ramet.denoise.block_config import BlockConfig
from ramet.denoise.canvas_config import CanvasConfig
from ramet.denoise.elastic import Fixed
from ramet.denoise.next_tokens import NextTokens
from ramet.denoise.running import RunningReplies
from ramet.engine.cache import Cache
from ramet.engine.canvas_writer import CanvasWriter, Follow
from ramet.engine.chunk_choice import ChunkChoice
from ramet.engine.decoding import Decoding
from ramet.engine.host import Host
from ramet.engine.job import STATES_A_JOB
from ramet.engine.outbox import PieceOutbox
from ramet.engine.reply import Reply
from ramet.engine.reply_writer import ReplyWriter, SamplingDefaults
from ramet.engine.scheduler import Scheduler
from ramet.engine.settings import EngineSettings
from ramet.engine.writer import Writer
from ramet.text.conversation import Conversation


def decoding_for(cache: Cache, settings: EngineSettings, blocks: BlockConfig | None, host: Host) -> Decoding:
    """Make what decodes: in blocks for a model that fills in masks, token by token for any other."""
    assert settings.max_round_tokens
    half = settings.max_round_tokens // 2
    if blocks is None:
        running: RunningReplies = NextTokens()
        most, block, mask = half, 1, -1
    else:
        running = host.blocks(blocks.size, blocks.mask, mode=settings.mode, ahead=settings.ahead)
        most, block, mask = half // running.least, blocks.size, blocks.mask
    most = max(1, min(most, settings.max_round_requests or most))
    choice, keeps = ChunkChoice(Fixed(running.largest), block), not settings.batch_invariant
    return Decoding(running, choice, cache.pages, host, block=block, mask=mask, max_running=most, keeps=keeps)


def scheduler_for(cache: Cache, settings: EngineSettings, decoding: Decoding | None) -> Scheduler:
    """Make the queue of an engine, on its pages."""
    assert settings.max_round_tokens
    return Scheduler(
        cache.pages, settings.max_round_tokens, cache.grain, settings.max_round_requests, decoding,
        n_other_states=2 * STATES_A_JOB if cache.pages.recurrent else 0, kept=lambda n: cache.kept(n, n),
    )  # fmt: skip


def writer_for(
    conversation: Conversation, canvases: CanvasConfig | None, blocks: BlockConfig | None, *,
    max_length: int, cache: Cache, settings: EngineSettings, sampling: SamplingDefaults, vocab_size: int,
    follow: Follow, begin: Callable[[Reply], None], outbox: PieceOutbox,
) -> Writer:  # fmt: skip
    """Make the writer of a model with canvases, with blocks of masks, or that writes token by token. A prompt and its
    reply have at most as many tokens as the model takes, and, but for canvases, as the pages hold."""
    if canvases is not None:
        return CanvasWriter(canvases, conversation, max_length, follow)
    longest = min(max_length, (cache.pages.n_pages - 1) * cache.pages.page_size)
    stop_ids = blocks.stop_ids if blocks else frozenset(conversation.tokenizer.stop_ids)
    return ReplyWriter(
        conversation, longest, blocks=blocks, stop_ids=stop_ids, vocab_size=vocab_size, sampling=sampling,
        settings=settings, begin=begin, outbox=outbox,
    )  # fmt: skip
