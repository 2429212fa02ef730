"""Tests a fleet under faults.

    chaos.py BIN_DIR WRITE_CHECKPOINT [FAULT...] [--count N] [--rate R] [--short]

Three stores and four workers on their own hosts (network namespaces) share a Redis Cluster of three
primaries, each with a replica. Each fault happens while an open-loop load runs. Each answer must
equal, bit for bit, the answer of a worker without a store. Prints each figure with its bar. Exit
code 1: a bar was missed; 77: network namespaces are not permitted.
"""

import argparse
import pathlib
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
sys.path[:0] = [str(ROOT / "tests" / "system"), str(ROOT / "scripts")]

import namespaces  # noqa: E402  (path set above)
import outages  # noqa: E402
import changes  # noqa: E402
from engine import NODE_TIMEOUT_MS, PATIENT_NODE_TIMEOUT_MS, Engine  # noqa: E402
from fleet import Fleet  # noqa: E402
from redis_process import skip_without_redis  # noqa: E402
from verdict import Verdict  # noqa: E402

FAULTS = {
    "primary_killed": (outages.primary_killed, {}),
    "primary_silent": (outages.primary_silent, {}),
    "shard_lost": (outages.shard_lost, {"replicas": 0}),
    "store_lost": (outages.store_lost, {"replicas": 0}),
    "worker_lost": (outages.worker_lost, {"replicas": 0}),
    "engine_silent": (outages.engine_silent, {"replicas": 0}),
    "engine_delayed": (changes.engine_delayed, {"replicas": 0}),
    "reshard": (changes.reshard, {}),
    "partition_and_drop": (changes.partition_and_drop, {"replicas": 0}),
    "drop_and_loss": (changes.drop_and_loss, {"replicas": 0}),
    "narrow_engine": (changes.narrow_engine, {"replicas": 0}),
    "newcomers": (changes.newcomers, {"replicas": 0}),
    "full_engine": (changes.full_engine, {"replicas": 0}),
    "wrong_password": (changes.wrong_password, {"replicas": 0, "user": changes.USER}),
    "flushed": (changes.flushed, {"replicas": 0}),
    "emptied_server": (changes.emptied_server, {"replicas": 0}),
    "another_cluster": (changes.another_cluster, {"replicas": 0}),
}
# Faults to run one after the other in one fleet. The last one kills a server.
SHORT = ("newcomers", "store_lost", "partition_and_drop", "primary_killed")


class Field:
    """The environment of a fault: the Redis cluster (`engine`), a fleet whose prompts are published
    there, and the parameters of the load."""

    def __init__(self, args, how, folder):
        self.verdict, self.count, self.rate = None, args.count, args.rate
        self.engine = Engine(folder, replicas=how.get("replicas", 1), node_timeout_ms=(
            PATIENT_NODE_TIMEOUT_MS if args.short else NODE_TIMEOUT_MS))
        self.password_file = folder / "password"
        flags = ()
        if "user" in how:
            self.password_file.write_text("one\n")
            self.password_file.chmod(0o600)
            self.engine.of_all("acl", "setuser", how["user"], ">one", *changes.RIGHTS)
            flags = ("--shared-user", how["user"], "--shared-password-file", self.password_file)
        self.fleet = None
        try:
            self.fleet = Fleet(args.bin_dir, args.write_checkpoint, folder, self.engine.urls(),
                               store_flags=flags, model=args.model, patient=args.short)
            self.fleet.publish_known()
        except BaseException:
            self.close()
            raise

    def cut(self, node):
        """Drops the cluster's answers to the node's store."""
        for server in self.engine.servers:
            server.host.block_replies([node.host])

    def heal(self, node):
        for server in self.engine.servers:
            server.host.unblock_replies([node.host])

    def close(self):
        if self.fleet is not None:
            self.fleet.close()
        self.engine.kill()
        namespaces.Host.forget_names()


def run_faults(args, names, how):
    """Runs these faults, one after the other, in one fleet; returns the missed bars."""
    missed = []
    with tempfile.TemporaryDirectory(prefix="hearth-chaos-") as folder:
        field = Field(args, how, pathlib.Path(folder))
        try:
            for name in names:
                field.verdict = Verdict(name, lambda line: print(line, flush=True), not args.short)
                FAULTS[name][0](field)
                missed += field.verdict.missed
        finally:
            field.close()
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bin_dir")
    parser.add_argument("write_checkpoint")
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=", ".join(FAULTS))
    parser.add_argument("--count", type=int, default=400, help="requests in a trace")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second")
    parser.add_argument("--model", help="a checkpoint's folder; a small model unless given")
    parser.add_argument("--short", action="store_true",
                        help="a few faults in one fleet, and no figure of time is held to its bar")
    args = parser.parse_intermixed_args()
    for name in args.faults:
        if name not in FAULTS:
            parser.error(f"no such fault: {name}")
    skip_without_redis()
    namespaces.enter()
    missed = []
    if args.short:
        missed = run_faults(args, args.faults or SHORT, {})
    else:
        for name in args.faults or FAULTS:
            missed += run_faults(args, [name], FAULTS[name][1])
    for line in missed:
        print("MISSED", line)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
