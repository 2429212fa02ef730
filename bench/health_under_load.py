"""How long health takes while callers do their worst, at a worker and at a store.

    .venv/bin/python bench/health_under_load.py [--model DIR] [--seconds 10]

Starts a store and a worker on loopback and runs build/bin/health_bench against each. Prints for
each load health's median and worst and whether the bars are held, median below 50 ms and worst
below 250 ms, and the servers' resident memory before and after. Exits with 1 where one is missed.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from hearth_procs import Cluster  # noqa: E402  (path set above)


def resident_mib(process):
    status = pathlib.Path(f"/proc/{process.popen.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


MOST_MEDIAN_MS, MOST_WORST_MS = 50.0, 250.0
LINE = re.compile(r"(.*?) +health median +([0-9.]+) ms +worst +([0-9.]+) ms (.*)")


def run_loads(argv, server):
    """Prints a line for each load; the names of those that missed a bar."""
    missed, loads = [], 0
    with subprocess.Popen([*map(str, argv)], stdout=subprocess.PIPE, text=True) as bench:
        for line in bench.stdout:
            load, median, worst, rest = LINE.match(line).groups()
            loads += 1
            is_held = float(median) < MOST_MEDIAN_MS and float(worst) < MOST_WORST_MS
            if not is_held:
                missed.append(f"{server}: {load}")
            print(f"{server:7} {load:22} {float(median):8.2f} {float(worst):8.2f}  "
                  f"{'held  ' if is_held else 'missed'}  {rest}", flush=True)
    if bench.returncode != 0 or loads == 0:
        raise RuntimeError(f"health_bench {server} ended with {bench.returncode}, {loads} loads")
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models/gemma-3-270m"))
    parser.add_argument("--bin", default=str(ROOT / "build/bin"))
    parser.add_argument("--seconds", type=int, default=10)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        store = cluster.store(pathlib.Path(work) / "data", "--host-bytes", "64MiB")
        worker = cluster.worker(args.model, store.address, "--pool-bytes", "0")
        print(f"{'server':7} {'load':22} {'median':>8} {'worst':>8}  ms", flush=True)
        missed = []
        for name, process in (("worker", worker), ("store", store)):
            before = resident_mib(process)
            missed += run_loads([pathlib.Path(args.bin) / "health_bench", name, process.address,
                                 args.seconds], name)
            print(f"{name:7} resident: {before:.0f} MiB before, {resident_mib(process):.0f} after",
                  flush=True)
    print(f"missed: {', '.join(missed)}" if missed else "every bar is held")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
