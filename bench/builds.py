"""Two builds of Hearth by turns: does a change cost speed?

    .venv/bin/python bench/builds.py BEFORE AFTER [--pairs 9] [--only door] [--model FILE]

BEFORE and AFTER are folders with hearth-worker, hearth-store and hearthctl, such as build/bin; the
requests of the rows "door" come from AFTER's door_bench. In each pair, both builds are started and
measured one after the other, in an order that alternates: no process of the other build is alive
meanwhile. Rows: a prefill of 512 and of 2,048 tokens, a token alone, a token of eight sequences,
and the first token after 2,048 tokens from the store (see bench/engines.py), in seconds; first
token in ms, and seconds for each token, by gRPC and by HTTP, with one stream and with eight.

Each row shows the medians of both builds and of the ratio in a pair, before / after: above 1, the
build AFTER is faster. All ratios follow. Two processes of one build differ by up to
10 % in a pair on a virtual machine: compare medians of nine pairs or more, on a machine that does
nothing else. Exits with 1 if a median is below --bar, except those of first tokens by door_bench,
which are printed only: a turn has three of them.
"""

import argparse
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from engines import Hearth  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)

ENGINE_ROWS = ("prefill 512", "prefill 2048", "decode 512", "batch 8 256", "warm")
STREAMS = ((1, 100), (8, 40))  # (number of parallel streams, tokens to generate in each stream)
DOOR = re.compile(r"^(\w+): first token ([\d.]+) ms, ([\d.]+) tokens/s")


def door(args, cluster):
    worker = cluster.worker(args.model, "none", pages=("http",))
    http = worker.url("http").removeprefix("http://")
    times = {}
    for streams, tokens in STREAMS:
        done = subprocess.run(
            [args.after / "door_bench", worker.address, http, str(worker.popen.pid), "3",
             str(streams), str(tokens)], capture_output=True, text=True, check=True)
        for line in done.stdout.splitlines():
            protocol, first_ms, rate = DOOR.match(line).groups()
            row = f"door, {protocol}, {streams} streams"
            times[f"{row}: first token"] = float(first_ms)
            times[f"{row}: token"] = 1 / float(rate)
    return times


def measure(args, build):
    """Starts a build once; returns {row: seconds or milliseconds}."""
    with tempfile.TemporaryDirectory() as work, Cluster(build, work) as cluster:
        times = door(args, cluster) if args.only in ("", "door") else {}
        rows = [row for row in ENGINE_ROWS if row.startswith(args.only)]
        if rows:
            store = cluster.store(pathlib.Path(work) / "data")
            engine = Hearth(cluster, args.model, store.address, "--pool-bytes", "0")
            for row in rows:
                engine(row)
                times[row] = engine(row)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path)
    parser.add_argument("after", type=pathlib.Path)
    parser.add_argument("--model", default=ROOT / "models/gemma-3-270m.gguf")
    parser.add_argument("--json", help="file to write all figures to")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", default="", help="beginning of a row's name, or door")
    parser.add_argument("--bar", type=float, default=0.99)
    args = parser.parse_args()
    if args.only != "door" and not any(row.startswith(args.only) for row in ENGINE_ROWS):
        parser.error(f"--only must be door or begin one of: {', '.join(ENGINE_ROWS)}")
    pairs = []
    for number in range(args.pairs):
        order = ("before", "after") if number % 2 == 0 else ("after", "before")
        pairs.append({side: measure(args, getattr(args, side)) for side in order})
        print(f"pair {number + 1} of {args.pairs}", file=sys.stderr, flush=True)
    failed = False
    for row in pairs[0]["before"]:
        ratios = [pair["before"][row] / pair["after"][row] for pair in pairs]
        before, after = (statistics.median(pair[side][row] for pair in pairs)
                         for side in ("before", "after"))
        ratio = statistics.median(ratios)
        missed = ratio < args.bar and not row.endswith("first token")
        failed = failed or missed
        verdict = "MISSED" if missed else "held"
        print(f"{row:34} {before:9.4f} {after:9.4f}  {ratio:5.3f} {verdict:6}"
              f"  {' '.join(f'{one:.2f}' for one in ratios)}")
    figures.write(args, pairs)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
