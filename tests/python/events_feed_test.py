"""The events for routers: the ledger of blocks, the log of batches, the feed."""

import gc
import random
import sys
import unittest

import python_support

try:
    import msgspec
except ImportError:
    print("skipped: msgspec is not installed")
    sys.exit(77)

from vllm_events import AllBlocksCleared, Batch, BlockRemoved, BlockStored  # noqa: E402

from hearth_cache.events import _batches, _feed, _ledger  # noqa: E402
from hearth_cache.v1 import cache_store_pb2, chunk_run_pb2  # noqa: E402

LETTER_TOKENS = 2
CHUNK_TOKENS = 16
OURS, OTHER = b"\x3f\xa9", b"other"
Event = cache_store_pb2.WatchEvent


def blocks_of(text):
    """Returns the blocks of a text: a block for each letter, with an id that depends on the letters
    before."""
    point, number = _ledger.PointBlocks(text.encode(), LETTER_TOKENS), 1
    for letter in text:
        number = (number * 31 + ord(letter)) % (1 << 62)
        point.ids.append(number)
        point.token_ids.extend([ord(letter)] * LETTER_TOKENS)
    return point


class LetterRouter:
    """A router that applies all events and checks that they are consistent."""

    def __init__(self, test):
        self.test, self.blocks = test, {}  # id: (parent, tokens)

    def apply(self, events):
        for event in events:
            if isinstance(event, _batches.BlocksStored):
                parent, each = event.parent_id, event.block_tokens
                self.test.assertTrue(parent == 0 or parent in self.blocks, "a parent comes first")
                for i, block in enumerate(event.ids):
                    self.test.assertNotIn(block, self.blocks)
                    self.blocks[block] = parent, event.token_ids[i * each:(i + 1) * each]
                    parent = block
            elif isinstance(event, _batches.BlocksRemoved):
                for block in event.ids:
                    del self.blocks[block]
                    self.test.assertNotIn(block, [parent for parent, _ in self.blocks.values()])


class Ledger(unittest.TestCase):

    def setUp(self):
        self.ledger = _ledger.BlockLedger(8)

    def add(self, text):
        events = self.ledger.add(blocks_of(text))
        self.assertIsNotNone(events)
        return events

    def remove(self, text):
        return self.ledger.remove(text.encode())

    def test_only_new_blocks_are_reported(self):
        self.assertEqual(len(self.add("ab")), 1)
        whole = blocks_of("abcd")
        self.assertEqual(self.add("abcd"), [_batches.BlocksStored(
            whole.ids[2:], whole.ids[1], [ord("c")] * 2 + [ord("d")] * 2, LETTER_TOKENS)])
        self.assertEqual(self.add("abc"), [], "others go through it already")
        self.assertEqual(self.add("abc"), [], "known")
        self.assertEqual(self.ledger.points, 3)

    def test_shared_block_outlives_one_point(self):
        for text in ("ab", "abcd", "abx"):
            self.add(text)
        self.assertEqual(self.remove("ab"), [], "others go through it")
        whole = blocks_of("abcd")
        self.assertEqual(self.remove("abcd"),
                         [_batches.BlocksRemoved([whole.ids[3], whole.ids[2]])], "the last first")
        self.assertEqual(len(self.remove("abx")[0].ids), 3)
        self.assertEqual(self.ledger.blocks, 0)
        self.assertEqual(self.remove("abx"), [])

    def test_full_ledger_does_not_change(self):
        self.add("abcdef")
        self.assertIsNone(self.ledger.add(blocks_of("xyz")))
        self.assertIsNone(self.ledger.add(blocks_of("abcdefghi")))
        self.assertNotIn(b"xyz", self.ledger)
        self.assertEqual(self.ledger.blocks, 6)
        self.add("xy")
        self.remove("abcdef")
        self.add("xyz")
        self.assertEqual(self.ledger.blocks, 3)

    def test_blocks_with_other_parent_are_refused(self):
        self.add("ab")
        other = blocks_of("xy")
        # This block id is known with another parent.
        for ids in ([other.ids[0], blocks_of("ab").ids[1]],
                    [77, 77], [77, 0], [blocks_of("ab").ids[0]] * 2):
            other.ids = ids
            self.assertIsNone(self.ledger.add(other), ids)
        self.assertEqual(self.ledger.blocks, 2)

    def test_random_changes_keep_router_exact(self):
        seed = 20261123
        source, ledger, router = random.Random(seed), _ledger.BlockLedger(1000), LetterRouter(self)
        there = set()
        for step in range(3000):
            text = "".join(source.choice("abc") for _ in range(source.randrange(1, 7)))
            choice = source.randrange(20)
            if choice == 0:
                there = {point for point in there if source.randrange(2)}
                events = ledger.keep({point.encode() for point in there})
            elif choice < 11:
                events = ledger.add(blocks_of(text))
                there.add(text)
            else:
                events = ledger.remove(text.encode())
                there.discard(text)
            router.apply(events)
            expected = {block for point in there for block in blocks_of(point).ids}
            self.assertEqual(router.blocks.keys(), expected, f"step {step} of seed {seed}")
            if step % 100 == 0:
                late = LetterRouter(self)
                late.apply(ledger.everything())
                self.assertEqual(late.blocks, router.blocks, f"step {step} of seed {seed}")


class Log(unittest.TestCase):

    def test_log_keeps_last_batches(self):
        log = _feed.BatchLog(3, 1000, 50)
        self.assertEqual(log.since(0, 10), [])
        for letter in b"abcde":
            log.append(bytes([letter]))
        self.assertEqual((log.first, log.next), (52, 55))
        self.assertEqual(log.since(0, 10), [(52, b"c"), (53, b"d"), (54, b"e")])
        self.assertEqual(log.since(53, 1), [(53, b"d")])
        self.assertEqual(len(log.since(53, 10)), 2)
        self.assertEqual(log.since(55, 10), [])
        self.assertEqual(log.since((1 << 64) - 1, 10), [])

    def test_log_limits_bytes(self):
        log = _feed.BatchLog(100, 10, 0)
        for _ in range(9):
            log.append(b"four")
        self.assertEqual((log.bytes, log.first), (8, 7))
        log.append(b"x" * 50)  # the batch exceeds the limit, but the last batch is always kept
        self.assertEqual((log.bytes, log.first), (50, 9))
        log.append(b"four")
        self.assertEqual(log.bytes, 4)

    def test_empty_batches_use_no_bytes(self):
        log = _feed.BatchLog(2, 10, 50)
        log.append(b"aaaa")
        log.append(b"bbbb")
        log.append_empty(20, b"none")
        self.assertEqual((log.first, log.next, log.bytes), (50, 72, 8))
        self.assertEqual(log.since(71, 10), [(71, b"none")])
        log.append(b"cccc")
        self.assertEqual(log.first, 51)
        log.append(b"dddd")  # the oldest batches are now the empty ones
        self.assertEqual(log.since(52, 1), [(52, b"none")])
        log.append(b"eeee")
        self.assertEqual((log.first, log.bytes), (73, 8))
        self.assertEqual(log.since(0, 1), [(73, b"dddd")])


def plain(kind, **fields):
    return Event(kind=kind, incarnation=7, **fields)


def point(kind, seed, chunks, begin=0, end=None, fingerprint=OURS):
    """Makes a watch event about a restore point of `chunks` chunks, with the chunks from `begin` to
    `end`. `seed` selects the prompt."""
    event = plain(kind)
    if kind != Event.CHUNKS:
        event.restore_point.restore_point_id = b"point %d" % seed
        event.restore_point.fingerprint_digest = fingerprint
        event.restore_point.tokens = chunks * CHUNK_TOKENS
    if kind not in (Event.EVICTED, Event.DROPPED):
        places = range(begin, chunks if end is None else end)
        event.chunks.CopyFrom(chunk_run_pb2.ChunkRun(
            chunk_tokens=CHUNK_TOKENS, first_chunk=begin,
            chunk_ids=[seed * 1000 + place for place in places],
            token_ids=[place for place in places for _ in range(CHUNK_TOKENS)]))
    return event


class FeedTest(unittest.TestCase):
    OPTIONS = {}

    def setUp(self):
        self.said, self.woken = [], 0
        self.feed = self.make(**self.OPTIONS)
        self.read = 1_000_000

    def make(self, **options):
        feed = _feed.EventFeed(_feed.FeedOptions(**options), self.said.append, lambda: 1.0)
        feed.on_batches = self.wake
        return feed

    def wake(self):
        self.woken += 1

    def take(self, event, sequence=0):
        event.sequence = sequence
        return self.feed.take(event)

    def watch(self, snapshot, sequence):
        self.feed.begin_watch()
        for event in (plain(Event.START), *snapshot, plain(Event.SNAPSHOT_END)):
            self.take(event, sequence)

    def new_events(self):
        """Returns all events since the last call."""
        events = []
        for batch in self.feed.since(self.read, 1000):
            self.assertEqual(batch.number, self.read)
            self.read += 1
            events += msgspec.msgpack.decode(batch.payload, type=Batch).events
        return events


class Feed(FeedTest):

    def test_first_event_clears_all_blocks(self):
        self.assertEqual(self.new_events(), [AllBlocksCleared()])
        self.assertEqual(self.feed.place, Event())

    def test_snapshot_then_changes_are_reported(self):
        self.new_events()
        self.watch([point(Event.SNAPSHOT, 1, 3)], 5)
        tokens = [place for place in range(3) for _ in range(CHUNK_TOKENS)]
        self.assertEqual(self.new_events(), [BlockStored(
            [1000, 1001, 1002], None, tokens, CHUNK_TOKENS, None, "CPU", None)])
        self.assertEqual((self.feed.place.incarnation, self.feed.place.sequence), (7, 5))
        self.assertEqual(self.woken, 1)
        self.take(point(Event.STORED, 2, 1), 6)
        self.take(plain(Event.DURABLE), 7)
        self.take(point(Event.EVICTED, 1, 3), 8)
        stored, removed = self.new_events()
        self.assertEqual(stored.block_hashes, [2000])
        self.assertEqual(removed, BlockRemoved([1002, 1001, 1000], "CPU"))
        self.assertEqual(self.feed.place.sequence, 8)

    def test_new_snapshot_reports_only_difference(self):
        self.watch([point(Event.SNAPSHOT, 1, 1), point(Event.SNAPSHOT, 2, 1)], 5)
        self.new_events()
        self.watch([point(Event.SNAPSHOT, 2, 1), point(Event.SNAPSHOT, 3, 1)], 1)
        self.assertEqual([event.block_hashes for event in self.new_events()], [[3000], [1000]])

    def test_resumed_watch_keeps_known_blocks(self):
        self.watch([point(Event.SNAPSHOT, 1, 3)], 5)
        self.new_events()
        self.feed.begin_watch()
        self.take(plain(Event.START, resumed=True), 5)
        self.take(point(Event.STORED, 2, 1), 6)  # this change happened while no watch ran
        self.take(plain(Event.SNAPSHOT_END), 6)
        self.assertEqual([event.block_hashes for event in self.new_events()], [[2000]])
        self.assertIn("of 2 restore points", str(self.feed))

    def test_split_point_is_reported_once_complete(self):
        self.watch([], 5)
        self.new_events()
        self.take(point(Event.STORED, 1, 5, 0, 2), 6)
        self.take(point(Event.CHUNKS, 1, 5, 2, 4), 6)
        self.assertEqual(self.new_events(), [])
        self.assertEqual(self.feed.place.sequence, 5, "cut off here, it must come again")
        self.take(point(Event.CHUNKS, 1, 5, 4, 5), 6)
        self.assertEqual(len(self.new_events()), 1)
        self.assertEqual(self.feed.place.sequence, 6)
        self.take(point(Event.STORED, 2, 5, 0, 2), 7)
        # The restore point is dropped before its last chunks came.
        self.take(point(Event.DROPPED, 2, 5), 8)
        self.take(point(Event.CHUNKS, 2, 5, 2, 5), 8)
        self.assertEqual(self.new_events(), [])
        self.assertEqual(self.feed.place.sequence, 8)

    def test_inconsistent_pieces_are_skipped(self):
        self.watch([], 5)
        self.new_events()
        self.take(point(Event.STORED, 1, 5, 0, 2), 6)
        self.take(point(Event.CHUNKS, 1, 5, 3, 5), 6)  # a gap
        # The event has more chunks than the restore point.
        self.take(point(Event.STORED, 2, 2, 0, 3), 7)
        uneven = point(Event.STORED, 3, 2)
        uneven.chunks.token_ids.pop()
        self.take(uneven, 8)
        bare = point(Event.STORED, 4, 2)
        bare.ClearField("chunks")  # the end of the restore point is not a chunk boundary
        self.take(bare, 9)
        self.assertEqual(self.new_events(), [])
        self.assertEqual(str(self.feed), "0 blocks of 0 restore points; 2 left out, 0 of other "
                                         "fingerprints")

    def test_lost_events_restart_watch(self):
        self.watch([point(Event.SNAPSHOT, 1, 1)], 5)
        self.assertFalse(self.take(plain(Event.LOST), 90))
        self.assertEqual(self.feed.place, Event())

    def test_other_fingerprints_are_not_reported(self):
        self.watch([point(Event.SNAPSHOT, 1, 1)], 5)
        self.new_events()
        self.take(point(Event.STORED, 2, 1, fingerprint=OTHER), 6)
        self.assertEqual(self.new_events(), [])
        self.assertIn("1 of other fingerprints", str(self.feed))

    def test_new_fingerprint_warns_once(self):
        self.watch([point(Event.SNAPSHOT, 1, 1),
                    point(Event.SNAPSHOT, 2, 1, fingerprint=OTHER)], 5)
        self.assertEqual(self.said, [], "the figures of a snapshot say so")
        self.take(point(Event.STORED, 3, 1, fingerprint=OTHER), 6)
        (said,) = self.said
        for word in ("6f74686572", "3fa9", "--fingerprint"):
            self.assertIn(word, said)
        self.take(point(Event.STORED, 4, 1, fingerprint=OTHER), 7)
        self.assertEqual(len(self.said), 1)

    def test_fingerprint_changes_when_empty(self):
        self.watch([point(Event.SNAPSHOT, 1, 1)], 5)
        self.assertTrue(self.take(point(Event.EVICTED, 1, 1), 6))
        self.new_events()
        self.assertTrue(self.take(point(Event.STORED, 2, 1, fingerprint=OTHER), 7))
        self.assertEqual([event.block_hashes for event in self.new_events()], [[2000]])
        self.assertIn("0 of other fingerprints", str(self.feed))
        self.assertIn("now reporting fingerprint 6f74686572", self.said[0])

    def test_ignored_fingerprint_follows_last_removal(self):
        self.watch([point(Event.SNAPSHOT, 1, 1)], 5)
        self.assertTrue(self.take(point(Event.STORED, 2, 1, fingerprint=OTHER), 6))
        self.new_events()
        self.assertFalse(self.take(point(Event.EVICTED, 1, 1), 7))
        self.assertEqual(self.feed.place, Event())
        self.assertEqual(len(self.new_events()), 1, "removed all the same")
        self.watch([point(Event.SNAPSHOT, 2, 1, fingerprint=OTHER)], 7)
        self.assertEqual([event.block_hashes for event in self.new_events()], [[2000]])
        self.assertTrue(self.take(point(Event.EVICTED, 2, 1, fingerprint=OTHER), 8),
                        "nothing was left out")

    def test_snapshot_without_matches_restarts_watch(self):
        self.watch([point(Event.SNAPSHOT, 1, 1)], 5)
        self.feed.begin_watch()
        self.take(plain(Event.START), 1)
        self.assertTrue(self.take(point(Event.SNAPSHOT, 2, 1, fingerprint=OTHER), 1))
        self.assertFalse(self.take(plain(Event.SNAPSHOT_END), 1))
        self.watch([point(Event.SNAPSHOT, 2, 1, fingerprint=OTHER)], 1)
        self.assertIn("of 1 restore points", str(self.feed))

    def test_configured_fingerprint_never_changes(self):
        feed = self.make(fingerprint="3fa9")
        feed.take(point(Event.STORED, 2, 1, fingerprint=OTHER))
        self.assertIn("only those of 3fa9", self.said[0])
        feed.take(point(Event.STORED, 1, 1))
        self.assertIn("of 1 restore points; 0 left out, 1 of other", str(feed))
        self.assertTrue(feed.take(point(Event.EVICTED, 1, 1)))
        feed.take(point(Event.STORED, 2, 1, fingerprint=OTHER))
        self.assertIn("of 0 restore points", str(feed))

    def test_replay_returns_kept_batches(self):
        self.watch([point(Event.SNAPSHOT, 1, 1)], 5)
        self.take(point(Event.STORED, 2, 1), 6)
        self.assertEqual([batch.number for batch in self.feed.replay(1_000_001)],
                         [1_000_001, 1_000_002])
        self.assertEqual(self.feed.replay(1_000_003), [])


class SmallFeed(FeedTest):
    OPTIONS = {"max_batches": 2}

    def test_replay_beyond_log_sends_everything(self):
        self.watch([point(Event.SNAPSHOT, 1, 2)], 5)
        for seed in range(2, 6):
            self.take(point(Event.STORED, seed, 1), seed + 4)
        self.take(point(Event.EVICTED, 3, 1), 10)
        for number in (0, 1_000_002):
            (batch,) = self.feed.replay(number)
            self.assertEqual(batch.number, self.feed.next_number - 1, "they continue with the next")
            cleared, *stored = msgspec.msgpack.decode(batch.payload, type=Batch).events
            self.assertEqual(cleared, AllBlocksCleared())
            self.assertEqual([len(event.block_hashes) for event in stored], [2, 1, 1, 1])

    def test_full_replay_is_shared_by_readers(self):
        for seed in range(1, 6):
            self.take(point(Event.STORED, seed, 1), seed)
        once = self.feed.replay(0)
        self.assertIs(self.feed.replay(0)[0].payload, once[0].payload)
        self.take(point(Event.STORED, 9, 1), 11)
        changed = self.feed.replay(0)
        self.assertNotEqual(changed[0].payload, once[0].payload)
        kept = self.feed._everything
        self.assertIs(kept(), changed)
        del changed
        gc.collect()
        self.assertIsNone(kept(), "nobody sends it")


class Reader:
    """A router that ignores batches whose number it has received before."""

    def __init__(self):
        self.next, self.blocks = 0, set()

    def take(self, batches):
        for number, payload in batches:
            if number < self.next:
                continue
            self.next = number + 1
            for event in msgspec.msgpack.decode(payload, type=Batch).events:
                if isinstance(event, AllBlocksCleared):
                    self.blocks.clear()
                elif isinstance(event, BlockStored):
                    self.blocks.update(event.block_hashes)
                else:
                    self.blocks.difference_update(event.block_hashes)


class TinyFeed(FeedTest):
    """Tests a feed that keeps one batch. Each of six restore points fills a batch."""

    OPTIONS = {"max_batches": 1}
    CHUNKS = _batches.MAX_BATCH_TOKENS // CHUNK_TOKENS

    def setUp(self):
        super().setUp()
        self.here = Reader()  # a router that has received all batches so far
        # Steps of 2, because the block ids of a restore point extend into the next thousand.
        for seed in range(2, 13, 2):
            self.take(point(Event.STORED, seed, self.CHUNKS), seed)
            self.here.take(self.feed.since(self.here.next, 1000))

    def evict_two(self):
        """Publishes two batches; the log keeps only the second."""
        self.take(point(Event.EVICTED, 2, self.CHUNKS), 20)
        self.take(point(Event.EVICTED, 4, self.CHUNKS), 21)

    def test_full_replay_reuses_missed_numbers(self):
        self.evict_two()
        missed = self.here.next
        everything = self.feed.replay(missed)
        self.assertGreater(len(everything), 2, "more batches than it missed")
        self.assertEqual(everything[0].number, missed)
        self.assertEqual(everything[-1].number + 1, self.feed.next_number)
        self.here.take(everything)
        self.assertEqual(len(self.here.blocks), 4 * self.CHUNKS)
        self.assertNotIn(2000, self.here.blocks)
        self.assertIn(12000, self.here.blocks)

    def test_replay_publishes_empty_batches_once(self):
        self.evict_two()
        Reader().take(self.feed.since(0, 1000))
        before, self.woken = self.feed.next_number, 0
        everything = self.feed.replay(self.here.next)
        self.assertEqual(self.woken, 1)
        self.read = before
        self.assertEqual(self.new_events(), [])
        self.assertEqual(self.read, self.feed.next_number, "without a gap")
        self.assertGreater(self.read, before)
        after = self.feed.next_number
        for number in range(before - 10, after + 1):
            self.feed.replay(number)
        self.assertEqual(self.feed.next_number, after, "however often somebody asks")
        self.assertEqual(self.woken, 1)
        self.assertEqual(everything[-1].number + 1, after)


if __name__ == "__main__":
    python_support.main()
