"""A client of a hearth-store: prefixes, for engines other than Hearth's own."""

from __future__ import annotations

from asyncio import Queue
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Optional

from hearth_cache._calls import Access, Method, Patience
from hearth_cache._exchange import Fetched, FetchReader, Offer, Place, Prefix, SliceOf, Turn
from hearth_cache.aio._channel import AsyncChannel, AsyncClosing
from hearth_cache.errors import DataLoss
from hearth_cache.layout import Fingerprint
from hearth_cache.prompts import Durability, durability_of
from hearth_cache.v1 import cache_store_pb2, store_stats_pb2

DEFAULT_DEADLINE_S = 60.0
DEFAULT_RETRIES = 3
_WATCH_S = 1e7  # as good as without end

PinResponse = cache_store_pb2.PinResponse
RestorePoints = list[cache_store_pb2.RestorePointInfo]

_SERVICE = "/hearth.v1.CacheStore/"
_FETCH = Method[cache_store_pb2.FetchRequest, cache_store_pb2.FetchResponse](
    _SERVICE + "Fetch", cache_store_pb2.FetchResponse.FromString)
_LEASE = Method[cache_store_pb2.LeaseRequest, cache_store_pb2.LeaseResponse](
    _SERVICE + "Lease", cache_store_pb2.LeaseResponse.FromString)
_PUBLISH = Method[cache_store_pb2.PublishRequest, cache_store_pb2.PublishResponse](
    _SERVICE + "Publish", cache_store_pb2.PublishResponse.FromString)
_EXPLAIN = Method[cache_store_pb2.ExplainRequest, cache_store_pb2.ExplainResponse](
    _SERVICE + "Explain", cache_store_pb2.ExplainResponse.FromString)
_PIN = Method[cache_store_pb2.PinRequest, cache_store_pb2.PinResponse](
    _SERVICE + "Pin", cache_store_pb2.PinResponse.FromString)
_UNPIN = Method[cache_store_pb2.PinRequest, cache_store_pb2.PinResponse](
    _SERVICE + "Unpin", cache_store_pb2.PinResponse.FromString)
_DROP = Method[cache_store_pb2.DropRequest, cache_store_pb2.DropResponse](
    _SERVICE + "Drop", cache_store_pb2.DropResponse.FromString)
_LIST = Method[cache_store_pb2.ListRequest, cache_store_pb2.RestorePointInfo](
    _SERVICE + "List", cache_store_pb2.RestorePointInfo.FromString)
_STATS = Method[store_stats_pb2.StatsRequest, store_stats_pb2.StatsResponse](
    _SERVICE + "Stats", store_stats_pb2.StatsResponse.FromString)
_WATCH = Method[cache_store_pb2.WatchRequest, cache_store_pb2.WatchEvent](
    _SERVICE + "Watch", cache_store_pb2.WatchEvent.FromString)


class AsyncLease:
    """A block in which it is this caller's turn, or nobody's: store.lease(...) as turn."""

    def __init__(self, messages: AsyncGenerator[cache_store_pb2.LeaseResponse, None]) -> None:
        self._messages = messages

    async def __aenter__(self) -> Turn:
        async for answer in self._messages:
            if answer.turn != cache_store_pb2.LeaseResponse.WAIT:
                return Turn(answer)
        raise DataLoss("the lease ended without an answer")

    async def __aexit__(self, *unused: object) -> None:
        await self._messages.aclose()


class AsyncStore(AsyncClosing):
    """A hearth-store at `address` ("host:port" or "unix:PATH"). Tenants are the caller's own where
    none is named. Methods that block may be called from any thread; those for asyncio need its
    loop, here already."""

    def __init__(self, address: str, *, access: Optional[Access] = None,
                 deadline_s: float = DEFAULT_DEADLINE_S, retries: int = DEFAULT_RETRIES) -> None:
        self._channel = AsyncChannel(address, access, deadline_s, retries)

    def connect(self) -> None:
        """Begins to connect, which the first call does otherwise."""
        self._channel.connect()

    async def close(self) -> None:
        await self._channel.close()

    async def fetch(self, prefix: Prefix, *, above_tokens: int = 0, max_tokens: int = 0,
                    place: Optional[Place] = None, deadline_s: Optional[float] = None) -> Fetched:
        """The longest restore point of a prompt above `above_tokens`, and at most at `max_tokens`
        (0: one token is left to compute). Every byte is checked; where one is wrong the store is
        asked once more, and checks its own. DataLoss: it is wrong again. `place` takes each slice
        as it comes, and all of them again with another Fetched where the store is asked again; the
        result is then without them."""
        patience = self._channel.patience(deadline_s)
        try:
            return await self._fetch(FetchReader(prefix, above_tokens, max_tokens, place), False,
                                     patience)
        except DataLoss:
            return await self._fetch(FetchReader(prefix, above_tokens, max_tokens, place), True,
                                     patience)

    async def _fetch(self, reader: FetchReader, again: bool, patience: Patience) -> Fetched:
        messages = self._channel.stream(_FETCH, reader.request(again=again), patience)
        try:
            async for message in messages:
                reader.take(message)
        finally:
            await messages.aclose()
        return reader.end()

    async def publish(self, prefix: Prefix, boundaries: Sequence[int],
                      slice_of: SliceOf, *, durability: Durability = "default",
                      ttl_s: int = 0, stored: Optional[Fetched] = None,
                      deadline_s: Optional[float] = None) -> cache_store_pb2.PublishAck:
        """Keeps restore points. `slice_of(object, layer)` gives bytes, and is asked twice for what
        the store lacks. `stored`: of what was fetched no bytes are asked for."""
        offer = Offer(prefix, boundaries, slice_of, durability_of(durability), ttl_s,
                      () if stored is None else stored.refs)
        return await self._publish(offer, self._channel.patience(deadline_s))

    async def _publish(self, offer: Offer, patience: Patience) -> cache_store_pb2.PublishAck:
        plans: Queue[Optional[cache_store_pb2.PublishPlan]] = Queue()

        async def requests() -> AsyncIterator[cache_store_pb2.PublishRequest]:
            yield cache_store_pb2.PublishRequest(begin=offer.begin)
            plan = await plans.get()
            if plan is not None:
                for piece in offer.pieces(plan):
                    yield piece

        responses = self._channel.duplex(_PUBLISH, requests(), patience)
        try:
            async for response in responses:
                if response.HasField("ack"):
                    return response.ack
                plans.put_nowait(response.plan)
        finally:
            plans.put_nowait(None)
            await responses.aclose()
        raise DataLoss("publish: the stream ended without an acknowledgement")

    def lease(self, prefix: Prefix, *, lease_s: float, wait_s: float = 0.0, above_tokens: int = 0,
              max_tokens: int = 0, min_tokens: int = 0,
              deadline_s: float = DEFAULT_DEADLINE_S) -> AsyncLease:
        """Asks whose turn it is to compute a prefix, and waits for another's up to `wait_s`.
        `lease_s` 0: what a fetch would find. `deadline_s`: for the rest."""
        request = _lease_request(prefix, lease_s, wait_s, above_tokens, max_tokens, min_tokens)
        patience = self._channel.patience(deadline_s + wait_s + lease_s)
        return AsyncLease(self._channel.stream(_LEASE, request, patience))

    async def explain(self, prefix: Prefix) -> cache_store_pb2.ExplainResponse:
        request = cache_store_pb2.ExplainRequest(prefix=prefix.message())
        return await self._channel.unary(_EXPLAIN, request, self._channel.patience())

    async def list(self, *, tenant: str = "") -> RestorePoints:
        request = cache_store_pb2.ListRequest(tenant=tenant)
        return [one async for one in self._channel.stream(_LIST, request,
                                                          self._channel.patience())]

    def watch(self, *, tenant: str = "", since: Optional[cache_store_pb2.WatchEvent] = None
              ) -> AsyncGenerator[cache_store_pb2.WatchEvent, None]:
        """What is stored, and every change from then on; `since`: after the last event that was
        received. Closing the iterator ends it."""
        return self._channel.stream(_WATCH, _watch_request(tenant, since),
                                    self._channel.patience(_WATCH_S))

    async def pin(self, restore_point_id: bytes, *, tenant: str = "") -> PinResponse:
        request = cache_store_pb2.PinRequest(restore_point_id=restore_point_id, tenant=tenant)
        return await self._channel.unary(_PIN, request, self._channel.patience())

    async def unpin(self, restore_point_id: bytes, *, tenant: str = "") -> PinResponse:
        request = cache_store_pb2.PinRequest(restore_point_id=restore_point_id, tenant=tenant)
        return await self._channel.unary(_UNPIN, request, self._channel.patience())

    async def drop(self, restore_point_id: Optional[bytes], *, force: bool = False,
                   tenant: str = "") -> cache_store_pb2.DropResponse:
        """Removes a restore point; None: all of the tenant's. Pinned ones only with `force`."""
        request = _drop_request(restore_point_id, force, tenant)
        return await self._channel.unary(_DROP, request, self._channel.patience())

    async def renew(self, restore_point_id: bytes, ttl_s: int, *,
                    tenant: str = "") -> cache_store_pb2.PublishAck:
        """Gives a restore point a later end: it is published again, without its bytes."""
        request = cache_store_pb2.FetchRequest(restore_point_id=restore_point_id, tenant=tenant)
        messages = self._channel.stream(_FETCH, request, self._channel.patience())
        try:
            offer = _renewal((await messages.__anext__()).plan, ttl_s, tenant)
        finally:
            await messages.aclose()
        return await self._publish(offer, self._channel.patience())

    async def stats(self, *, tenant: str = "") -> store_stats_pb2.StatsResponse:
        request = store_stats_pb2.StatsRequest(tenant=tenant)
        return await self._channel.unary(_STATS, request, self._channel.patience())


def _renewal(plan: cache_store_pb2.FetchPlan, ttl_s: int, tenant: str) -> Offer:
    state = plan.state
    prefix = Prefix(Fingerprint.from_message(state.fingerprint), list(state.token_ids),
                    list(state.cuts), tenant)
    return Offer(prefix, [plan.usable_tokens], None, durability_of("default"), ttl_s, plan.objects)


def _lease_request(prefix: Prefix, lease_s: float, wait_s: float, above_tokens: int,
                   max_tokens: int, min_tokens: int) -> cache_store_pb2.LeaseRequest:
    return cache_store_pb2.LeaseRequest(
        prefix=prefix.message(), above_tokens=above_tokens, max_tokens=max_tokens,
        min_tokens=min_tokens, lease_ms=round(1000 * lease_s), wait_ms=round(1000 * wait_s))


def _watch_request(tenant: str, since: Optional[cache_store_pb2.WatchEvent]
                   ) -> cache_store_pb2.WatchRequest:
    since = since or cache_store_pb2.WatchEvent()
    return cache_store_pb2.WatchRequest(tenant=tenant, since_sequence=since.sequence,
                                        incarnation=since.incarnation)


def _drop_request(restore_point_id: Optional[bytes], force: bool,
                  tenant: str) -> cache_store_pb2.DropRequest:
    return cache_store_pb2.DropRequest(restore_point_id=restore_point_id or b"", force=force,
                                       all=restore_point_id is None, tenant=tenant)
