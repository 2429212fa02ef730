"""How long health takes while callers do their worst, at a worker and at a store.

    .venv/bin/python bench/health_under_load.py [--model DIR] [--seconds 10]

Starts a store and a worker on loopback and runs build/bin/health_bench against each. Prints the
servers' resident memory before and after as well. The bar: median below 50 ms, worst below 250 ms.
"""

import argparse
import pathlib
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
        for name, process in (("worker", worker), ("store", store)):
            print(f"{name}: {resident_mib(process):.0f} MiB resident before", flush=True)
            subprocess.run([pathlib.Path(args.bin) / "health_bench", name, process.address,
                            str(args.seconds)], check=True)
            print(f"{name}: {resident_mib(process):.0f} MiB after", flush=True)


if __name__ == "__main__":
    main()
