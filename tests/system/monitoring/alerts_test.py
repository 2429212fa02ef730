"""Each fault raises its alert in Prometheus, with the rules of deploy/monitoring but without their
waiting times.

Run as: python alerts_test.py BIN_DIR WRITE_CHECKPOINT KIT_CLIENT FAULTY_READS PACKAGE [unittest
arguments]. PACKAGE: the folder of the Python package. tests/deploy/alerts_test.yml tests the rules
with their waiting times.
"""

import pathlib
import socket
import subprocess
import sys
import time

import prometheus
import system_support
from hearth_procs import ProcessFailed
from prometheus import Prometheus, alert_rules
from redis_process import RedisTest, skip_without_redis
from system_support import BackgroundThread, CHUNK_TOKENS, SystemTest, prompt

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "faults"))

from misread_test import Client, Faults  # noqa: E402  (path set above)

FAULTY_READS = None
SEEN = set()  # alerts that the tests of this file have raised


class AlertsTest(SystemTest):

    def raise_alerts(self, fault, *names, stores=(), workers=()):
        """Starts Prometheus, makes the fault, and waits for the alerts. Until the fault, none of
        them fires."""
        watch = Prometheus(self, stores, workers, holds=False)
        self.assertEqual(watch.firing() & set(names), set())
        fault()
        watch.wait_for_alerts(*names)
        SEEN.update(names)
        for worker in workers:
            worker.kill()  # ends calls that a test left running


class OfStores(AlertsTest):

    def store(self, *flags, host_bytes="1MiB", **options):
        return self.cluster.store(self.folder / "data", "--host-bytes", host_bytes, *flags,
                                  pages=("metrics",), **options)

    def client(self, store):
        client = Client(store.address)
        self.addCleanup(client.close)
        return client

    def test_lost_store(self):
        store = self.store("--disk-bytes", "10MiB")
        worker = self.worker(self.model(), store.address, pages=("metrics",))
        self.raise_alerts(store.kill, "HearthDown", "HearthStoreUnreachable", stores=[store],
                          workers=[worker])

    def test_damaged_data_folder(self):
        store = self.store("--disk-bytes", "64MiB")
        self.assertEqual(self.client(store).ask("publish", 1), "durable")
        store.kill()
        for manifest in (self.folder / "data" / "db").glob("MANIFEST-*"):
            manifest.unlink()
        again = self.store("--disk-bytes", "64MiB")
        watch = Prometheus(self, [again], holds=False)
        watch.wait_for_alerts("HearthRestorePointsLost", "HearthRecoveryDamage")
        SEEN.update(("HearthRestorePointsLost", "HearthRecoveryDamage"))

    def test_failing_disk(self):
        faults = Faults(self.folder / "faults", FAULTY_READS)

        def start():
            return self.store("--disk-bytes", "64MiB", host_bytes="0", under=faults.under)

        store = start()
        self.assertEqual(self.client(store).ask("publish", 2), "durable")
        store.stop()  # writes the restore points in RAM to disk
        store = start()
        client = self.client(store)

        def fail():
            faults.set(failed_per_mille=1000)
            client.ask("fetch", 2)

        self.raise_alerts(fail, "HearthTierErrors", stores=[store])

    def test_small_disk(self):
        store = self.store("--disk-bytes", "4MiB")
        client = self.client(store)

        def fill():
            for number in range(1, 400):
                client.ask("publish", number)

        self.raise_alerts(fill, "HearthDiskTooSmall", stores=[store])

    def test_full_disk(self):
        store = self.store("--disk-bytes", "64MiB", host_bytes="8MiB",
                           under=("env", "--ignore-signal=XFSZ"))
        worker = self.worker(self.model(), store.address)

        def publish():
            # A limit of files stands for the limit of a disk.
            subprocess.run(["prlimit", f"--pid={store.popen.pid}", "--fsize=4096"], check=True)
            for seed in range(8):
                self.cluster.generate(worker.address, prompt(600, seed), "--wait-published",
                                      "--durability", "memory")

        self.raise_alerts(publish, "HearthNotDurable", stores=[store])


class OfTheSharedTier(AlertsTest, RedisTest):

    def start(self, name):
        return self.cluster.store(self.folder / name, "--host-bytes", "1MiB", "--disk-bytes",
                                  "10MiB", "--shared-fetch-budget", "1m", *self.shared,
                                  pages=("metrics",))

    def overwrite(self):
        """Changes the large values in Redis, as another program could."""
        with socket.create_connection(("127.0.0.1", self.redis.port)) as redis:
            redis.sendall(b"EVAL \"for _, key in ipairs(redis.call('KEYS', '*')) do "
                          b"if redis.call('STRLEN', key) > 1000 then "
                          b"redis.call('SETRANGE', key, 500, 'changed') end end return 1\" 0\r\n")
            assert redis.recv(16) == b":1\r\n"

    def test_redis_faults(self):
        stores = [self.start(name) for name in ("one", "two", "three")]
        publisher, reader, later = (Client(store.address) for store in stores)
        for client in (publisher, reader, later):
            self.addCleanup(client.close)
        self.assertEqual(publisher.ask("publish", 1), "durable")
        end = time.monotonic() + prometheus.LONG_S
        while reader.ask("fetch", 1) != "right":  # until it is in Redis
            self.assertLess(time.monotonic(), end)

        def fault():
            self.overwrite()
            self.assertEqual(later.ask("fetch", 1), "miss")
            self.redis.kill()
            later.ask("fetch", 3)

        self.raise_alerts(fault, "HearthForeignValues", "HearthSharedTierDegraded", stores=stores)


class Calls(BackgroundThread):
    """Sends a generation again and again while the block runs."""

    def __init__(self, cluster, address, *flags, tokens=1, new_tokens=1, seed=0):
        super().__init__()
        self._call = lambda: cluster.ctl(
            "generate", "--worker", address, "--token-ids",
            ",".join(map(str, prompt(tokens, seed))), "--max-new-tokens", new_tokens,
            "--ignore-eos", *flags, check=False)

    def _run(self):
        while not self._stop.is_set():
            self._call()


class OfWorkers(AlertsTest):

    def start(self, *flags, under=(), **model):
        return self.worker(self.model(**model), "none", *flags, pages=("metrics",), under=under)

    def calls(self, worker, count, **options):
        for seed in range(count):
            load = Calls(self.cluster, worker.address, seed=seed, **options)
            load.__enter__()
            self.addCleanup(load.__exit__)

    def test_full_queue(self):
        worker = self.start("--max-running", "1", "--max-queue", "1")
        self.raise_alerts(lambda: self.calls(worker, 4, new_tokens=500),
                          "HearthRequestsRefused", workers=[worker])

    def test_slow_first_token(self):
        worker = self.start("--max-running", "1", context_tokens=100000)
        self.raise_alerts(lambda: self.calls(worker, 24, new_tokens=20000),
                          "HearthSlowFirstToken", workers=[worker])

    def test_refused_allocations(self):
        faults = Faults(self.folder / "faults", FAULTY_READS)
        worker = self.start(under=faults.under)

        def fault():
            faults.refuse_allocations(of_bytes=1)
            with self.assertRaisesRegex(ProcessFailed, "the machine has no memory"):
                self.cluster.generate(worker.address, prompt(1900, 3))

        self.raise_alerts(fault, "HearthRequestsFail", workers=[worker])

    def test_small_memory(self):
        worker = self.start("--max-running", "8", "--kv-bytes", "1MiB")
        self.raise_alerts(lambda: self.calls(worker, 8, tokens=200, new_tokens=500),
                          "HearthPreemptions", workers=[worker])

    def test_wrong_bytes(self):
        """A store serves bytes that no worker of this model computes."""
        from hearth_cache import Fingerprint, Layout, Prefix, Store
        store = self.cluster.store(self.folder / "data", pages=("metrics",))
        worker = self.worker(self.model(), store.address, "--audit-rate", "1", pages=("metrics",))
        model = self.cluster.ctl("model", "--worker", worker.address)
        fields = model["fields"]
        layout = Layout(*(fields[name] for name in ("layer_types", "window", "kv_heads", "head_dim",
                                                    "kv_dtype", "chunk_tokens")))
        fingerprint = Fingerprint(layout, tuple(sorted(fields.items())))
        self.assertEqual(fingerprint.digest.hex(), model["fingerprint"])
        ids = prompt(4 * CHUNK_TOKENS + 1, 7)
        with Store(store.address) as writer:
            writer.publish(Prefix(fingerprint, ids[:-1]), [len(ids) - 1],
                           lambda one, layer: bytes(layout.slice_bytes(one.tokens)))

        def fault():
            self.cluster.generate(worker.address, ids, "--cache", "write", "--wait-published")
            self.cluster.generate(worker.address, ids)

        self.raise_alerts(fault, "HearthNondeterminism", "HearthWrongBytes", "HearthCorruption",
                          stores=[store], workers=[worker])


def tearDownModule():
    """If all tests ran, every alert was raised."""
    if len(sys.argv) == 1:
        assert SEEN == {rule["alert"] for rule in alert_rules()}, SEEN


if __name__ == "__main__":
    prometheus.skip_without_prometheus()
    skip_without_redis()
    FAULTY_READS = sys.argv.pop(4)
    sys.path.insert(0, sys.argv.pop(4))
    system_support.STORE_CLIENT = sys.argv.pop(3)
    system_support.main()
