"""One fetch and one publish, message by message: what the blocking client and the one for asyncio
do alike. Nothing that a store sends is taken on trust."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Optional, Union

import xxhash

from hearth_cache.answers import tier_name
from hearth_cache.errors import DataLoss, PreconditionFailed
from hearth_cache.layout import Fingerprint, ObjectId
from hearth_cache.v1 import cache_store_pb2

PIECE_BYTES = 1 << 20
Bytes = Union[bytes, memoryview]
# The bytes of a layer of an object; called again for those that the store lacks.
SliceOf = Callable[[ObjectId, int], Bytes]
# Takes the bytes of a layer of an object, which have their digest, of what is being fetched.
Place = Callable[["Fetched", ObjectId, int, Bytes], None]


@dataclass(frozen=True)
class Prefix:
    """The tokens of a prompt, and what computes them. `cuts`: of class exact alone."""

    fingerprint: Fingerprint
    token_ids: Sequence[int]
    cuts: Sequence[int] = ()
    tenant: str = ""

    def message(self) -> cache_store_pb2.Prefix:
        return cache_store_pb2.Prefix(fingerprint=self.fingerprint.message(),
                                      token_ids=self.token_ids, cuts=self.cuts, tenant=self.tenant)


@dataclass
class Fetched:
    """`usable_tokens` 0: a miss, and `miss_reason` says why. Else `slices` has the bytes of each
    layer of each of `objects`, checked: (begin, layer) -> bytes."""

    usable_tokens: int = 0
    matched_tokens: int = 0
    miss_reason: str = ""
    source_tier: str = "none"
    objects: list[ObjectId] = field(default_factory=list[ObjectId])
    slices: dict[tuple[int, int], Bytes] = field(
        default_factory=dict[tuple[int, int], Bytes])
    bytes: int = 0
    refs: Sequence[cache_store_pb2.ObjectRef] = ()  # the store's names of `objects`


class FetchReader:
    """Takes the messages of a Fetch. DataLoss: a slice does not have its digest, or did not come;
    PreconditionFailed: the plan is not about what was asked."""

    def __init__(self, prefix: Prefix, above_tokens: int, max_tokens: int,
                 place: Optional[Place] = None) -> None:
        self._prefix, self._place = prefix, place
        self._above = above_tokens
        self._most = max_tokens or max(0, len(prefix.token_ids) - 1)
        self._plan: Optional[cache_store_pb2.FetchPlan] = None
        self._parts: dict[tuple[int, int], bytearray] = {}
        self._placed: set[tuple[int, int]] = set()
        self.fetched = Fetched()

    def request(self, *, again: bool) -> cache_store_pb2.FetchRequest:
        return cache_store_pb2.FetchRequest(
            prefix=self._prefix.message(), above_tokens=self._above,
            max_tokens=self._most, verifies=not again, again=again)

    def take(self, message: cache_store_pb2.FetchResponse) -> None:
        if message.HasField("plan"):
            if self._plan is not None:
                raise DataLoss("a second plan in one fetch")
            self._plan = message.plan
            self._take_plan(message.plan)
        elif self._plan is None:
            raise DataLoss("the fetch began without a plan")
        else:
            self._take_slice(message.slice, self._plan)

    def _take_plan(self, plan: cache_store_pb2.FetchPlan) -> None:
        fetched, state, ids = self.fetched, plan.state, self._prefix.token_ids
        fetched.matched_tokens = min(plan.matched_tokens, len(ids))
        fetched.miss_reason = plan.miss_reason
        usable = plan.usable_tokens
        if usable == 0:
            return
        if not self._above < usable <= min(self._most, len(ids)):
            self._differs("usable_tokens", usable)
        for name, value in (("token_count", state.token_count),
                            ("next_position", state.next_position)):
            if value != usable:
                self._differs(name, value)
        if state.attention_mask != "causal":
            self._differs("attention_mask", state.attention_mask)
        if state.fingerprint.digest != self._prefix.fingerprint.digest:
            self._differs("fingerprint", state.fingerprint.digest.hex())
        if list(state.token_ids) != list(ids[:usable]):
            self._differs("token_ids", f"{len(state.token_ids)} ids that are not the prompt's")
        objects = [ObjectId(one.begin, one.tokens, one.group) for one in plan.objects]
        layout = self._prefix.fingerprint.layout
        if sorted(objects) != layout.needed_objects(usable):
            self._differs("objects", f"{len(objects)} that are not those of {usable} tokens")
        for one, ref in zip(objects, plan.objects):
            if len(ref.slice_digests) != len(layout.layers_of(one.group)):
                self._differs("slice_digests", len(ref.slice_digests))
        fetched.usable_tokens, fetched.objects, fetched.refs = usable, objects, plan.objects
        fetched.source_tier = tier_name(plan.slowest_tier)

    def _differs(self, name: str, value: object) -> NoReturn:
        raise PreconditionFailed(f"plan: {name} is {value}; that is not what was asked for")

    def _take_slice(self, piece: cache_store_pb2.SliceData,
                    plan: cache_store_pb2.FetchPlan) -> None:
        if piece.object >= len(self.fetched.objects):
            raise DataLoss(f"slice of object {piece.object} of {len(self.fetched.objects)}")
        one, layout = self.fetched.objects[piece.object], self._prefix.fingerprint.layout
        layers = layout.layers_of(one.group)
        key, size, data = (one.begin, piece.layer), layout.slice_bytes(one.tokens), piece.data
        part = self._parts.get(key)
        have = 0 if part is None else len(part)
        if piece.layer not in layers or key in self._placed or piece.offset != have \
                or not 0 < len(data) <= size - have:
            raise DataLoss(f"slice of layer {piece.layer} at token {one.begin}: {len(data)} bytes "
                           f"at {piece.offset}, where {size - have} are due at {have}")
        whole: Bytes = data
        if len(data) < size:
            if part is None:
                part = self._parts[key] = bytearray()
            part += data
            if len(part) < size:
                return
            whole = memoryview(self._parts.pop(key))
        digest = plan.objects[piece.object].slice_digests[layers.index(piece.layer)]
        if xxhash.xxh3_64_intdigest(whole) != digest:
            raise DataLoss(f"layer {piece.layer} of {one} does not have its digest")
        self._placed.add(key)
        self.fetched.bytes += size
        if self._place is None:
            self.fetched.slices[key] = whole
        else:
            self._place(self.fetched, one, piece.layer, whole)

    def end(self) -> Fetched:
        if self._plan is None:
            raise DataLoss("the fetch ended without a plan")
        layout = self._prefix.fingerprint.layout
        want = sum(len(layout.layers_of(one.group)) for one in self.fetched.objects)
        if len(self._placed) != want:
            raise DataLoss(f"the fetch ended with {len(self._placed)} of {want} slices")
        return self.fetched


class Offer:
    """What a publish offers, and the messages that send what the store lacks of it. `stored`: what
    the store had lately, by a plan's names; of these objects no bytes are offered."""

    def __init__(self, prefix: Prefix, boundaries: Sequence[int], slice_of: Optional[SliceOf],
                 durability: cache_store_pb2.Durability, ttl_s: int,
                 stored: Sequence[cache_store_pb2.ObjectRef] = ()) -> None:
        layout = prefix.fingerprint.layout
        self.objects = sorted({one for boundary in boundaries
                               for one in layout.needed_objects(boundary)})
        self._layout, self._slice_of = layout, slice_of
        self.begin = cache_store_pb2.PublishBegin(
            prefix=prefix.message(), boundaries=sorted(boundaries), durability=durability,
            ttl_s=ttl_s)
        known = {ObjectId(ref.begin, ref.tokens, ref.group): ref for ref in stored}
        for one in self.objects:
            ref = self.begin.objects.add(begin=one.begin, tokens=one.tokens, absent=one in known)
            ref.group = cache_store_pb2.LAYER_GROUP_LOCAL if one.group \
                else cache_store_pb2.LAYER_GROUP_GLOBAL
            ref.slice_digests.extend(
                known[one].slice_digests if one in known
                else [xxhash.xxh3_64_intdigest(self._slice(one, layer))
                      for layer in layout.layers_of(one.group)])

    def _slice(self, one: ObjectId, layer: int) -> Bytes:
        assert self._slice_of is not None
        data = self._slice_of(one, layer)
        if len(data) != self._layout.slice_bytes(one.tokens):
            raise ValueError(f"layer {layer} of {one} has {len(data)} bytes, not "
                             f"{self._layout.slice_bytes(one.tokens)}")
        return data

    def pieces(self, plan: cache_store_pb2.PublishPlan) -> Iterator[cache_store_pb2.PublishRequest]:
        """What the plan asks for, and the commit."""
        for number in plan.needed:
            if number >= len(self.objects) or self._slice_of is None:
                raise DataLoss("publish: the store asked for an object that was not offered")
            one = self.objects[number]
            for layer in self._layout.layers_of(one.group):
                data = self._slice(one, layer)
                for offset in range(0, len(data), PIECE_BYTES):
                    yield cache_store_pb2.PublishRequest(slice=cache_store_pb2.SliceData(
                        object=number, layer=layer, offset=offset,
                        data=bytes(data[offset:offset + PIECE_BYTES])))
        yield cache_store_pb2.PublishRequest(commit=cache_store_pb2.PublishCommit())


class Turn:
    """What a store said about a prefix that several might compute. `compute`: this caller does, and
    others wait until the block is left; else there is nothing to wait for."""

    def __init__(self, answer: cache_store_pb2.LeaseResponse) -> None:
        self.answer = answer
        self.compute = answer.turn == cache_store_pb2.LeaseResponse.COMPUTE
        self.usable_tokens = answer.usable_tokens
