"""A client of a hearth-store, for engines other than Hearth's worker."""

from __future__ import annotations

from asyncio import Queue
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Optional

from hearth_cache._calls import Access, Patience
from hearth_cache._exchange import Fetched, FetchReader, Offer, Place, Prefix, SliceOf, Turn
from hearth_cache.aio._channel import AsyncChannel, AsyncClosing
from hearth_cache.errors import DataLoss
from hearth_cache.prompts import Durability
from hearth_cache.v1 import cache_store_pb2, store_stats_pb2

DEFAULT_DEADLINE_S = 60.0
DEFAULT_RETRIES = 3
_WATCH_S = 1e7  # 116 days: a watch has practically no deadline

Pieces = Callable[[cache_store_pb2.PublishPlan], Iterable[cache_store_pb2.PublishRequest]]
PinResponse = cache_store_pb2.PinResponse
RestorePoints = list[cache_store_pb2.RestorePointInfo]


class AsyncStore(AsyncClosing):
    """A hearth-store at `address` ("host:port" or "unix:PATH"). Without `tenant`, calls act
    for the caller's own tenant. Any thread may call the blocking client. The asyncio client must be
    created and used in a running event loop."""

    def __init__(self, address: str, *, access: Optional[Access] = None,
                 deadline_s: float = DEFAULT_DEADLINE_S, retries: int = DEFAULT_RETRIES) -> None:
        self._channel = AsyncChannel("CacheStore", address, access, deadline_s, retries)

    def connect(self) -> None:
        """Starts connecting now. Otherwise the first call connects."""
        self._channel.connect()

    async def close(self) -> None:
        await self._channel.close()

    async def fetch(self, prefix: Prefix, *, above_tokens: int = 0, max_tokens: int = 0,
                    place: Optional[Place] = None, deadline_s: Optional[float] = None) -> Fetched:
        """Returns the longest restore point of a prompt that is above `above_tokens` and at most
        `max_tokens` (0: at least one token is left to compute). Checks every slice's digest. If a
        digest is wrong, the store is asked once more and then verifies its own bytes; if a digest
        is wrong again, raises DataLoss. `place` receives each slice as it comes; the result then
        has no slices. If the store is asked again, `place` receives all slices again, with another
        Fetched."""
        patience = self._channel.patience(deadline_s)
        try:
            return await self._fetch(FetchReader(prefix, above_tokens, max_tokens, place), False,
                                     patience)
        except DataLoss:
            return await self._fetch(FetchReader(prefix, above_tokens, max_tokens, place), True,
                                     patience)

    async def _fetch(self, reader: FetchReader, again: bool, patience: Patience) -> Fetched:
        async with aclosing(self._channel.stream(
                "Fetch", reader.request(again=again), cache_store_pb2.FetchResponse,
                patience)) as messages:
            async for message in messages:
                reader.take(message)
        return reader.end()

    async def publish(self, prefix: Prefix, boundaries: Sequence[int],
                      slice_of: SliceOf, *, durability: Durability = "default",
                      ttl_s: int = 0, keep_s: int = 0, priority: int = 0,
                      stored: Optional[Fetched] = None,
                      deadline_s: Optional[float] = None) -> cache_store_pb2.PublishAck:
        """Publishes restore points at `boundaries`. `slice_of(object, layer)` returns a slice's
        bytes; it is called a second time for slices that the store lacks. `stored`: a fetch whose
        objects are not sent again. `keep_s`: for this many seconds the points are evicted last
        within the tenant. `priority`, -8 to 8: each step doubles their value in eviction."""
        begin = cache_store_pb2.PublishBegin(
            prefix=prefix.message(), boundaries=sorted(boundaries), ttl_s=ttl_s, keep_s=keep_s,
            durability=f"DURABILITY_{durability.upper()}", priority=priority)
        offer = Offer(begin, prefix.fingerprint.layout, slice_of,
                      () if stored is None else stored.refs)
        return await self._publish(begin, offer.pieces, self._channel.patience(deadline_s))

    async def _publish(self, begin: cache_store_pb2.PublishBegin, pieces: Pieces,
                       patience: Patience) -> cache_store_pb2.PublishAck:
        plans: Queue[Optional[cache_store_pb2.PublishPlan]] = Queue()

        async def requests() -> AsyncIterator[cache_store_pb2.PublishRequest]:
            yield cache_store_pb2.PublishRequest(begin=begin)
            plan = await plans.get()
            if plan is not None:
                for piece in pieces(plan):
                    yield piece
                yield cache_store_pb2.PublishRequest(commit=cache_store_pb2.PublishCommit())

        try:
            async with aclosing(self._channel.once(
                    "Publish", requests(), cache_store_pb2.PublishResponse,
                    patience)) as responses:
                async for response in responses:
                    if response.HasField("ack"):
                        return response.ack
                    plans.put_nowait(response.plan)
        finally:
            plans.put_nowait(None)
        raise DataLoss("publish: the stream ended without an acknowledgement")

    @asynccontextmanager
    async def lease(self, prefix: Prefix, *, lease_s: float, wait_s: float = 0.0,
                    above_tokens: int = 0, max_tokens: int = 0, min_tokens: int = 0,
                    deadline_s: float = DEFAULT_DEADLINE_S) -> AsyncGenerator[Turn, None]:
        """Context manager for computing a prefix only once. If Turn.compute is true, this caller
        computes the prefix. If another caller computes it, the block begins when that caller has
        finished, or after `wait_s`. `lease_s` = 0: takes no lease; the Turn only says what a fetch
        would find. `deadline_s`: the deadline of the call, in addition to `wait_s` and
        `lease_s`."""
        request = cache_store_pb2.LeaseRequest(
            prefix=prefix.message(), above_tokens=above_tokens, max_tokens=max_tokens,
            min_tokens=min_tokens, lease_ms=round(1000 * lease_s), wait_ms=round(1000 * wait_s))
        patience = self._channel.patience(deadline_s + wait_s + lease_s)
        async with aclosing(self._channel.stream(
                "Lease", request, cache_store_pb2.LeaseResponse, patience)) as answers:
            async for answer in answers:
                if answer.turn != cache_store_pb2.LeaseResponse.WAIT:
                    yield Turn(answer)
                    return
        raise DataLoss("the store ended the Lease call without GO or COMPUTE")

    async def explain(self, prefix: Prefix) -> cache_store_pb2.ExplainResponse:
        request = cache_store_pb2.ExplainRequest(prefix=prefix.message())
        return await self._channel.unary("Explain", request, cache_store_pb2.ExplainResponse)

    async def list(self, *, tenant: str = "") -> RestorePoints:
        request = cache_store_pb2.ListRequest(tenant=tenant)
        return [one async for one in self._channel.stream("List", request,
                                                          cache_store_pb2.RestorePointInfo)]

    def watch(self, *, tenant: str = "", since: Optional[cache_store_pb2.WatchEvent] = None,
              with_chunks: bool = False) -> AsyncGenerator[cache_store_pb2.WatchEvent, None]:
        """Yields an event for each restore point, then an event for each change. `since`: the last
        event received; the watch continues after it. `with_chunks`: events contain the tokens of
        restore points. Closing the iterator ends the watch."""
        since = since or cache_store_pb2.WatchEvent()
        request = cache_store_pb2.WatchRequest(tenant=tenant, since_sequence=since.sequence,
                                               incarnation=since.incarnation,
                                               with_chunks=with_chunks)
        return self._channel.stream("Watch", request, cache_store_pb2.WatchEvent,
                                    self._channel.patience(_WATCH_S))

    async def pin(self, restore_point_id: bytes, *, tenant: str = "") -> PinResponse:
        request = cache_store_pb2.PinRequest(restore_point_id=restore_point_id, tenant=tenant)
        return await self._channel.unary("Pin", request, PinResponse)

    async def unpin(self, restore_point_id: bytes, *, tenant: str = "") -> PinResponse:
        request = cache_store_pb2.PinRequest(restore_point_id=restore_point_id, tenant=tenant)
        return await self._channel.unary("Unpin", request, PinResponse)

    async def drop(self, restore_point_id: Optional[bytes], *, force: bool = False,
                   tenant: str = "") -> cache_store_pb2.DropResponse:
        """Removes a restore point; None: all restore points of the tenant. Pinned restore points
        are removed only with `force`."""
        request = cache_store_pb2.DropRequest(
            restore_point_id=restore_point_id or b"", all=restore_point_id is None, force=force,
            tenant=tenant)
        return await self._channel.unary("Drop", request, cache_store_pb2.DropResponse)

    async def renew(self, restore_point_id: bytes, ttl_s: int, *,
                    tenant: str = "") -> cache_store_pb2.PublishAck:
        """Extends a restore point's time to live, by publishing it again without bytes."""
        request = cache_store_pb2.FetchRequest(restore_point_id=restore_point_id, tenant=tenant)
        async with aclosing(self._channel.stream("Fetch", request,
                                                 cache_store_pb2.FetchResponse)) as messages:
            plan: Optional[cache_store_pb2.FetchPlan] = None
            async for message in messages:
                plan = message.plan
                break
        if plan is None:
            raise DataLoss("the fetch ended without a plan")
        state = plan.state
        begin = cache_store_pb2.PublishBegin(
            prefix=cache_store_pb2.Prefix(fingerprint=state.fingerprint, cuts=state.cuts,
                                          token_ids=state.token_ids, tenant=tenant),
            boundaries=[plan.usable_tokens], objects=plan.objects, ttl_s=ttl_s)
        for one in begin.objects:
            one.absent = True
        return await self._publish(begin, lambda plan: (), self._channel.patience())

    async def stats(self, *, tenant: str = "") -> store_stats_pb2.StatsResponse:
        request = store_stats_pb2.StatsRequest(tenant=tenant)
        return await self._channel.unary("Stats", request, store_stats_pb2.StatsResponse)
