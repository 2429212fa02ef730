"""Warm time to first token by where the prefix comes from: the pool, shared memory, TCP.

    .venv/bin/python bench/warm_sources.py [--model DIR] [--prefix 2048] [--reps 15] [--json FILE]

Three workers of the class invariant and one store in another process on this host: one has the
prefix in its own pool, one without a pool reads the store's shared memory, one takes everything
over TCP. They are asked in turns for the same prefix with ever another ending, reading only.
Printed, best and median: TTFT by the client's clock, the worker's fetch (lookup, transfer and
restore) and its prefill of the ending, and the TTFT above the pool's of the same turn (median of
the differences). The bars, of issue 13: 6 ms by shared memory, 40 ms over TCP. Beside other work
only the fetch's best says something.
"""

import pathlib
import random
import statistics
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)

BARS_MS = {"shared memory": 6, "tcp": 40}


def measure(args, cluster, store):
    source = random.Random(1)
    tokens = lambda count: [source.randrange(1000, 200000) for _ in range(count)]  # noqa: E731
    prefix = [2] + tokens(args.prefix - 1)
    flags = ["--exactness", "invariant", "--threads", args.threads]
    bare = [*flags, "--pool-bytes", "0"]
    sides = {"pool": cluster.worker(args.model, store.address, *flags),
             "shared memory": cluster.worker(args.model, store.address, *bare),
             "tcp": cluster.worker(args.model, store.address, *bare, "--store-shared-memory",
                                   "off")}
    ask = lambda worker, *more: cluster.generate(  # noqa: E731
        worker.address, prefix + tokens(args.ending), "--breakpoint", args.prefix, *more)
    ask(sides["pool"], "--wait-published")
    for worker in sides.values():  # it maps the segment, and touches its memory
        for _ in range(2):
            ask(worker, "--cache", "read")
    runs = {side: [] for side in sides}
    for _ in range(args.reps):
        for side, worker in sides.items():
            out = ask(worker, "--cache", "read")
            assert out["cached_tokens"] == args.prefix, out
            assert (out["source_tier"] == "worker") == (side == "pool"), out
            runs[side].append({"ttft_ms": out["ttft_ms"], "fetch_ms": out["server"]["fetch_ms"],
                               "prefill_ms": out["server"]["prefill_ms"]})
    return runs


def report(runs, args):
    print(f"{args.prefix} + {args.ending} tokens, class invariant, {args.reps} turns; best, median")
    result = {}
    for side, all_runs in runs.items():
        line = f"{side:14}"
        row = {}
        for part in ("ttft_ms", "fetch_ms", "prefill_ms"):
            values = [run[part] for run in all_runs]
            row[part] = [min(values), statistics.median(values)]
            line += f"  {part[:-3]} {row[part][0]:7.1f} {row[part][1]:7.1f}"
        if side in BARS_MS:
            row["above_pool_ms"] = statistics.median(
                run["ttft_ms"] - pool["ttft_ms"] for run, pool in zip(all_runs, runs["pool"]))
            best = row["fetch_ms"][0] - result["pool"]["fetch_ms"][0]
            line += (f"  above the pool {row['above_pool_ms']:6.1f}, fetch's best {best:5.1f}"
                     f" (bar {BARS_MS[side]})")
        print(line + "  ms")
        result[side] = row
    figures.write(args, result)


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--prefix", type=int, default=2048)
    parser.add_argument("--ending", type=int, default=64)
    parser.add_argument("--reps", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        report(measure(args, cluster, cluster.store(pathlib.Path(work) / "data")), args)


if __name__ == "__main__":
    main()
