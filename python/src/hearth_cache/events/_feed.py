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
# Number of digest bytes of a fingerprint in log lines; --fingerprint accepts these digits.
_DIGEST_BYTES = 8

_Event = cache_store_pb2.WatchEvent


class KvBatch(NamedTuple):
    number: int
    payload: bytes


class BatchLog:
    """The last published batches, for subscribers that missed some. Batch numbers have no gaps.
    Both limits apply to batches with events. The last batch is kept even if it exceeds a limit."""

    def __init__(self, max_batches: int, max_bytes: int, first_number: int) -> None:
        self._max_batches, self._max_bytes = max_batches, max_bytes
        # Batch number: (encoded batch, whether it has events).
        self._payloads: dict[int, tuple[bytes, bool]] = {}
        self._with_events = 0
        self.first = self.next = first_number
        self.bytes = 0  # total size of the batches that have events

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
    """A restore point whose chunks have not all arrived."""

    blocks: PointBlocks
    chunks: int  # number of chunks of the restore point
    in_snapshot: bool


@dataclass(frozen=True)
class FeedOptions:
    labels: KvLabels = field(default_factory=KvLabels)
    # First hexadecimal digits of the fingerprint to report. Empty: the fingerprint of the first
    # restore point; after all its restore points are removed, the fingerprint of the next one.
    fingerprint: str = ""
    max_blocks: int = 1_000_000
    max_batches: int = 10_000  # maximum batches to keep for replays
    max_batch_bytes: int = 256 << 20


class EventFeed:
    """Turns watch events into batches. `say` receives a log line if restore points of another
    fingerprint are ignored, or if the reported fingerprint changes."""

    def __init__(self, options: FeedOptions, say: Callable[[str], object],
                 now: Callable[[], float] = time.time) -> None:
        self._options, self._say, self._now = options, say, now
        self._ledger = BlockLedger(options.max_blocks)
        self.first_number = int(now() * 1e6)
        self._log = BatchLog(options.max_batches, options.max_batch_bytes, self.first_number)
        self._fingerprint: bytes = b""  # reported digest; empty until the first restore point
        self._has_others = self._has_said_others = False
        self._open: Optional[_OpenPoint] = None
        self._in_snapshot = False
        self._listed: set[bytes] = set()  # ids of restore points in the current snapshot
        self._left_out = self._of_others = 0
        # The last full replay, while a task still sends it, and the next batch number when it was
        # made.
        self._everything: Callable[[], Optional[_Batches]] = lambda: None
        self._everything_at = 0
        self.place = _Event()  # a new watch continues after this event
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
        # Inside a snapshot or a restore point, `place` stays: a new watch must send it from its
        # start.
        if not self._in_snapshot and self._open is None:
            self.place = _Event(incarnation=event.incarnation, sequence=event.sequence)
        self._publish(events)
        # No restore point of the reported fingerprint is left: report another fingerprint.
        if not self._options.fingerprint and self._has_others and not self._in_snapshot \
                and self._ledger.points == 0:
            self._has_others = False
            self.place = _Event()
            return False
        return True

    def _apply(self, event: _Event) -> list[KvEvent]:
        if event.kind == _Event.CHUNKS:
            return self._extend(event.chunks)
        self._open = None  # an event other than CHUNKS: the open restore point stays incomplete
        if event.kind == _Event.START:
            self._in_snapshot = not event.resumed
        elif event.kind in (_Event.SNAPSHOT, _Event.STORED):
            if self._begin(event):
                return self._extend(event.chunks)
        elif event.kind == _Event.SNAPSHOT_END:
            # After a snapshot, removes the restore points that it did not list. A resumed watch
            # sends no snapshot.
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
        """Returns the batches for a subscriber that has all batches before `number`. If the log
        still has batch `number`, these are the batches from `number` on. Otherwise they are a full
        replay of all blocks, which ends with the last published batch number and begins at `number`
        or later. If there are too few numbers for the replay, empty batches are published first."""
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
