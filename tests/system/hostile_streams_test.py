"""Strangers who begin calls and say no more of them, some bytes each: what a store keeps of them is
bounded, and others are served. Bounded load, on loopback; nothing is timed.

Run as: python hostile_streams_test.py BIN_DIR none.
"""

import selectors
import time

import system_support
from hostile_peer_test import LONG_S, MIB, STREAMS, Hostile, memory
from http2_peer import (DATA, END_HEADERS, HEADERS, PREFACE, SETTINGS, connect, frame)

UNFINISHED_BYTES = 32 * MIB
# gRPC keeps some 12 KiB of each, so that these are 350 MiB.
CONNECTIONS = 120


def remembered(name, value):
    """A header that the other end keeps in its table: from then on it is said in one byte."""
    return b"\x40" + b"".join(bytes([len(part)]) + part for part in (name.encode(), value.encode()))


def begun_calls(path, message=b""):
    """A connection's beginning, with as many calls as it may have."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
              ("te", "trailers"), ("content-type", "application/grpc")]
    again = bytes(0x80 | 62 + i for i in range(len(fields)))[::-1]
    out = PREFACE + frame(SETTINGS, 0, 0)
    for i in range(STREAMS):
        block = again if i else b"".join(remembered(*field) for field in fields)
        out += frame(HEADERS, END_HEADERS, 2 * i + 1, block)
        if message:
            out += frame(DATA, 0, 2 * i + 1, message)
    return out


class Streams(Hostile):

    def await_end_of_one(self, peers, store):
        """Of the connections, which the store closes once it has said why."""
        end = time.monotonic() + LONG_S
        while True:
            ready = peers.select(end - time.monotonic())
            self.assertTrue(ready and time.monotonic() < end, store.log_tail())
            for key, _ in ready:
                try:
                    if key.fileobj.recv(1 << 16) == b"":
                        return
                except ConnectionError:
                    return

    def outlive(self, said):
        store = self.cluster.store("", "--host-bytes", "32MiB", "--max-staged-bytes", "32MiB",
                                   "--unfinished-bytes", UNFINISHED_BYTES)
        most = memory(store, "VmRSS") + UNFINISHED_BYTES + 128 * MIB
        peers = selectors.DefaultSelector()
        self.addCleanup(peers.close)
        for _ in range(CONNECTIONS):
            peer = connect(store.address)
            self.addCleanup(peer.close)
            peer.send(said)
            peers.register(peer, selectors.EVENT_READ)
        self.await_end_of_one(peers, store)
        self.assertIn("messages and calls of all connections", store.log_path.read_text())
        self.cluster.ctl("stats", "--store", store.address, "--wait", "60")
        self.assertLess(memory(store, "VmHWM"), most)
        self.assertEqual(store.stop(), 0, store.log_tail())

    def test_calls_whose_message_never_comes_are_bounded(self):
        self.outlive(begun_calls("/hearth.v1.CacheStore/Stats"))

    def test_calls_that_are_grpcs_own_are_bounded(self):
        self.outlive(begun_calls("/grpc.health.v1.Health/Watch", bytes(5)))


if __name__ == "__main__":
    system_support.main("WRITE_CHECKPOINT")
