"""An open-loop load of prompts with shared prefixes; answers are compared with a reference."""

import concurrent.futures
import random
import threading
import time

from hearth_procs import ProcessFailed
from system_support import BackgroundThread, CHUNK_TOKENS, prompt

ANSWER_TOKENS = 2
PLACES = 24  # maximum requests that a client runs at the same time


class Prompts:
    """The prompts of a load: prompts that are published (`known`) and, in a fraction of
    `fresh_share`, prompts with new endings."""

    def __init__(self, prefixes=8, tails=6, chunks=12, fresh_share=0.1, seed=1):
        self._random = random.Random(seed)
        self._fresh_share = fresh_share
        self._prefixes = [prompt(chunks * CHUNK_TOKENS, f"{seed} {n}") for n in range(prefixes)]
        self.known = [begin + self._tail() for begin in self._prefixes for _ in range(tails)]

    def _tail(self):
        return [self._random.randrange(3, 160) for _ in range(self._random.randrange(20, 60))]

    def next(self):
        if self._random.random() < self._fresh_share:
            return self._random.choice(self._prefixes) + self._tail()
        return self._random.choice(self.known)


class Answer:
    def __init__(self, ids, number):
        self.ids, self.number, self.began = ids, number, time.monotonic()
        self.result, self.errors, self.ended, self.worker = None, [], None, None

    @property
    def cached(self):
        return self.result["cached_tokens"] if self.result else 0

    @property
    def restorable(self):
        return (len(self.ids) - 1) // CHUNK_TOKENS * CHUNK_TOKENS


class Client:
    """Sends a request to one worker and, if it fails, to the next."""

    def __init__(self, cluster, workers):
        self._cluster, self.workers = cluster, workers
        self._turn = 0

    def ask(self, answer, *flags):
        self._turn += 1
        workers = list(self.workers)
        for offset in range(len(workers)):
            worker = workers[(self._turn + offset) % len(workers)]
            try:
                answer.result = self._cluster.ctl(
                    "generate", "--worker", worker.address, "--token-ids",
                    ",".join(map(str, answer.ids)), "--max-new-tokens", ANSWER_TOKENS,
                    "--ignore-eos", *flags)
                answer.worker = worker
                break
            except ProcessFailed as failed:
                answer.errors.append(str(failed))
        answer.ended = time.monotonic()
        return answer


class Reference:
    """Reference answers, computed by a worker without a store."""

    def __init__(self, cluster, worker):
        self._cluster, self._worker, self._said = cluster, worker, {}

    def of(self, ids):
        key = tuple(ids)
        if key not in self._said:
            said = self._cluster.generate(self._worker.address, ids, "--cache", "off",
                                          max_new_tokens=ANSWER_TOKENS)
            self._said[key] = (said["first_logits_sha256"], said["token_ids"])
        return self._said[key]

    def is_wrong(self, answer):
        said = answer.result
        return (said["first_logits_sha256"], said["token_ids"]) != self.of(answer.ids)


class Load(BackgroundThread):
    """Sends requests at random times (Poisson process of `rate` a second) while the block runs."""

    def __init__(self, client, prompts, rate, seed=1):
        super().__init__()
        self._client, self._prompts, self._rate = client, prompts, rate
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self.answers = []
        self._ended = 0

    def _run(self):
        with concurrent.futures.ThreadPoolExecutor(PLACES) as places:
            due = time.monotonic()
            while not self._stop.is_set():
                due += self._random.expovariate(self._rate)
                if self._stop.wait(max(0.0, due - time.monotonic())):
                    return
                answer = Answer(self._prompts.next(), len(self.answers))
                self.answers.append(answer)
                places.submit(self._ask, answer)

    def _ask(self, answer):
        try:
            self._client.ask(answer)
        finally:
            with self._changed:
                self._ended += 1
                self._changed.notify_all()

    def wait_for_more(self, count):
        """Waits until `count` more requests have ended; returns the number of requests so far."""
        end = len(self.answers) + count
        with self._changed:
            assert self._changed.wait_for(lambda: self._ended >= end, timeout=300)
        return len(self.answers)


def hit_rate(answers):
    ended = [answer for answer in answers if answer.result]
    restorable = sum(answer.restorable for answer in ended)
    return sum(answer.cached for answer in ended) / restorable if restorable else 0.0


def first_token_ms(answers, share):
    values = sorted(answer.result["ttft_ms"] for answer in answers if answer.result)
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0
