"""EventSockets: publishes a feed's batches over ZeroMQ, and answers requests for missed batches.

A batch is [topic, number, payload]; the number has 8 bytes, big endian. A replay request is the
first number that the subscriber needs, in the same form. A replay is a series of [number, payload],
ended by the number -1 with an empty payload. When a subscriber connects, the last batch is sent
again within a second; its number shows which batches the subscriber missed.
Invariants: 1. A peer that does not read costs at most its high-water mark of batches, and delays no
other peer. 2. At most MAX_REPLAYS replays are sent at a time, and at most MAX_WAITING_REPLAYS wait;
each peer has at most one. 3. A peer's message over MAX_PEER_BYTES ends its connection.
(ZeroMQ does not limit the number of topics that a subscriber asks for.)
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Optional

import zmq
import zmq.asyncio

from hearth_cache.events._feed import EventFeed, KvBatch

MAX_PEER_BYTES = 512
MAX_REPLAYS = 4
MAX_WAITING_REPLAYS = 256
_END = b"\xff" * 8  # number -1
_AT_ONCE = 64  # batches to send before other tasks get to run
_REPEAT_PAUSE_S = 1.0
_STALL_PAUSE_S = 0.005
_REPLAY_HIGH_WATER = 64  # maximum batches in the queue of a peer that gets a replay


@dataclass(frozen=True)
class SocketOptions:
    publish: str  # tcp://ADDRESS:PORT or ipc://PATH; port *: any free port
    replay: str  # address for replays, in the same form; empty: no replays
    topic: bytes = b""
    high_water: int = 1000  # maximum batches in the queue of a subscriber
    patience_s: float = 10.0  # a replay ends if its peer reads nothing for this long


class EventSockets:
    """Publishes batches and answers replay requests over ZeroMQ. The constructor raises
    zmq.ZMQError if an address is in use or invalid; the error's text begins with the address."""

    def __init__(self, options: SocketOptions, feed: EventFeed) -> None:
        self._options, self._feed = options, feed
        self._context = zmq.asyncio.Context()
        self._next = feed.first_number
        self._changed, self._newcomer = asyncio.Event(), asyncio.Event()
        self._repeated = float("-inf")
        self._places = asyncio.Semaphore(MAX_REPLAYS)
        self._replays: dict[bytes, asyncio.Task[None]] = {}
        self._replayer: Optional[zmq.asyncio.Socket] = None
        try:
            self._publisher = self._socket(zmq.XPUB)
            self._publisher.set(zmq.SNDHWM, options.high_water)
            self._publisher.set(zmq.XPUB_VERBOSE, 1)  # report each subscription
            _bind(self._publisher, options.publish)
            if options.replay:
                self._replayer = self._socket(zmq.ROUTER)
                self._replayer.set(zmq.SNDHWM, _REPLAY_HIGH_WATER)
                self._replayer.set(zmq.RCVHWM, _REPLAY_HIGH_WATER)
                self._replayer.set(zmq.ROUTER_MANDATORY, 1)  # report when a peer's queue is full
                _bind(self._replayer, options.replay)
        except zmq.ZMQError:
            self.close()
            raise
        feed.on_batches = self._changed.set

    def _socket(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        for option, value in ((zmq.LINGER, 1000), (zmq.HANDSHAKE_IVL, 5000),
                              (zmq.TCP_MAXRT, 60_000),  # disconnects a peer that reads nothing
                              (zmq.TCP_KEEPALIVE, 1), (zmq.MAXMSGSIZE, MAX_PEER_BYTES)):
            socket.set(option, value)
        return socket

    def close(self) -> None:
        """Closes the sockets; queued batches have one second to be sent."""
        self._feed.on_batches = lambda: None
        self._context.destroy()

    @property
    def addresses(self) -> tuple[str, str]:
        """The addresses of (batches, replays) in use; an empty address: disabled."""
        return _address(self._publisher), _address(self._replayer)

    async def run(self) -> None:
        """Publishes batches and answers replay requests until cancelled."""
        self._changed.set()
        work = [self._publish_new(), self._read_subscriptions(), self._repeat_last()]
        if self._replayer is not None:
            work.append(self._read_requests(self._replayer))
        tasks = [asyncio.ensure_future(one) for one in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            ending = [*tasks, *self._replays.values()]
            for task in ending:
                task.cancel()
            await asyncio.gather(*ending, return_exceptions=True)
            while await self._publish_some():
                pass

    async def _publish_new(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            while await self._publish_some():
                await asyncio.sleep(0)

    async def _publish_some(self) -> bool:
        batches = self._feed.since(self._next, _AT_ONCE)
        for batch in batches:
            await self._publish(batch)
            self._next = batch.number + 1
            self._newcomer.clear()
        return bool(batches)

    async def _publish(self, batch: KvBatch) -> None:
        # A subscriber whose queue is full misses this batch and notices the gap in batch numbers.
        await _send(self._publisher, self._options.topic, batch.number.to_bytes(8, "big"),
                    batch.payload)

    async def _read_subscriptions(self) -> None:
        while True:
            message = (await self._publisher.recv_multipart())[0]
            if message[:1] == b"\1" and self._options.topic.startswith(message[1:]):
                self._newcomer.set()
            await asyncio.sleep(0)

    async def _repeat_last(self) -> None:
        while True:
            await self._newcomer.wait()
            await asyncio.sleep(max(0.0, self._repeated + _REPEAT_PAUSE_S - time.monotonic()))
            if self._newcomer.is_set():  # no batch was published during the pause
                self._newcomer.clear()
                for batch in self._feed.since(self._next - 1, 1):
                    await self._publish(batch)
                self._repeated = time.monotonic()

    async def _read_requests(self, replayer: zmq.asyncio.Socket) -> None:
        while True:
            # Answers only the last waiting request of each peer, because a replay can take seconds.
            requests = [await replayer.recv_multipart()]
            while len(requests) < MAX_WAITING_REPLAYS:
                try:
                    requests.append(await replayer.recv_multipart(zmq.NOBLOCK))
                except zmq.Again:
                    break
            asked = {parts[0]: int.from_bytes(parts[2], "big") for parts in requests
                     if len(parts) == 3 and not parts[1] and len(parts[2]) == 8}
            for asker, number in asked.items():
                self._begin_replay(replayer, asker, number)
            await asyncio.sleep(0)

    def _begin_replay(self, replayer: zmq.asyncio.Socket, asker: bytes, number: int) -> None:
        before = self._replays.pop(asker, None)
        if before is not None:
            before.cancel()  # the new request replaces the running replay
        if len(self._replays) < MAX_REPLAYS + MAX_WAITING_REPLAYS:
            task = asyncio.ensure_future(self._replay(replayer, asker, number))
            self._replays[asker] = task
            task.add_done_callback(lambda done: self._end_replay(asker, done))

    def _end_replay(self, asker: bytes, task: asyncio.Task[None]) -> None:
        if self._replays.get(asker) is task:
            del self._replays[asker]

    async def _replay(self, replayer: zmq.asyncio.Socket, asker: bytes, number: int) -> None:
        async with self._places:
            batches = self._feed.replay(number)
            for sent, batch in enumerate(batches):
                if not await self._answer(replayer, asker, batch.number.to_bytes(8, "big"),
                                          batch.payload):
                    return
                if sent % _AT_ONCE == 0:
                    await asyncio.sleep(0)
            await self._answer(replayer, asker, _END, b"")

    async def _answer(self, replayer: zmq.asyncio.Socket, asker: bytes, number: bytes,
                      payload: bytes) -> bool:
        """Sends one message of a replay. Returns false if the peer has disconnected or reads
        nothing."""
        until = time.monotonic() + self._options.patience_s
        while True:
            try:
                await _send(replayer, asker, b"", number, payload)
                return True
            except zmq.Again:
                if time.monotonic() >= until:
                    return False
            except zmq.ZMQError:
                return False
            await asyncio.sleep(_STALL_PAUSE_S)


async def _send(socket: Any, *parts: bytes) -> None:
    """Sends without waiting; raises zmq.Again if the queue is full."""
    await socket.send_multipart(parts, zmq.NOBLOCK)


def _bind(socket: zmq.asyncio.Socket, address: str) -> None:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        why = zmq.strerror(error.errno or 0)
        raise zmq.ZMQError(error.errno, f"{address}: {why}") from None


def _address(socket: Optional[zmq.asyncio.Socket]) -> str:
    return "" if socket is None else socket.getsockopt_string(zmq.LAST_ENDPOINT)
