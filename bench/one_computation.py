"""Eight clients that miss one prefix together, with and without leases on its computation.

    .venv/bin/python bench/one_computation.py [--model DIR] [--workers 2] [--json FILE]

A fresh store and fresh workers for each run; all clients send a prompt that begins with the same
tokens and ends with their own, at once, spread over the workers. Two kinds: the common part is
declared (a breakpoint), or it is not and the store has to notice it. Each with leases (the
workers' defaults) and without (--compute-wait 0s --compute-lease 0s), interleaved. Printed: prompt
tokens that went through a model, all clients together; the time until the last one has its first
token; the mean time to first token. The least possible is the common part once and every ending.
"""

import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)

OFF = ["--compute-wait", "0s", "--compute-lease", "0s"]


def run_once(args, leases, declared):
    source = random.Random(1)
    tokens = lambda count: [source.randrange(1000, 200000) for _ in range(count)]  # noqa: E731
    shared = [2] + tokens(args.prefix - 1)
    prompts = [shared + tokens(args.ending) for _ in range(args.clients)]
    mark = ["--breakpoint", args.prefix] if declared else []
    answers = [None] * args.clients
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        store = cluster.store(pathlib.Path(work) / "data")
        flags = ["--dtype", "float32", "--threads", args.threads] + ([] if leases else OFF)
        workers = [cluster.worker(args.model, store.address, *flags) for _ in range(args.workers)]

        def ask(i):
            answers[i] = cluster.generate(workers[i % args.workers].address, prompts[i], *mark)

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(args.clients)]
        start = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - start
        counters = cluster.ctl("stats", "--store", store.address)["counters"]
    computed = sum(a["prompt_tokens"] - a["cached_tokens"] for a in answers)
    return {"leases": leases, "declared": declared, "computed_tokens": computed,
            "prompt_tokens": sum(a["prompt_tokens"] for a in answers), "seconds": seconds,
            "mean_ttft_ms": statistics.mean(a["ttft_ms"] for a in answers),
            "counters": {k: v for k, v in counters.items() if "lease" in k}}


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1, help="compute threads of each worker")
    parser.add_argument("--prefix", type=int, default=1024)
    parser.add_argument("--ending", type=int, default=160)
    parser.add_argument("--reps", type=int, default=3)
    args = parser.parse_args()
    runs = [run_once(args, leases, declared) for _ in range(args.reps)
            for declared in (True, False) for leases in (True, False)]
    least = args.prefix + args.clients * args.ending
    print(f"{args.clients} clients, {args.workers} workers, {args.prefix} common + {args.ending} "
          f"own tokens; least possible {least:,} computed; medians of {args.reps}")
    print(f"{'common part':14}{'leases':8}{'computed':>10}{'of least':>10}{'all done':>10}"
          f"{'mean TTFT':>12}")
    for declared in (True, False):
        for leases in (True, False):
            same = [r for r in runs if (r["declared"], r["leases"]) == (declared, leases)]
            middle = {k: statistics.median(r[k] for r in same)
                      for k in ("computed_tokens", "seconds", "mean_ttft_ms")}
            print(f"{'declared' if declared else 'found':14}{'on' if leases else 'off':8}"
                  f"{middle['computed_tokens']:10,.0f}{middle['computed_tokens'] / least:10.2f}"
                  f"{middle['seconds']:8.2f} s{middle['mean_ttft_ms']:9.0f} ms")
    figures.write(args, runs)


if __name__ == "__main__":
    main()
