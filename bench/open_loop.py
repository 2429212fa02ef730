"""An open-loop load: requests come when they come, whether or not earlier ones were answered.

    .venv/bin/python bench/open_loop.py [--shape tokens|requests] [--requests 120]
    .venv/bin/python bench/open_loop.py --workers 2 --kill

One store and one worker (or two) of the class invariant. "80 % shared prefix" is read in two ways:

    tokens      of each prompt the first 80 % of its tokens are one of four prefixes, the rest
                its own
    requests    80 % of the requests begin with one of four prefixes and go on with tokens of their
                own, 20 % are new from their first token on

All want 16 tokens, greedily. First the prefixes are computed once, as after an hour of service;
then the capacity is measured, in requests a second with as many callers as the worker has places,
each asking again as soon as it is answered; then requests arrive at --share of that, by a seeded
Poisson process, and are sent at that moment (one hearthctl each).

Printed: time to first token alone, of a request of each kind; the capacity; of the load, for each
kind and for all together, p50, p99 and the largest of it, by the caller's clock from its RPC's
start; what failed; whether p99 <= 3 x median over all, the bar of issue 13. A prompt that is new
takes as long as its tokens take to compute: with --new-tokens as many as the others have in all
(the default), the ratio of the two kinds alone is a floor for what any scheduling can reach, and is
printed beside it; where all are alike it is 1. Ends with 1 where the bar is missed or a request is
lost. schedule_bench asks what the scheduler's order does, in virtual time.

With --kill one of two workers is killed (SIGKILL) in the middle of the load. A client that it was
answering, or that cannot reach it, asks the other one again; afterwards each of these answers is
computed once more without a cache: tokens and first logits must be the same.

A shape takes 2 to 6 minutes on two cores; everything that was started is ended.
"""

import json
import pathlib
import queue
import random
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster, ProcessFailed  # noqa: E402  (path set above)

PREFIXES, SHARED_SHARE, ANSWER_TOKENS = 4, 0.8, 16
BAR = 3.0
PLACES = 16  # of a worker of the class invariant, by default


class Prompts:
    """Seeded prompts of one shape. One is (kind, token ids)."""

    def __init__(self, args, shape):
        self.shared_requests = SHARED_SHARE if shape == "requests" else 1.0
        self.own_tokens = args.own_tokens
        if shape == "tokens":
            self.own_tokens = round(args.prefix_tokens * (1 - SHARED_SHARE) / SHARED_SHARE)
        self.new_tokens = args.new_tokens or args.prefix_tokens + self.own_tokens
        config = json.loads((pathlib.Path(args.model) / "config.json").read_text())
        self.vocab, self.args = config["vocab_size"], args
        self.random = random.Random(args.seed)
        self.prefixes = [self.tokens(args.prefix_tokens, first=2) for _ in range(PREFIXES)]

    def tokens(self, count, first=None):
        drawn = [self.random.randrange(1000, self.vocab) for _ in range(count)]
        return drawn if first is None else [first] + drawn[1:]

    def shared(self):
        return "shared", self.random.choice(self.prefixes) + self.tokens(self.own_tokens)

    def new(self):
        return "new", self.tokens(self.new_tokens, first=2)

    def mixed(self, count):
        return [self.shared() if self.random.random() < self.shared_requests else self.new()
                for _ in range(count)]

    def kinds(self):
        return (self.shared,) if self.shared_requests == 1 else (self.shared, self.new)


class Service:
    """The workers as a client sees them: one after the other, and the next where one is gone."""

    def __init__(self, cluster, workers):
        self.cluster, self.workers = cluster, workers
        self.gone = set()
        self.turn = 0
        self.lock = threading.Lock()

    def next_worker(self, tried):
        with self.lock:
            for _ in self.workers:
                self.turn += 1
                worker = self.workers[self.turn % len(self.workers)]
                if worker.address not in self.gone | tried:
                    return worker
        return None

    def ask(self, prompt):
        """The answer, with "retried" and "error"."""
        kind, ids = prompt
        tried, error = set(), "no worker is left"
        while (worker := self.next_worker(tried)) is not None:
            tried.add(worker.address)
            try:
                answer = self.cluster.generate(worker.address, ids, max_new_tokens=ANSWER_TOKENS)
                return {**answer, "kind": kind, "ids": ids, "retried": len(tried) > 1}
            except ProcessFailed as failed:
                error = str(failed)
                if worker.popen.poll() is not None:
                    self.gone.add(worker.address)
        return {"kind": kind, "ids": ids, "error": error}


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def closed_loop(service, prompts, callers):
    """Requests a second of callers who ask again as soon as they are answered."""
    waiting = queue.SimpleQueue()
    for prompt in prompts:
        waiting.put(prompt)
    failed = []

    def call():
        while True:
            try:
                prompt = waiting.get_nowait()
            except queue.Empty:
                return
            answer = service.ask(prompt)
            if "error" in answer:
                failed.append(answer["error"])

    threads = [threading.Thread(target=call) for _ in range(callers)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise ProcessFailed(f"{len(failed)} requests failed without a load: {failed[0]}")
    return len(prompts) / (time.monotonic() - begin)


def open_loop(service, prompts, rate, seed, in_the_middle):
    """The answers to prompts that arrive `rate` times a second."""
    arrivals = random.Random(seed + 1)
    answers, threads = [], []
    due = time.monotonic()
    for number, prompt in enumerate(prompts):
        if number == len(prompts) // 2:
            in_the_middle()
        due += arrivals.expovariate(rate)
        time.sleep(max(0.0, due - time.monotonic()))
        threads.append(threading.Thread(target=lambda p=prompt: answers.append(service.ask(p))))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return answers


def start(args, cluster, work):
    store = cluster.store(pathlib.Path(work) / "data")
    threads = str(max(1, args.threads // args.workers))
    flags = ["--exactness", "invariant", "--threads", threads, "--max-queue", "1000"]
    if args.places:
        flags += ["--max-running", str(args.places)]
    return [cluster.worker(args.model, store.address, *flags) for _ in range(args.workers)]


def alone(service, prompts, repetitions=3):
    """The least time to first token of a request that nothing else is beside, by kind."""
    return {make()[0]: min(service.ask(make())["ttft_ms"] for _ in range(repetitions))
            for make in prompts.kinds()}


def check_retried(cluster, worker, answers):
    """How many retried answers are not what the prompt gives without a cache."""
    wrong = 0
    for answer in answers:
        if not answer.get("retried"):
            continue
        again = cluster.generate(worker.address, answer["ids"], "--cache", "off",
                                 max_new_tokens=ANSWER_TOKENS)
        wrong += any(again[key] != answer[key] for key in ("token_ids", "first_logits_sha256"))
    return wrong


def row(name, times):
    median = statistics.median(times)
    p99 = percentile(times, 0.99)
    print(f"{name:10}{len(times):9}{median:10.0f}{p99:10.0f}{max(times):10.0f}{p99 / median:10.2f}")
    return {"count": len(times), "p50_ms": median, "p99_ms": p99, "max_ms": max(times)}


def run(args, shape):
    prompts = Prompts(args, shape)
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        workers = start(args, cluster, work)
        service = Service(cluster, workers)
        for prefix in prompts.prefixes:
            for worker in workers:
                cluster.generate(worker.address, prefix + prompts.tokens(prompts.own_tokens),
                                 "--breakpoint", len(prefix), "--wait-published")
        lone = alone(service, prompts)
        print("alone, ms to the first token: "
              + ", ".join(f"{kind} {ms:.0f}" for kind, ms in lone.items()))
        capacity = args.capacity or closed_loop(service, prompts.mixed(args.requests // 3),
                                                (args.places or PLACES) * args.workers)
        rate = args.share * capacity
        print(f"capacity {capacity:.2f} requests a second, load {rate:.2f}", flush=True)
        answers = open_loop(service, prompts.mixed(args.requests), rate, args.seed,
                            workers[-1].kill if args.kill else lambda: None)
        lost = [answer["error"] for answer in answers if "error" in answer]
        wrong = check_retried(cluster, workers[0], answers)
        retried = sum(bool(answer.get("retried")) for answer in answers)
    print(f"{'requests':10}{'count':>9}{'p50 ms':>10}{'p99 ms':>10}{'max ms':>10}{'p99/p50':>10}")
    result = {"alone_ms": lone, "capacity": capacity, "rate": rate, "lost": len(lost),
              "retried": retried, "wrong": wrong}
    times = {}
    for answer in answers:
        if "error" not in answer:
            times.setdefault(answer["kind"], []).append(answer["ttft_ms"])
    for kind in sorted(times):
        result[kind] = row(kind, times[kind])
    result["all"] = row("all", sum(times.values(), []))
    result["ratio"] = result["all"]["p99_ms"] / result["all"]["p50_ms"]
    result["floor"] = max(lone.values()) / lone["shared"]
    result["met"] = result["ratio"] <= BAR
    print(f"{shape}: p99 / median {result['ratio']:.2f}, the bar {BAR:.0f}: "
          f"{'met' if result['met'] else 'missed'} (floor {result['floor']:.2f})")
    print(f"lost {len(lost)}, retried {retried}, of these wrong {wrong}", flush=True)
    for error in lost[:3]:
        print(f"    {error}")
    return result


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--shape", default="both", choices=("tokens", "requests", "both"))
    parser.add_argument("--requests", type=int, default=120, help="of the load (default 120)")
    parser.add_argument("--share", type=float, default=0.7, help="of the capacity (default 0.7)")
    parser.add_argument("--capacity", type=float, help="requests a second; else it is measured")
    parser.add_argument("--prefix-tokens", type=int, default=512)
    parser.add_argument("--own-tokens", type=int, default=64,
                        help="behind a prefix; of shape requests (default 64)")
    parser.add_argument("--new-tokens", type=int, help="of a new prompt (default: both together)")
    parser.add_argument("--workers", type=int, default=1, choices=(1, 2))
    parser.add_argument("--places", type=int, help=f"--max-running of a worker (default {PLACES})")
    parser.add_argument("--threads", type=int, default=2, help="of all workers together")
    parser.add_argument("--kill", action="store_true", help="a worker, midway; needs --workers 2")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.kill and args.workers < 2:
        parser.error("--kill needs --workers 2: somebody has to answer afterwards")
    shapes = ("tokens", "requests") if args.shape == "both" else (args.shape,)
    results = {shape: run(args, shape) for shape in shapes}
    figures.write(args, {**vars(args), **results})
    sys.exit(0 if all(result["met"] and not result["lost"] and not result["wrong"]
                      for result in results.values()) else 1)


if __name__ == "__main__":
    main()
