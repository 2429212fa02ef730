"""Attacks on gRPC servers, by name. Tests run a fixed number of units of an attack; bench/attack.py
runs units at a rate.

Run as: python hostile_calls.py NAME ADDRESS [TOKEN [RATE]]. Attacks until stdin is closed, then
prints its counters as JSON.
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
from hostile_kinds import (MIB, STORE, STREAMS, WORKER, Calls, Connects, Frames, HalfSent, Leases,
                           Resets, Staging, Target, Trickle, Unread)
from http2_peer import CONTINUATION, HEADERS, PING, PREFACE, SETTINGS, frame, header


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


WORKER_HALF_SENT = [WORKER + name for name in ("Generate", "Tokenize", "Prefill", "SaveState",
                                               "LoadState")]
HALF_SENT = [STORE + name for name in ("Explain", "Fetch", "Lease", "Publish", "Pin", "Watch")]

# {name: function that makes the attack for a target}
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
    "rapid-reset": lambda t: Resets(t, STORE + "Stats"),
}
# Attacks that only a proxy in front of the server can stop (docs/security.md).
BEHIND_PROXY = ("connect-close", "tls-abandoned", "tls-half-hello", "rapid-reset")
# Attacks that can be made on a store and on a worker.
ANY = ("connect-close", "connect-silent", "connect-preface", "garbage", "tls-half-hello", "pings",
       "settings", "many-headers")
WORKER_ATTACKS = {
    "half-sent": lambda t: HalfSent(t, WORKER_HALF_SENT),
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
    """Runs the attack until stdin is closed, with at most `per_s` units a second."""
    begin = last = time.monotonic()
    due = 1.0
    while not select.select([sys.stdin], [], [], 0.002)[0]:
        attack.pump()
        now = time.monotonic()
        # Limits the burst after a delay to a tenth of a second of units.
        due = min(due + (now - last) * per_s, max(1.0, per_s / 10))
        last = now
        while due >= 1:
            attack.unit()
            due -= 1
    attack.pump()
    seconds = time.monotonic() - begin
    print(json.dumps({**attack.figures(), "seconds": seconds}), flush=True)


def main():
    kind, address = sys.argv[1].split("/"), sys.argv[2]
    table = WORKER_ATTACKS if kind[0] == "worker" else STORE_ATTACKS
    token = sys.argv[3] if len(sys.argv) > 3 else ""
    attack = table[kind[1]](Target(address, token))
    run(attack, float(sys.argv[4]) if len(sys.argv) > 4 else 10.0)
    os._exit(0)  # closes all sockets


if __name__ == "__main__":
    main()
