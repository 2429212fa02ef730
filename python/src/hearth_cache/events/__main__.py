"""The command `python -m hearth_cache.events` (see its --help)."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Any, Optional

import grpc

from hearth_cache._program import FAILED, INTERRUPTED, OK, USAGE, Parser, access_of, shown, whole
from hearth_cache.aio.store import AsyncStore
from hearth_cache.errors import HearthError
from hearth_cache.v1 import cache_store_pb2

try:
    import zmq

    from hearth_cache.events._batches import KvLabels
    from hearth_cache.events._feed import EventFeed, FeedOptions
    from hearth_cache.events._sockets import EventSockets, SocketOptions
except ImportError as missing:
    sys.exit(f"hearth_cache.events: {missing}; pip install msgspec pyzmq")

EXAMPLES = """\
  python -m hearth_cache.events                          (for routers on this host)
  python -m hearth_cache.events --topic kv@10.0.0.5@gemma-3-1b   (as llm-d names pod and model)
  python -m hearth_cache.events --zmq 'tcp://*:5557' --replay 'tcp://*:5558' --fingerprint 3fa94c21

The program runs until it is stopped. A block is a chunk (128 tokens, or the worker's
--chunk-tokens): set the router's block size to the same number. Only blocks of restore points that
end at a whole chunk are reported. A subscriber that starts late or misses batches can ask at
--replay for the missed batches or for all blocks.
ZeroMQ does not authenticate: anyone who can connect can read the tenant's prompts.
"""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 8.0
# Errors that repeat if the call is retried.
FINAL = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED,
         grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED)

Say = Callable[[str], None]


async def follow(store: AsyncStore, address: str, tenant: str, feed: EventFeed, say: Say) -> None:
    """Passes the events of the store's watch to `feed`. If the watch ends, begins a new one; if it
    ends with an error whose code is in FINAL, raises the error."""
    pause_s, said = FIRST_PAUSE_S, ""
    while True:
        try:
            feed.begin_watch()
            async with aclosing(store.watch(tenant=tenant, since=feed.place,
                                            with_chunks=True)) as events:
                async for event in events:
                    must_begin_again = not feed.take(event)
                    resumes = event.kind == cache_store_pb2.WatchEvent.START and event.resumed
                    if resumes or event.kind == cache_store_pb2.WatchEvent.SNAPSHOT_END:
                        pause_s, said = FIRST_PAUSE_S, ""
                        say(f"following {address}: {feed}")
                    if must_begin_again:
                        break
        except HearthError as error:
            if error.code in FINAL:
                raise
            if str(error) != said:
                said = str(error)
                say(f"{said}; retrying")
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


async def run(flags: argparse.Namespace) -> int:
    def say(line: str) -> None:
        print(shown(f"-- {line}"), file=sys.stderr, flush=True)

    feed = EventFeed(FeedOptions(
        KvLabels(flags.medium, flags.lora_name), flags.fingerprint, flags.max_blocks,
        flags.replay_batches, flags.replay_mib << 20), say)
    async with AsyncStore(flags.address, access=access_of(flags), retries=0) as store:
        sockets = EventSockets(SocketOptions(
            flags.zmq, "" if flags.replay == "none" else flags.replay, flags.topic.encode(),
            flags.high_water), feed)
        stopped = stop_signal()
        published, replayed = sockets.addresses
        say(f"publishing at {published}" + (f", replays at {replayed}" if replayed else ""))
        work: list[asyncio.Future[Any]] = [asyncio.ensure_future(one) for one in (
            sockets.run(), follow(store, flags.address, flags.tenant, feed, say))]
        await asyncio.wait([stopped, *work], return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            task.cancel()
        ended = await asyncio.gather(*work, return_exceptions=True)
        sockets.close()
    if sys.stderr.isatty():
        print(file=sys.stderr)  # after the terminal's ^C
    say(f"published {feed.next_number - feed.first_number} batches: {feed}")
    for error in ended:
        if isinstance(error, Exception):
            raise error
    return stopped.result()


def stop_signal() -> asyncio.Future[int]:
    """Returns a future that a signal to end the program sets to the exit code."""
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[int] = loop.create_future()

    def stop(code: int) -> None:
        if not stopped.done():
            stopped.set_result(code)

    for number, code in ((signal.SIGINT, INTERRUPTED), (signal.SIGTERM, OK)):
        loop.add_signal_handler(number, stop, code)
    return stopped


def flags_of(parser: Parser, words: Optional[Sequence[str]]) -> argparse.Namespace:
    def fingerprint(text: str) -> str:
        if not re.fullmatch("[0-9a-f]{0,64}", text):
            raise argparse.ArgumentTypeError(f"must be up to 64 digits 0-9 and a-f; got {text}")
        return text

    add = parser.add_argument
    parser.add_server("store", 7080)
    add("--tenant", default=os.environ.get("HEARTHCTL_TENANT", ""), metavar="NAME",
        help="tenant to act for (workers and administrators only) [HEARTHCTL_TENANT]")
    add("--zmq", default="tcp://127.0.0.1:5557", metavar="ADDR",
        help="address to publish events at (default: %(default)s)")
    add("--replay", default="tcp://127.0.0.1:5558", metavar="ADDR",
        help="address that serves missed batches; none: disabled (default: %(default)s)")
    add("--topic", default="", help="topic of all events; for llm-d kv@POD@MODEL")
    add("--fingerprint", default="", type=fingerprint, metavar="HEX",
        help="worker fingerprint to report, or its first digits (default: the fingerprint "
             "of the first restore point)")
    add("--lora-name", default="", metavar="NAME",
        help="name of the adapter with this fingerprint")
    add("--medium", default="CPU",
        help="medium to report for all blocks: GPU, CPU, DISK (default: %(default)s)")
    for name, usual, most, meaning in (
            ("--max-blocks", 1_000_000, 10**9, "maximum blocks to report; others are left out"),
            ("--replay-batches", 10_000, 10**7, "maximum batches to keep for --replay"),
            ("--replay-mib", 256, 1 << 20, "maximum size of these batches in MiB"),
            ("--high-water", 1000, 10**6, "maximum batches to queue for one subscriber")):
        add(name, default=usual, type=whole(1, most), metavar="N",
            help=f"{meaning} (default: {usual})")
    return parser.parse_args(words)


def main(words: Optional[Sequence[str]] = None) -> int:
    parser = Parser("hearth_cache.events",
                    "Tells routers which prefixes a store has, by vLLM's events.", EXAMPLES)
    flags = flags_of(parser, words)
    try:
        return asyncio.run(run(flags))
    except zmq.ZMQError as error:
        print(f"{parser.prog}: {shown(str(error))}", file=sys.stderr)
        return FAILED if error.errno == errno.EADDRINUSE else USAGE
    except (HearthError, OSError, ValueError) as error:
        return parser.fail(error)


if __name__ == "__main__":
    sys.exit(main())
