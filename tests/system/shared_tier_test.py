"""Several store processes that share one Redis.

Run as: python shared_tier_test.py BIN_DIR STORE_CLIENT [unittest arguments].
"""

import signal
import subprocess
import time

import redis_process
import system_support
from log_waits import wait_for_log
from redis_process import Redis, RedisTest
from system_support import LONG_S, ROOT, ProcessFailed

SNAPSHOT = ROOT / "tests" / "proto" / "golden" / "tiny.snapshot"


class SharedTier(RedisTest):

    def store(self, name, budget="1m"):
        return self.cluster.store(self.folder / name, "--host-bytes", "1MiB", "--disk-bytes",
                                  "10MiB", "--shared-fetch-budget", budget, *self.shared)

    def fetched_tokens(self, store):
        fetched = subprocess.run([system_support.STORE_CLIENT, store.address, "fetch"], text=True,
                                 capture_output=True, check=True)
        return int(fetched.stdout)

    def count(self, store, name):
        return self.cluster.ctl("stats", "--store", store.address)["counters"][name]

    def wait_for(self, what):
        until = time.monotonic() + LONG_S
        while not what():
            self.assertLess(time.monotonic(), until)

    def publish(self, store):
        self.cluster.ctl("import", SNAPSHOT, "--store", store.address)
        def is_written():
            stats = self.cluster.ctl("stats", "--store", store.address)
            return 0 < stats["objects"] <= stats["counters"]["shared_written_objects"]
        self.wait_for(is_written)

    def test_other_stores_restore_shared_prefix(self):
        self.publish(self.store("one"))
        for name in ("two", "three"):
            store = self.store(name)
            self.assertEqual(self.fetched_tokens(store), 20)
            self.assertEqual(self.count(store, "shared_hits"), 1)
            self.assertEqual(self.count(store, "shared_rejected_values"), 0)

    def test_stopped_store_leaves_shared_prefixes(self):
        one = self.store("one")
        self.publish(one)
        self.assertEqual(one.stop(), 0)
        self.assertEqual(self.fetched_tokens(self.store("two")), 20)

    def test_lost_redis_fails_no_request(self):
        one, two = self.store("one"), self.store("two")
        self.publish(one)
        self.redis.kill()
        self.assertEqual(self.fetched_tokens(two), 0)
        self.assertEqual(self.fetched_tokens(one), 20)
        self.cluster.ctl("import", SNAPSHOT, "--store", two.address)
        self.assertEqual(self.fetched_tokens(two), 20)
        three = self.store("three")
        self.assertEqual(self.fetched_tokens(three), 0)

    def test_redis_loss_and_return_are_logged(self):
        store = self.store("one")
        address = f"redis://127.0.0.1:{self.redis.port}"
        self.redis.kill()
        wait_for_log(store, lambda text: f"shared tier unreachable address={address}" in text)
        with self.assertRaises(ProcessFailed) as failed:
            self.cluster.ctl("doctor", "--store", store.address, "--no-probe")
        self.assertIn("shared_unreachable_shards is 1", str(failed.exception))
        self.redis = Redis(self.folder / "again", self.redis.port)
        self.addCleanup(self.redis.kill)
        wait_for_log(store, lambda text: f"shared tier reachable address={address}" in text)
        self.assertEqual(self.count(store, "shared_unreachable_shards"), 0)

    def test_store_and_redis_recover_together(self):
        one = self.store("one")
        self.publish(one)
        one.kill()
        self.redis.kill()
        one = self.store("one")
        self.assertEqual(self.fetched_tokens(one), 20)
        self.redis = Redis(self.folder / "again", self.redis.port)
        self.addCleanup(self.redis.kill)
        self.wait_for(lambda: self.count(one, "shared_unreachable_shards") == 0)
        self.assertEqual(self.fetched_tokens(one), 20)
        self.publish(one)
        self.assertEqual(self.fetched_tokens(self.store("two")), 20)

    def test_drop_all_reaches_restarted_store(self):
        one, two = self.store("one"), self.store("two")
        self.publish(one)
        self.assertEqual(self.fetched_tokens(two), 20)
        two.kill()
        self.cluster.ctl("drop", "--all", "--store", one.address)
        two = self.store("two")
        # On a busy machine, the first fetches do not wait until Redis has named the drop.
        self.wait_for(lambda: self.fetched_tokens(two) == 0)
        self.publish(two)
        self.redis.kill()
        two.kill()
        self.assertEqual(self.fetched_tokens(self.store("two")), 20)

    def test_hung_redis_is_used_after_resume(self):
        one, two = self.store("one"), self.store("two", budget="1s")
        self.publish(one)
        self.redis.send(signal.SIGSTOP)
        self.assertEqual(self.fetched_tokens(two), 0)
        self.assertGreater(self.count(two, "shared_unanswered"), 0)
        self.redis.send(signal.SIGCONT)
        self.wait_for(lambda: self.fetched_tokens(two) == 20)

    def test_store_with_other_secret_misses(self):
        self.publish(self.store("one"))
        self.secret.write_text("a5" * 32)
        self.assertEqual(self.fetched_tokens(self.store("two")), 0)

    def test_shared_tier_requires_secret_file(self):
        line = self.fails_to_start("hearth-store", "--data-dir", self.folder / "data", "--shared",
                                   f"redis://127.0.0.1:{self.redis.port}")
        self.assertIn("--shared needs --secret-file", line)


if __name__ == "__main__":
    redis_process.skip_without_redis()
    system_support.main("STORE_CLIENT")
