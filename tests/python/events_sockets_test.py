"""EventSockets with real sockets: well-behaved and misbehaving subscribers and replay clients."""

import asyncio
import errno
import sys
import threading
import unittest

import python_support

try:
    import zmq
except ImportError:
    print("skipped: pyzmq is not installed")
    sys.exit(77)

from hearth_cache.events import _feed, _sockets  # noqa: E402
from hearth_cache.v1 import cache_store_pb2, chunk_run_pb2  # noqa: E402

FIRST = 1_000_000
PATIENCE_MS = 60_000
TOPIC = b"kv@pod@model"
END = b"\xff" * 8
# Together more bytes than the kernel buffers for a connection that is not read.
MANY_LARGE, LARGE_CHUNK = 4000, 1024  # number of batches (5 KiB each), tokens of each chunk


def number_bytes(number):
    return number.to_bytes(8, "big")


def stored(seed, chunk_tokens):
    """Makes a watch event about a new restore point, which fills one batch."""
    event = cache_store_pb2.WatchEvent(kind=cache_store_pb2.WatchEvent.STORED)
    event.restore_point.restore_point_id = b"point %d" % seed
    event.restore_point.tokens = chunk_tokens
    event.restore_point.fingerprint_digest = b"f"
    event.chunks.CopyFrom(chunk_run_pb2.ChunkRun(
        chunk_tokens=chunk_tokens, chunk_ids=[seed], token_ids=[200_000] * chunk_tokens))
    return event


class Served:
    """Runs EventSockets and a feed in an event loop on another thread."""

    def __init__(self, **options):
        self._ready, self._options = threading.Event(), options
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        self._ready.wait()

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.feed = _feed.EventFeed(_feed.FeedOptions(), print, lambda: FIRST / 1e6)
        free = "tcp://127.0.0.1:*"
        sockets = _sockets.EventSockets(
            _sockets.SocketOptions(free, free, TOPIC, **self._options), self.feed)
        self.publisher, self.replayer = sockets.addresses
        running = asyncio.ensure_future(sockets.run())
        self._ready.set()
        await self._stop.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        sockets.close()

    def store(self, first, last, chunk_tokens=16):
        async def take(seed):
            self.feed.take(stored(seed, chunk_tokens))
        for seed in range(first, last + 1):
            asyncio.run_coroutine_threadsafe(take(seed), self._loop).result()

    def close(self):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class SocketsTest(unittest.TestCase):

    def setUp(self):
        self.context = zmq.Context()
        self.addCleanup(self.context.destroy, 0)

    def serve(self, **options):
        self.served = Served(**options)
        self.addCleanup(self.served.close)

    def peer(self, kind, address):
        peer = self.context.socket(kind)
        peer.set(zmq.RCVTIMEO, PATIENCE_MS)
        peer.connect(address)
        self.addCleanup(peer.close, 0)  # closed at the end of the test, not earlier
        return peer

    def subscriber(self, topic=b""):
        peer = self.peer(zmq.SUB, self.served.publisher)
        peer.set(zmq.SUBSCRIBE, topic)
        return peer

    def asker(self):
        return self.peer(zmq.DEALER, self.served.replayer)

    def answer(self, asker):
        """Reads a replay; returns its batch numbers."""
        numbers = []
        while True:
            empty, number, payload = asker.recv_multipart()
            self.assertEqual(empty, b"")
            if number == END:
                self.assertEqual(payload, b"")
                return numbers
            numbers.append(int.from_bytes(number, "big"))

    def ask(self, asker, number):
        asker.send_multipart([b"", number_bytes(number)])
        return self.answer(asker)

    def test_subscriber_gets_last_batch_first(self):
        self.serve()
        subscriber = self.subscriber(b"kv@")
        last = subscriber.recv_multipart()
        self.assertEqual(last, [TOPIC, number_bytes(FIRST),
                                self.served.feed.since(FIRST, 1)[0].payload])
        self.served.store(1, 20)
        parts = subscriber.recv_multipart()
        if parts == last:  # a batch published during the subscription is received twice
            parts = subscriber.recv_multipart()
        for number in range(FIRST + 1, FIRST + 21):
            self.assertEqual(parts[1], number_bytes(number))
            if number < FIRST + 20:
                parts = subscriber.recv_multipart()

    def test_missed_batches_can_be_requested(self):
        self.serve()
        self.served.store(1, 100)
        asker = self.asker()
        self.assertEqual(self.ask(asker, FIRST + 90), list(range(FIRST + 90, FIRST + 101)))
        self.assertEqual(self.ask(asker, FIRST + 101), [], "nothing is missing")
        self.assertEqual(len(self.ask(asker, 0)), 1, "everything, in one batch")

    def test_long_replay_arrives_whole(self):
        self.serve()
        self.served.store(1, 3000)
        self.assertEqual(self.ask(self.asker(), FIRST), list(range(FIRST, FIRST + 3001)))

    def test_malformed_request_is_not_answered(self):
        self.serve()
        self.served.store(1, 1)
        good = self.asker()
        for garbage in ([b"", number_bytes(FIRST), b"more"], [b"x", number_bytes(FIRST)],
                        [number_bytes(FIRST)], [b"", b"short"], [b"", b""],
                        [b"", number_bytes(FIRST), b"a", b"b", b"c", b"d"]):
            bad = self.asker()
            self.assertEqual(self.ask(bad, FIRST + 2), [], "it is connected")
            bad.send_multipart(garbage)
            for _ in range(3):  # three requests give the server time to answer the garbage
                self.assertEqual(len(self.ask(good, FIRST)), 2)
            self.assertEqual(self.ask(bad, FIRST + 1), [FIRST + 1], "of its request alone")
        self.asker().send_multipart([b"", b"x" * 2 * _sockets.MAX_PEER_BYTES])
        self.assertEqual(len(self.ask(good, FIRST + 1)), 1)

    def test_unread_replays_are_abandoned(self):
        self.serve(patience_s=0.02)
        self.served.store(1, MANY_LARGE, LARGE_CHUNK)
        deaf = [self.asker() for _ in range(2 * _sockets.MAX_REPLAYS)]
        for asker in deaf:
            asker.send_multipart([b"", number_bytes(FIRST)])
        for asker in deaf:  # the second half gets a replay after the first half
            self.assertTrue(asker.poll(PATIENCE_MS))
        for asker in deaf * 3:
            asker.send_multipart([b"", number_bytes(FIRST)])
        self.assertEqual(len(self.ask(self.asker(), FIRST + MANY_LARGE)), 1)

    def next_number(self, peer):
        """Publishes until the peer receives a batch, and returns the batch's number. The peer may
        have missed earlier batches because its queue was full."""
        for _ in range(6000):
            if peer.poll(PATIENCE_MS // 6000):
                return int.from_bytes(peer.recv_multipart()[1], "big")
            self.seed += 1
            self.served.store(self.seed, self.seed)
        raise AssertionError("nothing came")

    def test_slow_subscriber_delays_no_other(self):
        self.serve(high_water=10)
        deaf = self.subscriber()
        self.assertEqual(len(deaf.recv_multipart()), 3)
        self.served.store(1, MANY_LARGE, LARGE_CHUNK)
        self.seed = MANY_LARGE
        newcomer = self.subscriber()
        while self.next_number(newcomer) < FIRST + MANY_LARGE:
            pass
        received, number = 0, 0
        while number <= FIRST + MANY_LARGE:
            number = self.next_number(deaf)
            received += 1
            self.seed += 1
            # A peer whose queue has room receives new batches again.
            self.served.store(self.seed, self.seed)
        self.assertLess(received, number - FIRST)

    def test_unusable_address_is_refused(self):
        self.serve()

        async def errno_of(address):
            feed = _feed.EventFeed(_feed.FeedOptions(), print)
            with self.assertRaises(zmq.ZMQError) as caught:
                _sockets.EventSockets(_sockets.SocketOptions(address, ""), feed)
            self.assertIn(address, str(caught.exception))
            return caught.exception.errno

        self.assertEqual(asyncio.run(errno_of(self.served.publisher)), errno.EADDRINUSE)
        self.assertEqual(asyncio.run(errno_of("localhost 5557")), errno.EINVAL)


if __name__ == "__main__":
    python_support.main()
