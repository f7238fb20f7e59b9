"""RequestedReplies: the replies that one request asks for, under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from ramet.denoise.check import check_ids
from ramet.generation import GenerationRequest
from ramet.server.openai.reply_counts import ReplyCounts
from ramet.server.openai.text_reply import Delta, TextReply
from ramet.server.openai.text_request import TextRequest
from ramet.server.served import Writes

R = TypeVar("R", bound=TextRequest)


@dataclass(frozen=True, slots=True)
class RequestedReplies(Generic[R]):
    """A reply for each prompt of a request. `counts` has what they took, those that were given up included."""

    request: R
    model: str
    writer: Writes
    wanted: Sequence[GenerationRequest]
    replies: Sequence[TextReply]

    @classmethod
    def of(cls, request: R, model: str, writer: Writes) -> RequestedReplies[R]:
        """The replies of a request. Raises InvalidRequest for fields that the writer does not take, and where no prompt
        can be made."""
        request.check_kind(writer.kind)
        check_ids("stop_token_ids", request.stop_token_ids, writer.vocab_size)
        wanted = request.generations(writer.conversation)
        tokenizer = writer.conversation.tokenizer
        replies = [TextReply.of(request, tokenizer, len(each.prompt)) for each in wanted]
        return cls(request, model, writer, wanted, replies)

    @property
    def counts(self) -> list[ReplyCounts]:
        return [reply.counts for reply in self.replies]

    async def whole(self) -> list[Delta]:
        """Each reply from its beginning to its end."""
        found = [Delta()] * len(self.replies)
        async with aclosing(self.deltas()) as deltas:
            async for i, delta in deltas:
                found[i] += delta
        return found

    async def deltas(self) -> AsyncGenerator[tuple[int, Delta], None]:
        """What the replies add, each with the number of its reply. A delta has text, or is its reply's last. Closing
        this iterator, an error of one reply, and the end of a reply by a stop cancel what the engine would still
        write."""
        if len(self.replies) == 1:
            async with aclosing(self._one(0)) as deltas:
                async for delta in deltas:
                    yield 0, delta
            return
        arrived = asyncio.Queue[tuple[int, Delta | Exception]]()
        tasks = [asyncio.create_task(self._pump(i, arrived)) for i in range(len(self.replies))]
        try:
            n_left = len(tasks)
            while n_left:
                i, found = await arrived.get()
                if isinstance(found, Exception):
                    raise found
                n_left -= found.finish is not None
                yield i, found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(self, i: int, arrived: asyncio.Queue[tuple[int, Delta | Exception]]) -> None:
        try:
            async with aclosing(self._one(i)) as deltas:
                async for delta in deltas:
                    arrived.put_nowait((i, delta))
        except Exception as error:  # `deltas` raises it again
            arrived.put_nowait((i, error))

    async def _one(self, i: int) -> AsyncGenerator[Delta, None]:
        async with aclosing(self.writer.stream(self.wanted[i])) as pieces:
            held = Delta()
            async for piece in pieces:
                held += self.replies[i].take(piece)
                if held.text or held.finish is not None:
                    yield held
                    if held.finish is not None:
                        return
                    held = Delta()
