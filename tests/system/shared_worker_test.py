"""Two hosts, each with a store and a worker, share one Redis: a worker restores what the other has
computed, and without Redis both answer as without the shared tier."""

import signal

import redis_process
import system_support
from redis_process import RedisTest
from system_support import CHUNK_TOKENS, prompt

PROMPT_TOKENS = 150
LAST_CHUNK = (PROMPT_TOKENS - 1) // CHUNK_TOKENS * CHUNK_TOKENS


class SharedWorker(RedisTest):

    def setUp(self):
        super().setUp()
        self.checkpoint = self.model()

    def host(self, name, budget="1m"):
        store = self.cluster.store(self.folder / name, "--shared-fetch-budget", budget,
                                   *self.shared)
        return self.worker(self.checkpoint, store.address)

    def ask(self, worker, ids, *flags):
        return self.cluster.generate(worker.address, ids, *flags, max_new_tokens=4)

    def test_other_host_restores_exact_bits(self):
        one, two = self.host("one"), self.host("two")
        ids = prompt(PROMPT_TOKENS, 1)
        cold = self.ask(one, ids, "--durability", "shared", "--wait-published")
        self.assertEqual((cold["cached_tokens"], cold["durable"]), (0, "shared"))
        self.expect_restored(self.ask(two, ids, "--cache", "read"), cold, LAST_CHUNK, "shared")
        self.expect_restored(self.ask(two, ids, "--cache", "read"), cold, LAST_CHUNK, "host")

    def test_hung_redis_changes_no_answer(self):
        one, two = self.host("one"), self.host("two", budget="500ms")
        ids = prompt(PROMPT_TOKENS, 2)
        cold = self.ask(one, ids, "--durability", "shared", "--wait-published")
        self.redis.send(signal.SIGSTOP)
        alone = self.ask(two, ids, "--wait-published")
        self.expect_restored(alone, cold, 0, "none")
        self.assertEqual(alone["durable"], "disk")
        self.expect_restored(self.ask(two, ids, "--cache", "read"), cold, LAST_CHUNK, "host")


if __name__ == "__main__":
    redis_process.skip_without_redis()
    system_support.main()
