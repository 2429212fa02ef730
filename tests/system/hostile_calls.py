"""Hostile callers, each doing one thing again and again: for tests, which count, and for
bench/attack.py, which gives them a rate.

Run as: python hostile_calls.py NAME ADDRESS [TOKEN [RATE]]: until its input is closed; prints what
it did, as JSON.
"""

import json
import os
import random
import select
import ssl
import struct
import sys
import time
import zlib

import hostile_messages as say
from http2_peer import (CONTINUATION, HEADERS, PING, PREFACE, SETTINGS, Http2Peer, connect, frame,
                        header)

STORE, WORKER = "/hearth.v1.CacheStore/", "/hearth.v1.Inference/"
MIB = 1 << 20
STREAMS = 250  # a server takes 256 on a connection


class Target:
    """Where a server is, and what its caller has: the token of a tenant, or none."""

    def __init__(self, address, token=""):
        self.address, self.token = address, token

    def fields(self):
        return [("authorization", "Bearer " + self.token)] if self.token else []


class Attack:
    """unit: once more. pump: goes on with what is open. Neither waits for the server."""

    def __init__(self, target):
        self.target, self.units, self.closed = target, 0, 0

    def unit(self):
        self.units += 1

    def pump(self):
        pass

    def close(self):
        pass


class Peers(Attack):
    """On a few connections, made again where the server closed them."""

    connections, takes = 4, True

    def __init__(self, target):
        super().__init__(target)
        self.peers = [None] * self.connections

    def peer(self):
        at = self.units % self.connections
        self.units += 1
        if self.peers[at] is None or self.peers[at].ended:
            self.forget(at)
            try:
                self.peers[at] = self.begin(Http2Peer(self.target.address, self.takes))
            except OSError:
                return None
        return self.peers[at]

    def begin(self, peer):
        return peer

    def forget(self, at):
        if self.peers[at] is not None:
            self.closed += 1
            self.peers[at].close()
        self.peers[at] = None

    def pump(self):
        for peer in self.peers:
            while peer is not None and peer.step():
                pass

    def close(self):
        for peer in self.peers:
            if peer is not None:
                peer.close()


class Calls(Peers):
    """Whole calls; at most `most_open` of a connection unanswered."""

    def __init__(self, target, calls, most_open=4, fields=None, packed=False):
        super().__init__(target)
        self.calls, self.most_open, self.packed = calls, most_open, packed
        self.fields = target.fields() if fields is None else fields

    def unit(self):
        peer = self.peer()
        if peer is None or len(peer.streams) >= self.most_open:
            return
        path, message = self.calls[self.units % len(self.calls)]
        peer.call(path, message() if callable(message) else message, self.fields, self.packed)


class HalfSent(Peers):
    """A stream more whose message never becomes whole."""

    def __init__(self, target, paths):
        super().__init__(target)
        self.paths = paths

    def unit(self):
        peer = self.peer()
        if peer is not None and len(peer.streams) < STREAMS:
            size = say.MESSAGE_BYTES - 1000
            peer.open(self.paths[self.units % len(self.paths)], size, size + 1000,
                      fields=self.target.fields())


class Resets(Peers):
    """Calls that are given up as they begin."""

    def __init__(self, target, path):
        super().__init__(target)
        self.path = path

    def unit(self):
        peer = self.peer()
        for _ in range(50 if peer is not None and peer.unsent_bytes() < MIB else 0):
            peer.reset(peer.call(self.path, b"", self.target.fields()))
        if peer is not None:
            peer.streams.clear()


class Leases(Peers):
    """A lease more, on a prompt of its own; the oldest is given up when as many are open as may."""

    def unit(self):
        peer = self.peer()
        if peer is None or peer.unsent_bytes() > MIB:
            return
        if len(peer.streams) >= STREAMS // self.connections:
            peer.reset(peer.streams.pop(next(iter(peer.streams))))
        tokens = range(self.units, self.units + 200)
        peer.call(STORE + "Lease", say.lease(say.prefix(tokens)), self.target.fields())


class Trickle(Peers):
    """Publishes, each of which says a byte more in a unit."""

    def __init__(self, target, streams=64):
        super().__init__(target)
        self.begin_message = say.publish_begin(range(say.CHUNK_TOKENS), 1, say.fingerprint())
        self.each = streams // self.connections

    def unit(self):
        peer = self.peer()
        if peer is None:
            return
        if len(peer.streams) < self.each:
            head = self.begin_message + b"\0" + struct.pack(">I", MIB)
            peer.open(STORE + "Publish", 0, len(self.begin_message), head, self.target.fields())
        for stream in peer.streams.values():
            stream.zeros += 1


class Unread(Peers):
    """Calls whose answers nobody takes."""

    takes = False

    def __init__(self, target, path, message, each=16):
        super().__init__(target)
        self.path, self.message, self.each = path, message, each

    def unit(self):
        peer = self.peer()
        if peer is not None and len(peer.streams) < self.each:
            peer.call(self.path, self.message, self.target.fields())


class Staging(Peers):
    """Publishes of a large slice, of which the last piece never comes."""

    def __init__(self, target, each=4):
        super().__init__(target)
        model = say.fingerprint(kv_heads=4, head_dim=4096)  # slices of 16 MiB
        begin = say.publish_begin(range(say.CHUNK_TOKENS), 1, model)
        pieces = [say.publish_piece(at * MIB, bytes(MIB)) for at in range(15)]
        self.begin_bytes, self.each = len(begin), each
        self.messages = begin + b"".join(b"\0" + struct.pack(">I", len(m)) + m for m in pieces)

    def unit(self):
        peer = self.peer()
        if peer is None:
            return
        if len(peer.streams) >= self.each:
            peer.reset(next(iter(peer.streams.values())))
            peer.streams.pop(next(iter(peer.streams)))
        peer.open(STORE + "Publish", 0, self.begin_bytes, self.messages, self.target.fields())


class Connects(Attack):
    """A connection more, which says `first` and nothing else; the last `keep` stay open."""

    def __init__(self, target, first=b"", keep=0):
        super().__init__(target)
        self.first, self.keep, self.open = first, keep, []

    def unit(self):
        self.units += 1
        try:
            peer = connect(self.target.address)
            self.open.append(peer)
            first = self.first() if callable(self.first) else self.first
            if first:
                peer.send(first)
        except OSError:
            self.closed += 1
        while len(self.open) > self.keep:
            self.open.pop(0).close()

    def close(self):
        for peer in self.open:
            peer.close()


class Frames(Attack):
    """Frames that are no message, of which the answers stay unread."""

    def __init__(self, target, frames, first=b""):
        super().__init__(target)
        self.frames, self.first, self.socket, self.out = frames, first, None, b""

    def unit(self):
        self.units += 1
        if len(self.out) < MIB:
            self.out += self.frames
        self.pump()

    def pump(self):
        try:
            if self.socket is None:
                self.socket = connect(self.target.address)
                self.out = PREFACE + frame(SETTINGS, 0, 0) + self.first + self.frames
            if select.select([], [self.socket], [], 0)[1]:
                self.out = self.out[self.socket.send(self.out):]
        except OSError:
            self.closed += 1
            self.close()

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket = None


def client_hello():
    hello = ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.set_alpn_protocols(["h2"])
    try:
        context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return hello.read()


def gzip_of_zeros(mib):
    packer = zlib.compressobj(1, wbits=31)
    return b"".join([packer.compress(bytes(MIB)) for _ in range(mib)] + [packer.flush()])


def garbage():
    source = random.Random(1)
    starts = [b"", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", PREFACE, PREFACE[:10]]
    return lambda: source.choice(starts) + source.randbytes(source.randrange(1, 2000))


def wrong_tokens():
    return [("authorization", "Bearer " + random.Random(1).randbytes(30).hex())]


def many_headers(target):
    begun = frame(HEADERS, 0, 1, header(":method", "POST") + header(":path", "/"))
    more = b"".join(header(f"x-{i}", "y" * 100) for i in range(100))
    return Frames(target, frame(CONTINUATION, 0, 1, more), begun)


def repeated(word):
    return (word * (2 * MIB // len(word)))[:2 * MIB]


def parse_bombs():
    return [(STORE + "Explain", say.explain(say.empty_fields())),
            (STORE + "Fetch", say.fetch(say.empty_fields())),
            (STORE + "Lease", say.lease(say.empty_fields())),
            (STORE + "Quarantine", say.fetch(say.empty_fields())),
            (STORE + "Stats", say.integer(15, 1) * say.EMPTY_ELEMENTS),
            (STORE + "Pin", say.integer(15, 1) * say.EMPTY_ELEMENTS),
            (STORE + "List", say.integer(15, 1) * say.EMPTY_ELEMENTS),
            (STORE + "Publish", field_of_begin(say.field(3, b"") * say.EMPTY_ELEMENTS))]


def field_of_begin(content):
    return say.field(1, content)


HALF_SENT = [STORE + name for name in ("Explain", "Fetch", "Lease", "Publish", "Pin", "Watch")]

# name: what does it, of a target.
STORE_ATTACKS = {
    "half-sent": lambda t: HalfSent(t, HALF_SENT),
    "connect-close": Connects,
    "connect-silent": lambda t: Connects(t, keep=800),
    "connect-preface": lambda t: Connects(t, PREFACE + frame(SETTINGS, 0, 0), keep=800),
    "garbage": lambda t: Connects(t, garbage(), keep=10),
    "tls-abandoned": lambda t: Connects(t, client_hello(), keep=200),
    "tls-half-hello": lambda t: Connects(t, client_hello()[:100], keep=200),
    "pings": lambda t: Frames(t, frame(PING, 0, 0, bytes(8)) * 100),
    "settings": lambda t: Frames(t, frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 65535)) * 100),
    "many-headers": many_headers,
    "gzip-bomb": lambda t: Calls(t, [(STORE + "Stats", gzip_of_zeros(300))], 2,
                                 t.fields() + [("grpc-encoding", "gzip")], True),
    "wrong-tokens": lambda t: Calls(t, [(STORE + "Stats", b"")], 64, wrong_tokens()),
    "health-flood": lambda t: Calls(t, [("/grpc.health.v1.Health/Check", b""),
                                        ("/grpc.health.v1.Health/Watch", b""),
                                        ("/no.such.Service/Call", b"")], 64),
    "parse-bombs": lambda t: Calls(t, parse_bombs(), 4),
    "trickle-publish": Trickle,
    "trickle-read": lambda t: Unread(t, STORE + "Fetch", say.fetch(say.prefix(
        range(1000, 1000 + say.CHUNK_TOKENS + 1), (), say.fingerprint(16, 4, 256)))),
    "staging": Staging,
    "fetch-cuts": lambda t: Calls(t, [(STORE + "Fetch", say.fetch(say.long_prefix(
        say.MOST_CUTS)))], 4),
    "explain-cuts": lambda t: Calls(t, [(STORE + "Explain", say.explain(say.long_prefix(
        say.MOST_CUTS)))], 4),
    "long-leases": lambda t: Calls(t, [(STORE + "Lease", say.lease(say.long_prefix(0)))], STREAMS),
    "lease-flood": lambda t: Calls(t, [(STORE + "Lease", say.lease(say.prefix(range(200))))], 200),
    "lease-endless": Leases,
    "list-watch": lambda t: Calls(t, [(STORE + "List", b""), (STORE + "Watch", b"")], 100),
    # Last: who does it waits at the door for a while.
    "rapid-reset": lambda t: Resets(t, STORE + "Stats"),
}
# What needs no method of the store's.
ANY = ("connect-close", "connect-silent", "connect-preface", "garbage", "tls-half-hello", "pings",
       "settings", "many-headers")
WORKER_ATTACKS = {
    "half-sent": lambda t: HalfSent(t, [WORKER + n for n in ("Generate", "Tokenize", "Prefill")]),
    "tokenize-words": lambda t: Calls(t, [(WORKER + "Tokenize", say.text_prompt(repeated(
        "the keeper of the lamp ")))], 4),
    "tokenize-word": lambda t: Calls(t, [(WORKER + "Tokenize", say.text_prompt(repeated(
        "lighthousekeeper")))], 4),
    "prefill-ids": lambda t: Calls(t, [(WORKER + "Prefill", say.ids_prompt(
        [i % 9 for i in range(say.MANY_TOKENS)]))], 4),
    "parse-bombs": lambda t: Calls(t, [(WORKER + n, say.empty_parts()) for n in (
        "Tokenize", "Generate", "Prefill", "Explain")], 4),
    "wrong-tokens": lambda t: Calls(t, [(WORKER + "GetModel", b"")], 64, wrong_tokens()),
    "health-flood": STORE_ATTACKS["health-flood"],
    **{name: STORE_ATTACKS[name] for name in ANY},
    "gzip-bomb": lambda t: Calls(t, [(WORKER + "Tokenize", gzip_of_zeros(300))], 2,
                                 t.fields() + [("grpc-encoding", "gzip")], True),
    "rapid-reset": lambda t: Resets(t, WORKER + "Generate"),
}


def run(attack, per_s):
    """Until the input is closed, never more than `per_s` units a second."""
    begin = last = time.monotonic()
    due = 1.0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        attack.pump()
        now = time.monotonic()
        # What was missed by more than a tenth of a second is not caught up with.
        due = min(due + (now - last) * per_s, max(1.0, per_s / 10))
        last = now
        while due >= 1:
            attack.unit()
            due -= 1
    attack.pump()
    seconds = time.monotonic() - begin
    print(json.dumps({"units": attack.units, "closed": attack.closed, "seconds": seconds}),
          flush=True)


def main():
    kind, address = sys.argv[1].split("/"), sys.argv[2]
    table = WORKER_ATTACKS if kind[0] == "worker" else STORE_ATTACKS
    token = sys.argv[3] if len(sys.argv) > 3 else ""
    attack = table[kind[1]](Target(address, token))
    run(attack, float(sys.argv[4]) if len(sys.argv) > 4 else 10.0)
    os._exit(0)  # the sockets go with it


if __name__ == "__main__":
    main()
