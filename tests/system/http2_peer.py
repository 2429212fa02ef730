"""A client of a gRPC server that writes HTTP/2 frames by hand, to send what no gRPC library sends.

Respects the server's flow-control windows, and never waits for the server. For one thread.
"""

import errno
import select
import socket
import struct

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = (
    0, 1, 3, 4, 6, 7, 8, 9)
END_HEADERS, ACK, END_STREAM = 4, 1, 1
CANCEL = 8
INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS = 4, 3
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MOST_AT_ONCE = 16384


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        ">I", stream) + payload


def header(name, value):
    """Encodes a literal header field without indexing. REQUIRES: lengths below 127."""
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class Stream:
    """The sending side of a call: `head`, then `zeros` zero bytes. `ends`: then the stream ends."""

    def __init__(self, number, window, head, zeros, ends):
        self.number, self.window, self.zeros = number, window, zeros
        self.head, self.at = head, 0
        self.ends = ends
        self.closed = False

    def next_bytes(self, count):
        sent = self.head[self.at:self.at + count]
        self.at += len(sent)
        zeros = min(count - len(sent), self.zeros)
        self.zeros -= zeros
        return sent + bytes(zeros)

    def left(self):
        return len(self.head) - self.at + self.zeros


def connect(address):
    """Connects to "HOST:PORT" or "unix:PATH"; returns a non-blocking socket."""
    if address.startswith("unix:"):
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(address[len("unix:"):])
    else:
        host, port = address.rsplit(":", 1)
        peer = socket.create_connection((host, int(port)))
    peer.setblocking(False)
    return peer


def bytes_exchanged(peer_socket):
    """Returns (bytes that the server's kernel acknowledged, bytes received), from TCP_INFO; (0, 0)
    for a closed socket."""
    try:
        info = peer_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
    except OSError:
        return 0, 0
    return struct.unpack_from("=QQ", info, 120)


class Http2Peer:
    """One HTTP/2 connection. `takes`: opens the flow-control windows, so that the server sends
    answers, which are dropped. `sent_bytes`: bytes of messages sent. `ended`: the server has closed
    the connection."""

    def __init__(self, address, takes=False):
        self.socket = connect(address)
        self._takes = takes
        self._out, self._in = PREFACE + frame(SETTINGS, 0, 0), b""
        self._window, self._initial, self._next = 65535, 65535, 1
        self.most_streams = None
        self.streams, self.refused = {}, 0
        self.pongs = 0  # answers to pings
        self.sent_bytes, self.ended = 0, False

    def close(self):
        self.socket.close()

    def call(self, path, message, fields=(), compressed=False):
        """Begins a call with one complete message."""
        return self.open(path, 0, len(message), message, fields, True, compressed)

    def open(self, path, message_bytes, announced_bytes, message=b"", fields=(), ends=False,
             compressed=False):
        """Begins a call with a message of announced length `announced_bytes`; sends `message` and
        `message_bytes` zeros. `fields`: additional headers."""
        headers = (header(":method", "POST") + header(":scheme", "http") + header(":path", path) +
                   header(":authority", "hostile") + header("te", "trailers") +
                   header("content-type", "application/grpc") +
                   b"".join(header(name, value) for name, value in fields))
        head = bytes([compressed]) + struct.pack(">I", announced_bytes) + message
        stream = Stream(self._next, self._initial, head, message_bytes, ends)
        self._next += 2
        self._out += frame(HEADERS, END_HEADERS, stream.number, headers)
        self.streams[stream.number] = stream
        return stream

    def send_frame(self, kind, flags, stream_number, payload=b""):
        self._out += frame(kind, flags, stream_number, payload)

    def send_bytes(self, frames):
        self._out += frames

    def reset(self, stream):
        """Resets a call (RST_STREAM)."""
        if not stream.closed:
            stream.closed = True
            self.send_frame(RST_STREAM, 0, stream.number, struct.pack(">I", CANCEL))

    def unsent_bytes(self):
        return len(self._out)

    def step(self, timeout_s=0.0):
        """Reads and writes as much as possible without waiting longer than `timeout_s`. Returns
        whether bytes moved."""
        if self.ended:
            return False
        self._fill()
        readable, writable, _ = select.select([self.socket], [self.socket] if self._out else [],
                                              [], timeout_s)
        moved = False
        try:
            if readable:
                came = self.socket.recv(1 << 16)
                if not came:
                    self.ended = True
                    return True
                self._in += came
                self._take_frames()
                moved = True
            if writable:
                written = self.socket.send(self._out)
                self._out = self._out[written:]
                moved = True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EWOULDBLOCK):
                self.ended = True
                return True
        return moved

    def _fill(self):
        """Queues one DATA frame of each stream, as far as the windows allow."""
        for stream in self.streams.values():
            if len(self._out) > 1 << 20:
                return
            count = min(stream.left(), stream.window, self._window, MOST_AT_ONCE)
            if stream.closed or count <= 0:
                continue
            data = stream.next_bytes(count)
            is_last = stream.ends and stream.left() == 0
            self._out += frame(DATA, END_STREAM if is_last else 0, stream.number, data)
            stream.window -= count
            self._window -= count
            self.sent_bytes += count

    def _take_frames(self):
        while len(self._in) >= 9:
            size = struct.unpack(">I", b"\0" + self._in[:3])[0]
            if len(self._in) < 9 + size:
                return
            kind, flags = self._in[3], self._in[4]
            number = struct.unpack(">I", self._in[5:9])[0] & 0x7fffffff
            payload, self._in = self._in[9:9 + size], self._in[9 + size:]
            self._take(kind, flags, number, payload)

    def _take(self, kind, flags, number, payload):
        stream = self.streams.get(number)
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                what, value = struct.unpack(">HI", payload[at:at + 6])
                if what == INITIAL_WINDOW_SIZE:
                    for each in self.streams.values():
                        each.window += value - self._initial
                    self._initial = value
                elif what == MAX_CONCURRENT_STREAMS:
                    self.most_streams = value
            self._out += frame(SETTINGS, ACK, 0)
        elif kind == PING and flags & ACK:
            self.pongs += 1
        elif kind == PING:
            self._out += frame(PING, ACK, 0, payload)
        elif kind == DATA and self._takes and payload:
            more = struct.pack(">I", len(payload))
            self._out += frame(WINDOW_UPDATE, 0, 0, more)
            self._out += frame(WINDOW_UPDATE, 0, number, more)
        elif kind == WINDOW_UPDATE:
            more = struct.unpack(">I", payload)[0] & 0x7fffffff
            if number == 0:
                self._window += more
            elif stream is not None:
                stream.window += more
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            if stream is not None and not stream.closed:
                stream.closed = True
                self.refused += 1
                del self.streams[number]
        elif kind == GOAWAY:
            self.ended = self.ended or not self.streams
