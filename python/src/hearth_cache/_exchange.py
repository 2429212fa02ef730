"""One fetch and one publish, message by message, for the blocking client and the asyncio client.
Everything that a store sends is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Optional, Union

import xxhash

from hearth_cache.answers import tier_name
from hearth_cache.errors import DataLoss, PreconditionFailed
from hearth_cache.layout import AnyLayout, Fingerprint, ObjectId
from hearth_cache.v1 import cache_store_pb2

PIECE_BYTES = 1 << 20
Bytes = Union[bytes, memoryview]
# Returns the bytes of one layer of an object. Called a second time for a slice that the store
# lacks: the first call computes its digest.
SliceOf = Callable[[ObjectId, int], Bytes]
# Receives (fetch, object, layer, bytes): one slice of a fetch, after its digest was verified.
Place = Callable[["Fetched", ObjectId, int, Bytes], None]


@dataclass(frozen=True)
class Prefix:
    """A prompt's tokens, and the fingerprint of the engine that computes them. `cuts`: positions at
    which the prefill was split into steps, if not after each chunk; only for the exactness class
    `exact`."""

    fingerprint: Fingerprint
    token_ids: Sequence[int]
    cuts: Sequence[int] = ()
    tenant: str = ""

    def message(self) -> cache_store_pb2.Prefix:
        return cache_store_pb2.Prefix(fingerprint=self.fingerprint.message(),
                                      token_ids=self.token_ids, cuts=self.cuts, tenant=self.tenant)


@dataclass
class Fetched:
    """The result of a fetch. If `usable_tokens` is 0, nothing was found and `miss_reason` says why.
    Otherwise `slices` has the verified bytes of all objects, by (first token of the object,
    layer)."""

    usable_tokens: int = 0
    matched_tokens: int = 0
    miss_reason: str = ""
    source_tier: str = "none"
    objects: list[ObjectId] = field(default_factory=list[ObjectId])
    slices: dict[tuple[int, int], Bytes] = field(
        default_factory=dict[tuple[int, int], Bytes])
    bytes: int = 0
    # `objects` as protobuf messages, with their digests.
    refs: Sequence[cache_store_pb2.ObjectRef] = ()


class FetchReader:
    """Reads the messages of one Fetch. Raises DataLoss if a slice does not match its digest or is
    missing, and PreconditionFailed if the plan does not match the request."""

    def __init__(self, prefix: Prefix, above_tokens: int, max_tokens: int,
                 place: Optional[Place] = None) -> None:
        self._prefix, self._place = prefix, place
        self._layout = prefix.fingerprint.layout
        self._above = above_tokens
        self._most = max_tokens or max(0, len(prefix.token_ids) - 1)
        self._planned = False
        # {(object, layer): digest} of each slice that has not arrived.
        self._due: dict[tuple[int, int], int] = {}
        self._parts: dict[tuple[int, int], bytearray] = {}
        self.fetched = Fetched()

    def request(self, *, again: bool) -> cache_store_pb2.FetchRequest:
        return cache_store_pb2.FetchRequest(
            prefix=self._prefix.message(), above_tokens=self._above,
            max_tokens=self._most, verifies=not again, again=again)

    def take(self, message: cache_store_pb2.FetchResponse) -> None:
        if message.HasField("plan") == self._planned:
            raise DataLoss("the fetch sent a second plan" if self._planned
                           else "the fetch began without a plan")
        if self._planned:
            self._take_slice(message.slice)
        else:
            self._planned = True
            self._take_plan(message.plan)

    def _take_plan(self, plan: cache_store_pb2.FetchPlan) -> None:
        fetched, state, ids = self.fetched, plan.state, self._prefix.token_ids
        fetched.matched_tokens = min(plan.matched_tokens, len(ids))
        fetched.miss_reason = plan.miss_reason
        usable = plan.usable_tokens
        if usable == 0:
            return
        if not self._above < usable <= min(self._most, len(ids)):
            raise _differs("usable_tokens", usable)
        objects = [ObjectId(one.begin, one.tokens, one.group) for one in plan.objects]
        for name, said, asked in (
                ("token_count", state.token_count, usable),
                ("next_position", state.next_position, usable),
                ("attention_mask", state.attention_mask, "causal"),
                ("fingerprint", state.fingerprint.digest, self._prefix.fingerprint.digest),
                ("token_ids", list(state.token_ids), list(ids[:usable])),
                ("objects", sorted(objects), self._layout.needed_objects(usable))):
            if said != asked:
                raise _differs(name, said)
        for number, ref in enumerate(plan.objects):
            layers = self._layout.layers_of(ref.group)
            if len(ref.slice_digests) != len(layers):
                raise _differs("slice_digests", len(ref.slice_digests))
            self._due.update(((number, layer), digest)
                             for layer, digest in zip(layers, ref.slice_digests))
        fetched.usable_tokens, fetched.objects, fetched.refs = usable, objects, plan.objects
        fetched.source_tier = tier_name(plan.slowest_tier)

    def _take_slice(self, piece: cache_store_pb2.SliceData) -> None:
        key = (piece.object, piece.layer)
        if key not in self._due:
            raise DataLoss(f"unexpected slice of object {piece.object} in layer {piece.layer}")
        one, data = self.fetched.objects[piece.object], piece.data
        size, have = self._layout.slice_bytes(one.tokens), len(self._parts.get(key, ()))
        if piece.offset != have or not 0 < len(data) <= size - have:
            raise DataLoss(f"slice of layer {piece.layer} at token {one.begin}: {len(data)} bytes "
                           f"at {piece.offset}; expected {size - have} at {have}")
        whole: Bytes = data
        if len(data) < size:
            part = self._parts.setdefault(key, bytearray())
            part += data
            if len(part) < size:
                return
            whole = memoryview(self._parts.pop(key))
        if xxhash.xxh3_64_intdigest(whole) != self._due.pop(key):
            raise DataLoss(f"layer {piece.layer} of {one} does not match its digest")
        self.fetched.bytes += size
        if self._place is None:
            self.fetched.slices[one.begin, piece.layer] = whole
        else:
            self._place(self.fetched, one, piece.layer, whole)

    def end(self) -> Fetched:
        if self._due or not self._planned:
            raise DataLoss(f"the fetch ended with {len(self._due)} slices missing" if self._planned
                           else "the fetch ended without a plan")
        return self.fetched


def _differs(name: str, said: object) -> PreconditionFailed:
    return PreconditionFailed(f"plan: {name} is {str(said)[:99]}, which does not match the request")


class Offer:
    """The objects of one publish. The constructor adds to `begin` the objects that the restore
    points need. pieces() makes the messages with the slices that the store lacks. `stored`: the
    result of a fetch; its objects are in the store, so they are announced with their digests and
    without bytes."""

    def __init__(self, begin: cache_store_pb2.PublishBegin, layout: AnyLayout, slice_of: SliceOf,
                 stored: Sequence[cache_store_pb2.ObjectRef]) -> None:
        self._layout, self._slice_of = layout, slice_of
        self._objects = sorted({one for boundary in begin.boundaries
                                for one in layout.needed_objects(boundary)})
        known = {ObjectId(ref.begin, ref.tokens, ref.group): ref for ref in stored}
        for one in self._objects:
            ref = known.get(one)
            begin.objects.add(
                begin=one.begin, tokens=one.tokens, absent=ref is not None,
                group="LAYER_GROUP_LOCAL" if one.group else "LAYER_GROUP_GLOBAL",
                slice_digests=ref.slice_digests if ref is not None
                else [xxhash.xxh3_64_intdigest(self._slice(one, layer))
                      for layer in layout.layers_of(one.group)])

    def _slice(self, one: ObjectId, layer: int) -> Bytes:
        data = self._slice_of(one, layer)
        if len(data) != self._layout.slice_bytes(one.tokens):
            raise ValueError(f"layer {layer} of {one} has {len(data)} bytes, not "
                             f"{self._layout.slice_bytes(one.tokens)}")
        return data

    def pieces(self, plan: cache_store_pb2.PublishPlan) -> Iterator[cache_store_pb2.PublishRequest]:
        """Yields the slices of the objects that the plan asks for."""
        for number in plan.needed:
            if number >= len(self._objects):
                raise DataLoss("publish: the store asked for an object that was not offered")
            one = self._objects[number]
            for layer in self._layout.layers_of(one.group):
                data = self._slice(one, layer)
                for offset in range(0, len(data), PIECE_BYTES):
                    yield cache_store_pb2.PublishRequest(slice=cache_store_pb2.SliceData(
                        object=number, layer=layer, offset=offset,
                        data=bytes(data[offset:offset + PIECE_BYTES])))


class Turn:
    """A store's answer to a request for a lease. If `compute` is true, this caller computes the
    prefix, and other callers wait until its block ends. Otherwise a prefix of `usable_tokens` can
    be fetched."""

    def __init__(self, answer: cache_store_pb2.LeaseResponse) -> None:
        self.answer = answer
        self.compute = answer.turn == cache_store_pb2.LeaseResponse.COMPUTE
        self.usable_tokens = answer.usable_tokens
