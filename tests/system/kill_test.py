"""Kills the store (kill -9) at random moments while workers publish.

Every publish that was acknowledged as durable is readable and exact afterwards, and no publish is
incomplete. The store is ready again after at most two seconds of processor time, and the workers
reconnect by themselves.
"""

import random
import threading
import time

import psutil
import system_support
from system_support import CHUNK_TOKENS, SystemTest, prompt

KILLS = 20
READY_CPU_S_MAX = 2.0
RECOVERY_S_MAX = 120.0  # time limit of a wait; only a hang reaches it
PROMPT_TOKENS = 405  # not a multiple of the chunk, so that the last boundary can be restored
CLIENTS_PER_WORKER = 2
LAST_CHUNK = (PROMPT_TOKENS - 1) // CHUNK_TOKENS * CHUNK_TOKENS
SEED = 20


class Kill(SystemTest):

    def publish(self, worker, seed, answers):
        """Sends one request and stores its answer; it must be answered even if the store dies."""
        answer = self.cluster.generate(worker.address, prompt(PROMPT_TOKENS, seed),
                                       "--wait-published", "--durability", "disk")
        with self.answered:
            answers[seed] = answer
            self.answered.notify_all()

    def start_publishes(self, round_number, answers):
        """Starts publishes on all workers; returns their threads."""
        threads = []
        for i in range(CLIENTS_PER_WORKER * len(self.workers)):
            seed = f"{round_number}-{i}"
            threads.append(threading.Thread(
                target=self.publish, args=(self.workers[i % len(self.workers)], seed, answers)))
        for thread in threads:
            thread.start()
        return threads

    def publish_span_s(self):
        """Measures how long publishes take on this machine. Kills happen within this time after
        the last awaited answer."""
        start = time.monotonic()
        for thread in self.start_publishes("span", {}):
            thread.join()
        return time.monotonic() - start

    def publish_and_kill(self, round_number, source):
        """Kills the store while all workers publish, after a random number of answers; returns the
        answers."""
        answers = {}
        threads = self.start_publishes(round_number, answers)
        awaited = source.randrange(len(threads))
        with self.answered:
            self.assertTrue(self.answered.wait_for(lambda: len(answers) >= awaited,
                                                   RECOVERY_S_MAX))
        threading.Event().wait(source.uniform(0, self.span_s / (1 + 4 * awaited)))
        self.store.kill()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), len(threads), "a request was not answered")
        return answers

    def restart(self):
        self.store = self.cluster.store(self.data, listen=self.store.address)
        spent = psutil.Process(self.store.popen.pid).cpu_times()
        self.assertLess(spent.user + spent.system, READY_CPU_S_MAX)

    def read_until_cached(self, worker, seed):
        """Repeats the request until the worker restores it from the store again."""
        deadline = time.monotonic() + RECOVERY_S_MAX
        while True:
            answer = self.read(worker, seed)
            if answer["cached_tokens"] > 0:
                return answer
            self.assertLess(time.monotonic(), deadline, f"prompt {seed} did not come back")

    def read(self, worker, seed):
        return self.cluster.generate(worker.address, prompt(PROMPT_TOKENS, seed), "--cache", "read")

    def test_acknowledged_publishes_survive_kills(self):
        source = random.Random(SEED)
        self.answered = threading.Condition()
        self.data = self.folder / "data"
        self.store = self.cluster.store(self.data)
        model = self.model("narrow")
        self.workers = [self.worker(model, self.store.address) for _ in range(2)]
        # A worker without a store computes the reference answers.
        reference = self.worker(model, "none")
        self.span_s = self.publish_span_s()
        acknowledged, lost = {}, {}
        for round_number in range(KILLS):
            answers = self.publish_and_kill(round_number, source)
            self.restart()
            for seed, answer in answers.items():
                durable = answer["published_tokens"] > 0 and answer["durable"] in ("disk", "sync")
                (acknowledged if durable else lost)[seed] = answer
            fresh = [seed for seed in answers if seed in acknowledged]
            for worker in self.workers:
                for seed in fresh:
                    self.check(self.read_until_cached(worker, seed), acknowledged[seed])
        print(f"{KILLS} kills: {len(acknowledged)} publishes acknowledged, {len(lost)} not")
        self.assertGreater(len(acknowledged), 0, "no publish was quicker than the kill")
        self.assertGreater(len(lost), 0, "no kill hit a publish")
        for seed, answer in acknowledged.items():
            self.check(self.read_until_cached(self.workers[0], seed), answer)
        for seed, answer in lost.items():
            after = self.read(self.workers[1], seed)
            self.assertEqual(after["first_logits_sha256"], answer["first_logits_sha256"], seed)
        for seed in source.sample(sorted(acknowledged), min(5, len(acknowledged))):
            truth = self.read(reference, seed)
            self.assertEqual(truth["first_logits_sha256"],
                             acknowledged[seed]["first_logits_sha256"])
        self.assertEqual(self.store.stop(), 0)
        self.cluster.ctl("verify", self.data)

    def check(self, after, acknowledged):
        # The prefix of prompt and answer was stored too, but the prompt alone restores only up to
        # its last whole chunk.
        self.assertEqual(after["cached_tokens"],
                         min(acknowledged["published_tokens"], LAST_CHUNK))
        self.assertEqual(after["first_logits_sha256"], acknowledged["first_logits_sha256"])


if __name__ == "__main__":
    system_support.main()
