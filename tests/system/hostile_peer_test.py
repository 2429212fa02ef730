"""Attacks on a store and a worker: the server's memory stays bounded and is given back, and honest
calls are answered meanwhile. Bounded load on loopback; no times are checked.

Run as: python hostile_peer_test.py BIN_DIR WRITE_CHECKPOINT|none Store|Worker.
"""

import hashlib
import json
import os
import time
import zlib

import hostile_calls
import system_support
from hostile_calls import HALF_SENT, WORKER_HALF_SENT
from http2_peer import PING, Http2Peer, bytes_exchanged, frame
from log_waits import wait_for_log
from system_support import SystemTest

MIB = 1 << 20
# Memory that a server may use in addition to its configured limits.
BESIDE_BYTES = 256 * MIB
UNFINISHED_BYTES = 64 * MIB
MESSAGE_BYTES = 3 * MIB - 1000
CONNECTIONS, STREAMS = 6, 250
LONG_S = 240  # time limit of a wait; only a hanging process reaches it


def memory(process, field):
    """Returns the process's memory in bytes. `field`: VmRSS (now) or VmHWM (the peak)."""
    return process.status_field(field) * 1024


class Arrivals:
    """Counts the bytes of an attack that reached the server, on connections that it accepted. A
    connection counts as accepted when the server has sent something."""

    def __init__(self):
        self._arrived = {}  # {socket: bytes that reached the server}

    def look(self, attack):
        sockets = [peer.socket for peer in getattr(attack, "peers", []) if peer is not None]
        sockets += getattr(attack, "open", [])
        if getattr(attack, "socket", None) is not None:
            sockets.append(attack.socket)
        for each in sockets:
            arrived, answered = bytes_exchanged(each)
            if answered:
                self._arrived[each] = max(arrived, self._arrived.get(each, 0))

    def bytes(self):
        return sum(self._arrived.values())


# {attack: bytes that must reach the server}. The value is less than what the test sends, but more
# than a connection's first bytes. 0: the attack only connects.
LEAST_BYTES = {
    "half-sent": 8 * MIB, "connect-close": 0, "connect-silent": 0, "connect-preface": 300,
    "garbage": 4000, "tls-abandoned": 2000, "tls-half-hello": 1000, "pings": 4000,
    "settings": 4000, "many-headers": 20000, "gzip-bomb": 100000, "wrong-tokens": 2000,
    "health-flood": 2000, "parse-bombs": 4 * MIB, "trickle-publish": 4000, "trickle-read": 4000,
    "staging": 4 * MIB, "fetch-cuts": 2 * MIB, "explain-cuts": 2 * MIB, "long-leases": 4 * MIB,
    "lease-flood": 5000, "lease-endless": 5000, "list-watch": 2000,
    "prefill-ids": 2 * MIB}


class Hostile(SystemTest):
    """Checks for a store and for a worker. `honest`: a function that makes an honest call."""

    def attack(self, server, paths, limits_bytes, honest):
        """Sends incomplete messages on many streams, and reconnects when the server closes a
        connection; checks the server's memory and honest calls."""
        before = memory(server, "VmRSS")
        most = before + limits_bytes + BESIDE_BYTES
        peers, sent, closed = [], 0, 0
        for peer in [self.peer(server, paths) for _ in range(CONNECTIONS)]:
            peers.append(peer)
        end, answered = time.monotonic() + LONG_S, 0
        # Sends until the memory would exceed its bound if the server kept all bytes.
        while sent < limits_bytes + BESIDE_BYTES + 2 * UNFINISHED_BYTES:
            self.assertLess(time.monotonic(), end, f"sent {sent}, closed {closed}")
            self.assertIsNone(server.popen.poll(), server.log_tail())
            moved = any([peer.step() for peer in peers])
            for i, peer in enumerate(peers):
                if peer.ended:
                    sent += peer.sent_bytes
                    closed += 1
                    peer.close()
                    peers[i] = self.peer(server, paths)
            if closed > answered:
                honest()
                answered = closed
            self.assertLess(memory(server, "VmHWM"), most, f"sent {sent}, closed {closed}")
            if not moved:
                if sum(peer.sent_bytes for peer in peers) + sent == 0:
                    continue
                peers[0].step(0.01)
        honest()
        self.assertGreater(closed, 0)
        for peer in peers:
            peer.close()
        # After the attack, the server may keep its limits and half of BESIDE_BYTES. It must return
        # all other memory to the system.
        honest()
        while memory(server, "VmRSS") > before + limits_bytes + BESIDE_BYTES // 2:
            self.assertLess(time.monotonic(), end, server.log_tail())
            honest()
        wait_for_log(server, lambda text: "unfinished messages" in text)
        self.assertEqual(server.stop(), 0, server.log_tail())

    def peer(self, server, paths):
        peer = Http2Peer(server.address)
        self.addCleanup(peer.close)
        for i in range(STREAMS):
            peer.open(paths[i % len(paths)], MESSAGE_BYTES, MESSAGE_BYTES + 1000)
        return peer

    def wait_until_arrived(self, attack, arrivals, name, honest):
        """Waits until LEAST_BYTES arrived: an attack that did not reach the server proves
        nothing."""
        end = time.monotonic() + LONG_S
        while arrivals.bytes() < LEAST_BYTES[name]:
            self.assertLess(time.monotonic(), end, f"{name}: {arrivals.bytes()} bytes arrived")
            honest()
            attack.pump()
            arrivals.look(attack)
        if LEAST_BYTES[name] == 0:
            self.assertGreater(attack.units, 2 * attack.closed, name)

    def answered(self, peer):
        """Waits until all calls of the peer are answered, or the server closed it."""
        end = time.monotonic() + LONG_S
        while peer.streams and not peer.ended:
            self.assertLess(time.monotonic(), end)
            peer.step(0.01)

    def silent(self, server, honest, most_connections):
        """Opens more silent connections than allowed. The server must close silent connections so
        that active clients can connect."""
        peers = []
        for _ in range(3 * most_connections):
            peers.append(Http2Peer(server.address))
            self.addCleanup(peers[-1].close)
        honest()
        for peer in peers:
            peer.step()
        honest()
        wait_for_log(server, lambda text: "connection refused" in text)


class Store(Hostile):

    LIMITS = 64 * MIB + UNFINISHED_BYTES

    def store(self, *flags, **options):
        return self.cluster.store("", "--host-bytes", "32MiB", "--max-staged-bytes", "32MiB",
                                  "--unfinished-bytes", UNFINISHED_BYTES, *flags, **options)

    def honest(self, store):
        self.assertEqual(self.cluster.ctl("stats", "--store", store.address)["restore_points"], 0)

    def test_partial_requests_use_bounded_memory(self):
        store = self.store()
        self.attack(store, HALF_SENT, self.LIMITS, lambda: self.honest(store))

    def test_unauthenticated_partial_requests_are_bounded(self):
        identities = self.folder / "identities.json"
        identities.write_text(
            '{"identities": [{"name": "ops", "role": "admin", "token_sha256": '
            '"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"}]}')
        token = self.folder / "token"
        token.write_text("test")
        store = self.store("--identities-file", identities)
        def honest():
            self.cluster.ctl("stats", "--store", store.address, "--token-file", token)
        paths = ["/hearth.v1.CacheStore/Fetch", "/grpc.health.v1.Health/Check",
                 "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
        self.attack(store, paths, self.LIMITS, honest)

    def test_unix_socket_partial_requests_are_bounded(self):
        """On a unix socket, gRPC's own quota bounds memory, and may end calls of any client."""
        self.addCleanup(os.umask, os.umask(0o022))
        store = self.store("--drain-timeout", "1s", listen=f"unix:{self.folder / 'socket'}")
        # A client needs write permission on the socket. With a usual umask, only the owner has it.
        self.assertEqual((self.folder / "socket").stat().st_mode & 0o022, 0)
        most = memory(store, "VmRSS") + self.LIMITS + BESIDE_BYTES
        peers = [self.peer(store, HALF_SENT) for _ in range(CONNECTIONS)]
        end, still = time.monotonic() + LONG_S, 0
        # Sends until the memory could exceed its bound, or until the quota stops all connections.
        enough = self.LIMITS + 2 * BESIDE_BYTES
        while still < 50 and sum(peer.sent_bytes for peer in peers) < enough:
            moved = any([peer.step() for peer in peers]) or peers[0].step(0.01)
            still = 0 if moved else still + 1
            self.assertLess(time.monotonic(), end)
            self.assertLess(memory(store, "VmHWM"), most)
        for peer in peers:
            peer.close()
        self.cluster.ctl("stats", "--store", store.address, "--wait", LONG_S)

    def test_huge_announced_length_is_cut_off(self):
        store = self.store()
        peer = Http2Peer(store.address)
        self.addCleanup(peer.close)
        stream = peer.open("/hearth.v1.CacheStore/Publish", 512 * MIB, 0xffffffff)
        end = time.monotonic() + LONG_S
        while not peer.ended and not stream.closed:
            self.assertLess(time.monotonic(), end)
            self.assertLess(memory(store, "VmHWM"), self.LIMITS + BESIDE_BYTES)
            peer.step(0.01)
        self.honest(store)

    def test_ping_burst_uses_little_memory(self):
        """gRPC's own limit on pings used kilobytes for each ping that arrived in one read."""
        store = self.store()
        before, pings = memory(store, "VmRSS"), 4000
        for _ in range(8):
            peer = Http2Peer(store.address)
            self.addCleanup(peer.close)
            for _ in range(pings):
                peer.send_frame(PING, 0, 0, bytes(8))
            end = time.monotonic() + LONG_S
            while peer.pongs < pings and not peer.ended:
                self.assertLess(time.monotonic(), end)
                peer.step(0.01)
            self.assertEqual(peer.pongs, pings)
        self.assertLess(memory(store, "VmHWM"), before + 32 * MIB)
        self.honest(store)

    def test_endless_pings_close_connection(self):
        store = self.store()
        peer = Http2Peer(store.address)
        self.addCleanup(peer.close)
        end = time.monotonic() + LONG_S
        while not peer.ended:
            self.assertLess(time.monotonic(), end)
            if peer.unsent_bytes() < MIB:
                peer.send_bytes(frame(PING, 0, 0, bytes(8)) * (MIB // 17))
            peer.step(0.01)
        wait_for_log(store, lambda text: "unfinished messages of" in text)
        self.honest(store)

    def test_compressed_messages_are_not_decompressed(self):
        store = self.store()
        packer = zlib.compressobj(1, wbits=31)
        packed = b"".join([packer.compress(bytes(MIB)) for _ in range(300)] + [packer.flush()])
        for method in ("Stats", "Publish"):
            peer = Http2Peer(store.address, takes=True)
            self.addCleanup(peer.close)
            for _ in range(2):
                peer.call("/hearth.v1.CacheStore/" + method, packed,
                          [("grpc-encoding", "gzip")], compressed=True)
            self.answered(peer)
        self.assertLess(memory(store, "VmHWM"), 200 * MIB)
        self.honest(store)

    def test_silent_connections_yield_to_active(self):
        store = self.store("--max-connections", 20)
        self.silent(store, lambda: self.honest(store), 20)

    # {attack that costs the server much: units to send}. Other attacks send 40 units.
    FEW = {"parse-bombs": 8, "fetch-cuts": 6, "explain-cuts": 6, "long-leases": 20, "staging": 6}

    def test_store_survives_every_attack(self):
        """Uses one store for all attacks, so that an attack's leftovers show in the next attack."""
        identities = []
        for name in ("honest", "other"):
            (self.folder / name).write_text("token-of-" + name)
            identities.append({"name": name, "role": "tenant", "token_sha256":
                               hashlib.sha256((self.folder / name).read_bytes()).hexdigest()})
        (self.folder / "identities").write_text(json.dumps({"identities": identities}))
        (self.folder / "tenants").write_text('{"tenants": {"other": {"max_bytes": "16MiB"}}}')
        store = self.store("--max-connections", 40, "--identities-file",
                           self.folder / "identities", "--tenants-file", self.folder / "tenants")
        most = memory(store, "VmRSS") + self.LIMITS + BESIDE_BYTES
        for name, make in hostile_calls.STORE_ATTACKS.items():
            if name == "rapid-reset":  # the store alone cannot stop this attack; a proxy must
                continue
            with self.subTest(name):
                attack = make(hostile_calls.Target(store.address, "token-of-other"))
                self.addCleanup(attack.close)
                self.check_survives(store, attack, name)
                self.assertLess(memory(store, "VmHWM"), most)
        self.assertEqual(store.stop(), 0, store.log_tail())

    def check_survives(self, store, attack, name):
        units = self.FEW.get(name, 40)
        def honest():
            self.cluster.ctl("stats", "--store", store.address, "--wait", LONG_S,
                             "--token-file", self.folder / "honest")
        arrivals = Arrivals()
        for i in range(units):
            attack.unit()
            attack.pump()
            arrivals.look(attack)
            if i == units // 2:
                honest()
        for _ in range(3):
            honest()
            attack.pump()
            arrivals.look(attack)
        self.wait_until_arrived(attack, arrivals, name, honest)
        attack.close()
        honest()


class Worker(Hostile):

    def test_partial_requests_use_bounded_memory(self):
        worker = self.worker(self.model(), "none", "--unfinished-bytes", UNFINISHED_BYTES)
        ids = system_support.prompt(20, 1)
        self.attack(worker, WORKER_HALF_SENT, UNFINISHED_BYTES,
                    lambda: self.cluster.generate(worker.address, ids))

    def test_large_requests_use_bounded_memory(self):
        worker = self.worker(self.model(), "none", "--unfinished-bytes", UNFINISHED_BYTES)
        most = memory(worker, "VmRSS") + UNFINISHED_BYTES + BESIDE_BYTES
        def honest():
            self.cluster.generate(worker.address, system_support.prompt(20, 1))
        for name in ("parse-bombs", "prefill-ids", "gzip-bomb"):
            attack = hostile_calls.WORKER_ATTACKS[name](hostile_calls.Target(worker.address))
            self.addCleanup(attack.close)
            arrivals = Arrivals()
            for _ in range(12):
                attack.unit()
                attack.pump()
                arrivals.look(attack)
            honest()
            attack.pump()
            arrivals.look(attack)
            self.wait_until_arrived(attack, arrivals, name, honest)
            self.assertLess(memory(worker, "VmHWM"), most, name)
        self.assertEqual(worker.stop(), 0, worker.log_tail())

    def test_silent_connections_yield_to_active(self):
        worker = self.worker(self.model(), "none", "--max-connections", 20)
        ids = system_support.prompt(20, 1)
        self.silent(worker, lambda: self.cluster.generate(worker.address, ids), 20)


if __name__ == "__main__":
    system_support.main("WRITE_CHECKPOINT")
