"""EventFeed: turns the events of a store's watch into numbered batches for routers.

A restore point is reported if it ends at a whole chunk and has the reported fingerprint; its chunks
are the blocks. Numbers begin at the start time in microseconds, so that a restarted program
continues above its earlier numbers, and its subscribers see a gap instead of a repetition.
"""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from hearth_cache.events._batches import (
    AllBlocksCleared, KvEvent, KvLabels, encode_batches, encode_empty_batch)
from hearth_cache.events._ledger import BlockLedger, PointBlocks
from hearth_cache.v1 import cache_store_pb2, chunk_run_pb2

# The limits of proto/kv_layout.h.
_CHUNK_TOKENS = range(16, 1024 + 1)
_MAX_PROMPT_TOKENS = 1 << 20
_DIGEST_BYTES = 8  # of a fingerprint in log lines; --fingerprint accepts them

_Event = cache_store_pb2.WatchEvent


class KvBatch(NamedTuple):
    number: int
    payload: bytes


class BatchLog:
    """The last published batches, for subscribers that missed some. Numbers have no gap. Both
    limits apply to batches with events; the last batch is kept even if it exceeds them."""

    def __init__(self, max_batches: int, max_bytes: int, first_number: int) -> None:
        self._max_batches, self._max_bytes = max_batches, max_bytes
        self._payloads: dict[int, tuple[bytes, bool]] = {}  # number: (payload, has events)
        self._with_events = 0
        self.first = self.next = first_number
        self.bytes = 0  # size of the batches with events

    def append(self, payload: bytes) -> None:
        self._add(payload, True)
        self.bytes += len(payload)
        self._with_events += 1
        while self.next - self.first > 1 and (
                self._with_events > self._max_batches or self.bytes > self._max_bytes):
            oldest, has_events = self._payloads.pop(self.first)
            self.first += 1
            if has_events:
                self.bytes -= len(oldest)
                self._with_events -= 1

    def append_empty(self, count: int, payload: bytes) -> None:
        for _ in range(count):
            self._add(payload, False)

    def _add(self, payload: bytes, has_events: bool) -> None:
        self._payloads[self.next] = payload, has_events
        self.next += 1

    def since(self, number: int, most: int) -> list[KvBatch]:
        """Returns the kept batches from `number` on, at most `most`."""
        begin = max(number, self.first)
        return [KvBatch(one, self._payloads[one][0])
                for one in range(begin, min(begin + most, self.next))]


class _Batches(list[KvBatch]):
    """A list with support for weak references."""


@dataclass
class _OpenPoint:
    """A restore point whose last chunks have not come yet."""

    blocks: PointBlocks
    chunks: int  # of the whole restore point
    in_snapshot: bool


@dataclass(frozen=True)
class FeedOptions:
    labels: KvLabels = field(default_factory=KvLabels)
    # The first hexadecimal digits of the reported fingerprint. Empty: the fingerprint of the first
    # restore point; when none of its points is left, the fingerprint of the next new point.
    fingerprint: str = ""
    max_blocks: int = 1_000_000
    max_batches: int = 10_000  # batches kept for replays, within max_batch_bytes
    max_batch_bytes: int = 256 << 20


class EventFeed:
    """Turns watch events into batches. `say` receives a log line when restore points of another
    fingerprint are ignored, or when another fingerprint is reported from now on."""

    def __init__(self, options: FeedOptions, say: Callable[[str], object],
                 now: Callable[[], float] = time.time) -> None:
        self._options, self._say, self._now = options, say, now
        self._ledger = BlockLedger(options.max_blocks)
        self.first_number = int(now() * 1e6)
        self._log = BatchLog(options.max_batches, options.max_batch_bytes, self.first_number)
        self._fingerprint: bytes = b""  # the digest, once it is known
        self._has_others = self._has_said_others = False
        self._open: Optional[_OpenPoint] = None
        self._in_snapshot = False
        self._listed: set[bytes] = set()  # points that the current snapshot has listed
        self._left_out = self._of_others = 0
        # The last full replay, while a task still sends it; and the next batch number at that
        # time.
        self._everything: Callable[[], Optional[_Batches]] = lambda: None
        self._everything_at = 0
        self.place = _Event()  # the event after which the next watch continues
        self.on_batches: Callable[[], object] = lambda: None  # called after batches are added
        self._publish([AllBlocksCleared()])

    def begin_watch(self) -> None:
        """Call when a watch begins. Discards unfinished restore points and snapshots: the watch
        sends them again."""
        self._open, self._in_snapshot = None, False
        self._listed.clear()

    def take(self, event: _Event) -> bool:
        """Processes one event. If it returns false, begin a new watch at `place`."""
        if event.kind == _Event.LOST:
            self.place = _Event()
            return False
        events = self._apply(event)
        # Not inside a snapshot or a restore point: a new watch must send these from their start.
        if not self._in_snapshot and self._open is None:
            self.place = _Event(incarnation=event.incarnation, sequence=event.sequence)
        self._publish(events)
        if not self._options.fingerprint and self._has_others and not self._in_snapshot \
                and self._ledger.points == 0:  # only points of other fingerprints are left
            self._has_others = False
            self.place = _Event()
            return False
        return True

    def _apply(self, event: _Event) -> list[KvEvent]:
        if event.kind == _Event.CHUNKS:
            return self._extend(event.chunks)
        self._open = None  # its last chunks will not come
        if event.kind == _Event.START:
            self._in_snapshot = not event.resumed
        elif event.kind in (_Event.SNAPSHOT, _Event.STORED):
            if self._begin(event):
                return self._extend(event.chunks)
        elif event.kind == _Event.SNAPSHOT_END:
            # A resumed watch sends no snapshot, so points that it did not list stay.
            gone = self._ledger.keep(self._listed) if self._in_snapshot else []
            self.begin_watch()
            return gone
        elif event.kind in (_Event.EVICTED, _Event.DROPPED, _Event.QUARANTINED):
            return self._ledger.remove(event.restore_point.restore_point_id)
        return []

    def _begin(self, event: _Event) -> bool:
        point, run = event.restore_point, event.chunks
        if not event.HasField("chunks") or not self._is_ours(point.fingerprint_digest):
            return False
        if not _is_whole(run) or point.tokens > _MAX_PROMPT_TOKENS:
            return False
        self._open = _OpenPoint(PointBlocks(point.restore_point_id, run.chunk_tokens),
                                point.tokens // run.chunk_tokens, event.kind == _Event.SNAPSHOT)
        return True

    def _extend(self, run: chunk_run_pb2.ChunkRun) -> list[KvEvent]:
        if self._open is None:
            return []
        blocks, chunks = self._open.blocks, self._open.chunks
        if not _is_whole(run) or run.chunk_tokens != blocks.block_tokens \
                or run.first_chunk != len(blocks.ids) \
                or len(run.chunk_ids) > chunks - run.first_chunk:
            self._left_out += 1
            self._open = None
            return []
        blocks.ids.extend(run.chunk_ids)
        blocks.token_ids.extend(run.token_ids)
        if len(blocks.ids) < chunks:
            return []
        events = self._ledger.add(blocks)
        if events is None:
            self._left_out += 1
        elif self._open.in_snapshot:
            self._listed.add(blocks.point_id)
        self._open = None
        return events or []

    def _is_ours(self, fingerprint: bytes) -> bool:
        if fingerprint == self._fingerprint:
            return True
        wanted = self._options.fingerprint
        is_free = self._fingerprint == b"" if wanted else self._ledger.points == 0
        if is_free and fingerprint.hex().startswith(wanted):
            if self._fingerprint:
                self._say(f"no restore point of fingerprint {_digits(self._fingerprint)} is left; "
                          f"now reporting fingerprint {_digits(fingerprint)}")
            self._fingerprint = fingerprint
            self._has_others = self._has_said_others = False
            return True
        self._of_others += 1
        self._has_others = True
        if not self._in_snapshot and not self._has_said_others:
            self._has_said_others = True
            ours = _digits(self._fingerprint) if self._fingerprint else wanted
            self._say(f"a restore point of fingerprint {_digits(fingerprint)} is ignored: "
                      f"only those of {ours} are reported; --fingerprint selects others")
        return False

    def _publish(self, events: Sequence[KvEvent]) -> None:
        for payload in encode_batches(events, self._options.labels, self._now()):
            self._log.append(payload)
        if events:
            self.on_batches()

    @property
    def next_number(self) -> int:
        return self._log.next

    def since(self, number: int, most: int) -> list[KvBatch]:
        """Returns the kept batches from `number` on, at most `most`."""
        return self._log.since(number, most)

    def replay(self, number: int) -> list[KvBatch]:
        """Returns the batches for a subscriber that has all batches before `number`: the kept
        batches from `number` on or, if some of these are no longer kept, a full replay of all
        blocks. The last batch of a full replay has the last published number, and its first has
        `number` or more. If that leaves too few numbers, empty batches are published first."""
        if number >= self._log.first:
            return self._log.since(number, self._log.next - number)
        everything = self._everything()
        if everything is not None and self._everything_at == self._log.next:
            payloads = [batch.payload for batch in everything]
        else:
            payloads = encode_batches(
                itertools.chain([AllBlocksCleared()], self._ledger.everything()),
                self._options.labels, self._now())
        lacking = len(payloads) - (self._log.next - number)
        if lacking > 0:
            self._log.append_empty(lacking, encode_empty_batch(self._now()))
            self.on_batches()
        begin = self._log.next - len(payloads)
        made = _Batches(KvBatch(begin + i, payload) for i, payload in enumerate(payloads))
        self._everything, self._everything_at = weakref.ref(made), self._log.next
        return made

    def __str__(self) -> str:
        return (f"{self._ledger.blocks} blocks of {self._ledger.points} restore points; "
                f"{self._left_out} left out, {self._of_others} of other fingerprints")


def _is_whole(run: chunk_run_pb2.ChunkRun) -> bool:
    return run.chunk_tokens in _CHUNK_TOKENS and len(run.chunk_ids) > 0 \
        and len(run.token_ids) == len(run.chunk_ids) * run.chunk_tokens


def _digits(fingerprint: bytes) -> str:
    return fingerprint[:_DIGEST_BYTES].hex()
