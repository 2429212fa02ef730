"""`python -m hearth_cache.events` with a real store and worker, and routers that subscribe."""

import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import time

import python_support
from python_support import CHUNK_TOKENS, PACKAGE, ROOT, PythonTest, prompt

try:
    from router import LONG_S, Router
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

PROMPT_TOKENS = 150
LAST_CHUNK = (PROMPT_TOKENS - 1) // CHUNK_TOKENS * CHUNK_TOKENS
TOPIC = "kv@127.0.0.1@tiny"
MEMORY_BOUND_MIB = 100
CONNECTIONS = 10000


class Bridge:
    """A running `python -m hearth_cache.events`, on free ports."""

    def __init__(self, store, *flags):
        self.popen = subprocess.Popen(
            [sys.executable, "-B", "-m", "hearth_cache.events", "--store", store,
             "--zmq", "tcp://127.0.0.1:*", "--replay", "tcp://127.0.0.1:*", "--topic", TOPIC,
             *map(str, flags)], stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(PACKAGE)})
        line = self.popen.stderr.readline()
        words = line.replace(",", "").split()
        assert words[:3] == ["--", "publishing", "at"], line
        self.publisher, self.replayer = words[3], words[6]

    def wait_for_line(self, part):
        until = time.monotonic() + LONG_S
        line = None
        for line in self.popen.stderr:
            if part in line:
                return line
            if time.monotonic() > until:
                break
        raise AssertionError(f"no line \"{part}\", the last was {line}")

    def memory_mib(self, what="VmHWM"):
        status = pathlib.Path(f"/proc/{self.popen.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines()
                    if line.startswith(what))

    def stop(self, how=signal.SIGTERM):
        self.popen.send_signal(how)
        _, rest = self.popen.communicate(timeout=LONG_S)
        return self.popen.returncode, rest

    def kill(self):
        self.popen.kill()
        self.popen.wait()
        self.popen.stderr.close()


class RoutersTest(PythonTest):

    def bridge(self, store, *flags):
        bridge = Bridge(store.address, *flags)
        self.addCleanup(bridge.kill)
        return bridge

    def router(self, bridge):
        router = Router(bridge.publisher, bridge.replayer)
        self.addCleanup(router.close)
        return router


class RoutersOnWorker(RoutersTest):

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "store")
        self.worker = self.worker(self.model(), self.store.address)

    def publish(self, seed, tokens=PROMPT_TOKENS):
        ids = prompt(tokens, seed)
        self.cluster.generate(self.worker.address, ids, "--wait-published")
        return ids

    def cached(self, ids):
        return self.cluster.generate(self.worker.address, ids, "--cache", "read")["cached_tokens"]

    def test_worker_restores_what_router_expects(self):
        bridge = self.bridge(self.store)
        router = self.router(bridge)
        ids = self.publish(1)
        router.wait_for(lambda: router.matched_tokens(ids) == LAST_CHUNK)
        self.assertEqual(self.cached(ids), LAST_CHUNK)
        other = prompt(PROMPT_TOKENS, 2)
        self.assertEqual(router.matched_tokens(other), 0)

        self.cluster.ctl("drop", "--all", "--store", self.store.address)
        router.wait_for(lambda: not router.blocks)
        self.assertEqual(self.cached(ids), 0)
        code, said = bridge.stop()
        self.assertEqual(code, 0)
        self.assertIn("0 left out", said)

    def test_interrupted_bridge_exits_130(self):
        bridge = self.bridge(self.store)
        self.assertEqual(bridge.stop(signal.SIGINT)[0], 130)

    def test_ignored_fingerprint_is_logged(self):
        bridge = self.bridge(self.store, "--fingerprint", "0" * 64)
        bridge.wait_for_line("following")
        self.publish(1)
        line = bridge.wait_for_line("is ignored")
        self.assertIn("only those of 0000", line)
        self.assertIn("--fingerprint", line)

    def test_late_router_knows_all_blocks(self):
        first = self.publish(1)
        bridge = self.bridge(self.store, "--replay-batches", 2)
        early = self.router(bridge)
        early.wait_for(lambda: early.matched_tokens(first) == LAST_CHUNK)
        prompts = [self.publish(seed) for seed in range(2, 6)]
        # When the early router has all batches, the bridge sends no more batches, so the late
        # router must ask for all blocks.
        early.wait_for(lambda: early.matched_tokens(prompts[-1]) == LAST_CHUNK)
        late = self.router(bridge)
        late.wait_for(lambda: late.matched_tokens(prompts[-1]) == LAST_CHUNK)
        self.assertEqual(late.blocks, early.blocks)
        self.assertEqual(late.replays, 1)
        for ids in [first] + prompts:
            self.assertEqual(late.matched_tokens(ids), LAST_CHUNK)

    def test_restarted_bridge_continues_batch_numbers(self):
        ids = self.publish(1)
        bridge = self.bridge(self.store)
        router = self.router(bridge)
        router.wait_for(lambda: router.matched_tokens(ids) == LAST_CHUNK)
        before = router.last
        self.assertEqual(bridge.stop()[0], 0)
        again = self.router(self.bridge(self.store))
        again.wait_for(lambda: again.matched_tokens(ids) == LAST_CHUNK)
        self.assertGreater(again.last, before)
        self.assertEqual(again.blocks, router.blocks)

    def test_restarted_store_keeps_blocks(self):
        bridge = self.bridge(self.store)
        bridge.wait_for_line("following")
        router = self.router(bridge)
        ids = self.publish(1)
        router.wait_for(lambda: router.matched_tokens(ids) == LAST_CHUNK)
        blocks = dict(router.blocks)
        self.store.kill()
        bridge.wait_for_line("retrying")
        store = self.cluster.store(self.folder / "store", listen=self.store.address)
        bridge.wait_for_line("following")
        more = self.publish(2)
        router.wait_for(lambda: router.matched_tokens(more) == LAST_CHUNK)
        self.assertEqual({block: router.blocks.get(block) for block in blocks}, blocks)
        # Replaces the store by an empty store at the same address.
        store.kill()
        bridge.wait_for_line("retrying")
        self.cluster.store(self.folder / "another", listen=self.store.address)
        bridge.wait_for_line("following")
        router.wait_for(lambda: not router.blocks)


class RoutersOnStore(RoutersTest):
    """Tests hostile clients, and a store that refuses the program."""

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "store")
        snapshot = ROOT / "tests" / "proto" / "golden" / "tiny.snapshot"
        self.cluster.ctl("import", snapshot, "--store", self.store.address)

    @staticmethod
    def connect(address):
        host, port = address.removeprefix("tcp://").rsplit(":", 1)
        return socket.create_connection((host, int(port)), timeout=LONG_S)

    def test_garbage_connections_use_bounded_memory(self):
        bridge = self.bridge(self.store)
        bridge.wait_for_line("following")
        garbage = [b"", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 4096,
                   b"\xff" + bytes(8) + b"\x7f\x03" + b"x" * 60,
                   # A valid ZeroMQ greeting, then a message whose announced size is 2^62 bytes.
                   b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48) + b"\x02"
                   + struct.pack(">Q", 1 << 62)]
        for address in (bridge.publisher, bridge.replayer):
            for i in range(CONNECTIONS // 2):
                with self.connect(address) as peer:
                    peer.sendall(garbage[i % len(garbage)])
        held = [self.connect(bridge.publisher) for _ in range(300)]
        try:
            router = self.router(bridge)
            router.wait_for(lambda: router.last is not None)
        finally:
            for peer in held:
                peer.close()
        self.assertLess(bridge.memory_mib(), MEMORY_BOUND_MIB)
        self.assertEqual(bridge.stop()[0], 0)

    def test_refusing_store_ends_bridge(self):
        bridge = self.bridge(self.store, "--tenant", "another")
        bridge.wait_for_line("hearth_cache.events: PERMISSION_DENIED")
        self.assertEqual(bridge.popen.wait(timeout=LONG_S), 1)

    def test_invalid_flag_exits_2(self):
        for flags, reason in ((["--zmq", "localhost 5557"], "localhost 5557: Invalid argument"),
                              (["--fingerprint", "w1"], "must be up to 64 digits"),
                              (["--high-water", "0"], "must be an integer in [1,"),
                              (["--store", "7080"], 'must be host:port or unix:PATH; got "7080"'),
                              (["--tls-cert", "a"], "tls_key")):
            done = subprocess.run([sys.executable, "-B", "-m", "hearth_cache.events", *flags],
                                  env={**os.environ, "PYTHONPATH": str(PACKAGE)},
                                  capture_output=True, text=True, timeout=LONG_S, check=False)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertRegex(done.stderr, f"^hearth_cache.events: .*{re.escape(reason)}.*\n$")

    def test_bridge_waits_for_missing_store(self):
        self.store.stop()
        bridge = self.bridge(self.store)
        bridge.wait_for_line("retrying")
        router = self.router(bridge)
        router.wait_for(lambda: router.last is not None)
        self.assertEqual(router.blocks, {})
        self.assertEqual(bridge.stop()[0], 0)


if __name__ == "__main__":
    python_support.main()
