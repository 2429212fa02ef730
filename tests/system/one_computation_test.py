"""Several workers that need the same missing prefix: it is computed once, and by another worker if
the first one dies."""

import signal
import threading
import time

import system_support
from system_support import CHUNK_TOKENS, SystemTest, prompt

SHARED_TOKENS = 40 * CHUNK_TOKENS
OWN_TOKENS = 9
CLIENTS = 8
# Long enough to stop a worker during the computation.
LONG_TOKENS, LONG_CONTEXT = 12000, 16384
PATIENCE_S = 240  # time limit of a wait; only a hanging process reaches it


class OneComputation(SystemTest):

    def setUp(self):
        super().setUp()
        self.store = self.cluster.store(self.folder / "data")
        self.flags = ["--compute-wait", f"{PATIENCE_S}s", "--compute-lease", f"{PATIENCE_S}s"]

    def counters(self):
        return self.cluster.ctl("stats", "--store", self.store.address)["counters"]

    def await_counter(self, name):
        deadline = time.monotonic() + PATIENCE_S
        while self.counters()[name] == 0:
            self.assertLess(time.monotonic(), deadline, f"{name} stays 0")

    def ask_in_background(self, worker, ids, answers, key, *flags):
        def ask():
            answers[key] = self.cluster.generate(worker.address, ids, *flags, max_new_tokens=3)
        thread = threading.Thread(target=ask)
        thread.start()
        return thread

    def test_eight_clients_cause_one_computation(self):
        model = self.model()
        workers = [self.worker(model, self.store.address, *self.flags) for _ in range(4)]
        endings = [[5 + i] * OWN_TOKENS for i in range(CLIENTS)]
        shared = prompt(SHARED_TOKENS, 1)
        mark = ("--breakpoint", SHARED_TOKENS)
        answers = {}
        threads = [self.ask_in_background(workers[i % 4], shared + endings[i], answers, i, *mark)
                   for i in range(CLIENTS)]
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), CLIENTS, "a request was not answered")
        cached = sorted(answer["cached_tokens"] for answer in answers.values())
        self.assertEqual(cached, [0] + [SHARED_TOKENS] * (CLIENTS - 1))
        for i, ending in enumerate(endings):
            truth = self.cluster.generate(workers[0].address, shared + ending, *mark, "--cache",
                                          "off", max_new_tokens=3)
            self.assertEqual(answers[i]["first_logits_sha256"], truth["first_logits_sha256"])
        self.assertEqual(self.counters()["nondeterminism"], 0)

    def test_killed_workers_lease_is_reassigned(self):
        model = self.model(context_tokens=LONG_CONTEXT)
        # Low priority, so that on a busy machine, too, the worker is stopped before it has computed
        # the prompt.
        first = self.worker(model, self.store.address, *self.flags, under=("nice", "-n", "19"))
        second = self.worker(model, self.store.address, *self.flags)
        ids, answers = prompt(LONG_TOKENS, 1), {}
        doomed = threading.Thread(target=lambda: self.cluster.ctl(
            "generate", "--worker", first.address, "--token-ids", ",".join(map(str, ids)),
            "--max-new-tokens", 1, check=False))
        doomed.start()
        self.await_counter("leases_granted")
        # The stopped worker holds the lease but computes nothing.
        first.popen.send_signal(signal.SIGSTOP)
        waits = self.ask_in_background(second, ids, answers, "second")
        self.await_counter("lease_waits")
        first.kill()
        waits.join()
        doomed.join()
        self.assertEqual(answers["second"]["cached_tokens"], 0)
        counters = self.counters()
        self.assertEqual(counters["lease_takeovers"], 1)
        self.assertEqual(counters["lease_waits_timed_out"], 0)


if __name__ == "__main__":
    system_support.main()
