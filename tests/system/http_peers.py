"""Clients of an HTTP server that send raw bytes, for http_attacks.py.

They never wait for the server. For one thread.
"""

import collections
import select
import socket
import struct
import time

from hostile_kinds import MIB, Attack

MOST_AT_ONCE = MIB  # maximum number of bytes that one connection transfers in a turn
TURN_S = 0.05  # processor time that one turn over all connections may use
IP_BIND_ADDRESS_NO_PORT = 24

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"  # interim answer by which the server detects hang-ups
STATUS_BYTES = 4 * len(CONTINUE)


class Throttle:
    """Limits this process to `share` of one core, by its own processor time. After a pause, it may
    use at most 50 ms without waiting."""

    def __init__(self, share):
        self._share, self._credit = share, 0.0
        self._now, self._used = time.monotonic(), time.process_time()
        self._first_used = self._used

    def used_s(self):
        """Returns the processor time since the start."""
        return time.process_time() - self._first_used

    def rest(self):
        now, used = time.monotonic(), time.process_time()
        self._credit += (now - self._now) * self._share - (used - self._used)
        self._credit = min(self._credit, TURN_S)
        self._now, self._used = now, used
        if self._credit < 0:
            select.select([], [], [], -self._credit / self._share)


class Request:
    """The bytes that one connection sends. `parts`: byte strings in order; with `endless`, this
    string is then repeated forever. `reads`: the client reads the answer. `ending`, after the last
    part: "" waits for the server, "half" closes the sending side, "close" the connection."""

    def __init__(self, *parts, reads=True, ending="", endless=None):
        self.parts = iter(parts) if endless is None else endless_parts(parts, endless)
        self.reads, self.ending = reads, ending


def endless_parts(first, again):
    yield from first
    while True:
        yield again


class Caller:
    """One connection, with its request."""

    def __init__(self, request, address, source, small_window):
        self.request, self.out, self.first_bytes, self.is_sent = request, b"", b"", False
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        if small_window:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind((source, 0))
        try:
            self.socket.connect(address)
        except BlockingIOError:
            pass

    def events(self):
        return (select.EPOLLRDHUP | (select.EPOLLIN if self.request.reads else 0) |
                (0 if self.is_sent else select.EPOLLOUT))

    def send(self):
        """Sends until the socket accepts no more bytes. False: the connection is done."""
        moved = 0
        while moved < MOST_AT_ONCE:
            if not self.out:
                part = next(self.request.parts, None)
                if part is None:
                    return self.finish()
                self.out = memoryview(part)
            try:
                sent = self.socket.send(self.out)
            except BlockingIOError:
                return True
            moved += sent
            self.out = self.out[sent:]
        return True

    def finish(self):
        """Called after the last part. False: close the connection."""
        self.is_sent = True
        if self.request.ending == "half":
            self.socket.shutdown(socket.SHUT_WR)
        return self.request.ending != "close"

    def take(self):
        """Reads available bytes. False: the server closed the connection."""
        try:
            data = self.socket.recv(256 << 10)
        except BlockingIOError:
            return True
        if len(self.first_bytes) < STATUS_BYTES:
            self.first_bytes += data[:STATUS_BYTES]
        return data != b""

    def status(self):
        """Returns the status of the first answer; 0 if there was none. 100 Continue is skipped."""
        head = self.first_bytes
        while head.startswith(CONTINUE):
            head = head[len(CONTINUE):]
        return int(head[9:12]) if head[9:12].isdigit() else 0

    def close(self, resets):
        """Closes the socket. `resets`: with RST, which avoids TIME_WAIT on this side."""
        if resets:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()


class Exchanges(Attack):
    """Keeps at most `slots` connections; `make()` returns the request of a new one. `leaves_s`: a
    client that does not read disconnects this long after it has sent its request."""

    def __init__(self, target, make, slots=4, small_window=False, leaves_s=None, to_pages=False):
        super().__init__(target)
        self.make, self.slots, self.small_window = make, slots, small_window
        self.leaves_s, self.address = leaves_s, target.pages if to_pages else target.http
        self.callers, self.sent_at = {}, collections.OrderedDict()
        self.statuses, self.epoll = collections.Counter(), select.epoll()

    def unit(self):
        if len(self.callers) >= self.slots:
            return
        self.units += 1
        try:
            caller = Caller(self.make(), self.address, self.target.source, self.small_window)
        except OSError:
            self.unconnected += 1
            return
        self.callers[caller.socket.fileno()] = caller
        self.epoll.register(caller.socket, caller.events())

    def pump(self):
        end = time.process_time() + TURN_S
        for number, events in self.epoll.poll(0):
            self.turn(self.callers[number], events)
            if time.process_time() > end:
                break
        while self.sent_at and next(iter(self.sent_at.values())) < time.monotonic():
            self.forget(self.callers[next(iter(self.sent_at))])
        self.target.throttle.rest()

    def turn(self, caller, events):
        number = caller.socket.fileno()
        try:
            was_sent = caller.is_sent
            is_open = not events & select.EPOLLIN or caller.take()
            if is_open and events & select.EPOLLOUT:
                is_open = caller.send()
            if events & (select.EPOLLERR | select.EPOLLHUP):
                is_open = False
            elif events & select.EPOLLRDHUP and not caller.request.reads:
                is_open = False
        except ConnectionRefusedError:
            self.unconnected += 1
            return self.forget(caller)
        except OSError:
            is_open = False
        if not is_open:
            return self.forget(caller)
        if caller.is_sent != was_sent:
            self.epoll.modify(number, caller.events())
            if self.leaves_s is not None and not caller.request.reads:
                self.sent_at[number] = time.monotonic() + self.leaves_s

    def forget(self, caller):
        number = caller.socket.fileno()
        self.closed += 1
        if caller.request.reads:
            self.statuses[caller.status()] += 1
        self.sent_at.pop(number, None)
        del self.callers[number]
        caller.close(resets=caller.request.ending != "close")

    def figures(self):
        return {**super().figures(), "statuses": dict(self.statuses),
                "used_s": self.target.throttle.used_s()}

    def close(self):
        for caller in list(self.callers.values()):
            self.forget(caller)


class Sips(Exchanges):
    """Clients that read their answers very slowly: 16 bytes each second."""

    SIP_BYTES, EACH_S = 16, 1.0
    sip_at = 0.0

    def pump(self):
        super().pump()
        if time.monotonic() < self.sip_at:
            return
        self.sip_at = time.monotonic() + self.EACH_S
        for caller in list(self.callers.values()):
            try:
                caller.socket.recv(self.SIP_BYTES)
            except BlockingIOError:
                pass
            except OSError:
                self.forget(caller)
