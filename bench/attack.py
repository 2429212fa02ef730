"""Delays of an honest client, of a store's and of a worker's, while others attack.

    .venv/bin/python bench/attack.py [--only NAME] [--rounds 3] [--calls 100] [--json FILE]

Each attack has a new store; all attacks share one worker. An honest client (build/bin/caller_bench)
makes a fixed number of calls, by turns without and with the attack. It calls a store for health, a
small publish and a fetch of it, as tenant `honest`; it calls a worker for health, for tokenizing a
short text and sometimes for generating a token. The attacker is one process
(tests/system/hostile_calls.py) with a bounded rate. It is a stranger without credentials or another
tenant. It runs with --nice and only on idle cores (chrt --idle): it stands for another machine.

Before the calls without attack, the bench waits at most 5 s for an idle server. Each attack's line:
p99 of the honest client's calls alone and attacked (medians of the rounds, for the kind of call
with the largest ratio; --json FILE has all kinds), the median of the rounds' ratios; health's
median and worst while attacked; resident memory, maximum and afterwards; failed calls; the
attacker's and the server's shares of a core. The bars of issue 12: ratio < 4; health's median < 50
ms and worst < 250 ms; no failed call; memory <= the server's limits + 256 MiB. An attack counts
only if it ran until it was stopped and had a connection for half of its units. Exits with 1 if a
bar is missed. All attacks take 8 to 11 minutes.

--control adds a turn: a second server is attacked while the honest client calls the first one. Any
slowdown is then due to the machine, whose cores both servers and the attacker share. The column
`machine` is the median of p99 in these turns over p99 alone. A ratio up to this value is not caused
by the server.

--only takes the beginning of a name and may be repeated: `--only store/` is all attacks on the
store. Times on a machine that does other work are upper bounds.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/system")]
from hearth_procs import Cluster, make_certificate  # noqa: E402  (path set above)
import hostile_calls  # noqa: E402

MIB = 1 << 20
HOST_MIB, STAGED_MIB, UNFINISHED_MIB, CONNECTIONS_MIB = 64, 64, 128, 64
BESIDE_MIB = 256
# A store's memory limits: RAM tier, staged publishes, partly received messages, connections.
STORE_LIMITS_MIB = HOST_MIB + STAGED_MIB + UNFINISHED_MIB + CONNECTIONS_MIB
WORKER_LIMITS_MIB = UNFINISHED_MIB + CONNECTIONS_MIB
QUOTA = "32MiB"
MOST_RATIO, MOST_MEDIAN_MS, MOST_WORST_MS = 4.0, 50.0, 250.0
# After an attack, a server must use at most REST_SHARE of one core within REST_S seconds.
REST_S, REST_SHARE = 5.0, 0.1
SETTLE_S = 1.0  # seconds of attack before the honest client begins

# {attack: (units a second, whether the attacker has a tenant's token)}. hostile_calls.py defines
# the unit of each attack.
RATES = {
    "half-sent": (20, False), "connect-close": (300, False), "connect-silent": (200, False),
    "connect-preface": (200, False), "garbage": (200, False), "tls-abandoned": (200, False),
    "tls-half-hello": (200, False), "rapid-reset": (400, False), "pings": (50, False),
    "settings": (50, False),
    "many-headers": (50, False), "gzip-bomb": (10, False),
    "wrong-tokens": (500, False), "health-flood": (500, False), "parse-bombs": (5, True),
    "trickle-publish": (10, True), "trickle-read": (10, True), "staging": (4, True),
    "fetch-cuts": (5, True), "explain-cuts": (5, True), "long-leases": (5, True),
    "lease-flood": (300, True), "lease-endless": (300, True), "list-watch": (200, True),
    "tokenize-words": (5, True), "tokenize-word": (5, True), "prefill-ids": (5, True),
}
# {attack: (number of its first prompt, pause between calls in ms, more arguments of caller_bench)}.
# `neighbour` publishes and fetches 4 MiB. `pin-flood` publishes and pins as much as its tenant may.
# Both send the next call after the answer to the last one. `generates` keeps 100 requests for one
# token at a worker, which refuses most of them.
CALLERS = {"neighbour": (1000000, 40, {"mib": 4}),
           "pin-flood": (1000000, 5, {"mib": 1, "pins": "yes"})}
WORKER_CALLERS = {"generates": (1000000, 0, {"threads": 100})}
ALL_CALLERS = {**CALLERS, **WORKER_CALLERS}


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def memory_mib(process, field):
    return process.status_field(field) / 1024


def processor_s(pid):
    """Returns the processor seconds that the process has used; 0 if it has ended."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def background(nice):
    """Returns the command prefix that runs an attacker at the lowest priority. The attacker stands
    for another machine, so it must not take processor time from the server."""
    return [*(["chrt", "--idle", "0"] if shutil.which("chrt") else []), "nice", "-n", str(nice)]


def identities_file(folder, names=("honest", "other")):
    """Writes an identities file with a token for each of these tenants. Returns (file, {tenant:
    token})."""
    tokens = {name: "token-of-" + name for name in names}
    identities = [{"name": name, "role": "tenant",
                   "token_sha256": hashlib.sha256(token.encode()).hexdigest()}
                  for name, token in tokens.items()]
    file = folder / "identities.json"
    file.write_text(json.dumps({"identities": identities}))
    return file, tokens


class Server:
    """A store or a worker, with its honest client."""

    def __init__(self, args, cluster, folder, kind):
        self.args, self.cluster, self.folder, self.kind = args, cluster, folder, kind
        self.tokens = {}
        self.first = 0
        self.tls_words = []
        if kind == "worker":
            self.process = cluster.worker(args.model, "none", "--pool-bytes", "0",
                                          "--identities-file", self.identities())
            self.limits_mib = WORKER_LIMITS_MIB
        else:
            self.process = self.store("tls" in kind)
            self.limits_mib = STORE_LIMITS_MIB
        self.honest()  # the first calls are slower and are not measured
        self.before_mib = memory_mib(self.process, "VmRSS")

    def identities(self):
        file, tokens = identities_file(self.folder)
        for name, token in tokens.items():
            self.tokens[name] = self.folder / f"{name}.token"
            self.tokens[name].write_text(token)
        return file

    def store(self, with_tls):
        (self.folder / "tenants.json").write_text(json.dumps(
            {"tenants": {"other": {"max_bytes": QUOTA}}}))
        flags = ["--host-bytes", f"{HOST_MIB}MiB", "--max-staged-bytes", f"{STAGED_MIB}MiB",
                 "--unfinished-bytes", f"{UNFINISHED_MIB}MiB", "--disk-bytes", "1GiB",
                 "--identities-file", self.identities(),
                 "--tenants-file", self.folder / "tenants.json"]
        if with_tls:
            certificate, key = make_certificate(self.folder, "store")
            self.tls_words = [f"ca={certificate}"]
            flags += ["--tls-cert", certificate, "--tls-key", key]
        return self.cluster.store(self.folder / "data", *flags)

    def caller(self, calls, pause_ms, who="honest", **more):
        """Returns the command of caller_bench for this server."""
        words = [f"{name}={value}" for name, value in more.items()]
        if who in self.tokens:
            words.append(f"token={self.tokens[who]}")
        return [pathlib.Path(self.args.bin) / "caller_bench",
                "worker" if self.kind == "worker" else "store", self.process.address, str(calls),
                str(pause_ms), *words, *self.tls_words]

    def honest(self):
        done = subprocess.run(self.caller(self.args.calls, 5, first=self.first),
                              stdout=subprocess.PIPE, check=True, text=True, timeout=600)
        self.first += self.args.calls + 1
        try:
            return json.loads(done.stdout.splitlines()[-1])
        except ValueError:
            raise RuntimeError("caller_bench said: " + done.stdout[:500]) from None


def rest(process):
    """Waits until the process (a Popen) is idle after an attack, at most REST_S."""
    end = time.monotonic() + REST_S
    while time.monotonic() < end:
        begin, used = time.monotonic(), processor_s(process.pid)
        time.sleep(0.25)
        if processor_s(process.pid) - used < REST_SHARE * (time.monotonic() - begin):
            return


class Attacker:
    """A process that attacks at a bounded rate until stop(). `turn`: number of this run of the
    attack, from 0."""

    def __init__(self, server, name, nice, turn):
        kind = "worker" if server.kind == "worker" else "store"
        if name in ALL_CALLERS:
            first, pause_ms, more = ALL_CALLERS[name]
            # Each turn uses new prompts, because storing or pinning a stored prompt again costs the
            # server nothing.
            argv = server.caller(100000, pause_ms, "other", first=first + 100001 * turn, **more)
        else:
            rate, is_known = RATES[name]
            argv = [sys.executable, "-B", ROOT / "tests/system/hostile_calls.py", f"{kind}/{name}",
                    server.process.address,
                    server.tokens["other"].read_text() if is_known and server.tokens else "",
                    rate * server.args.times]
        self.name, self.begin = name, time.monotonic()
        self.popen = subprocess.Popen([*background(nice), *map(str, argv)],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self):
        """Ends the attacker. Returns its report, with is_attack (it kept attacking until now) and
        the share of a core that it used."""
        is_attack = self.popen.poll() is None
        if self.name in ALL_CALLERS:
            self.popen.kill()
        self.popen.stdin.close()
        text = self.popen.stdout.read()
        seconds = time.monotonic() - self.begin
        if self.popen.returncode is not None:  # the attacker has exited by itself
            return {"is_attack": False, "share": 0.0}
        _, status, usage = os.wait4(self.popen.pid, 0)
        self.popen.returncode = 0
        if self.name not in ALL_CALLERS and (status or not text.startswith("{")):
            raise RuntimeError(f"{self.name}: the attacker ended with status {status}")
        said = json.loads(text) if self.name not in ALL_CALLERS else {}
        if said and 2 * said["unconnected"] >= said["units"]:
            is_attack = False
        share = (usage.ru_utime + usage.ru_stime) / seconds
        return {**said, "is_attack": is_attack, "share": share}


def calls_under_attack(server, attacked, name, turn):
    """Runs the honest client against `server` while `attacked` is under attack. Returns (figures of
    the honest client, cores used by the attacked server and by the attacker)."""
    attacker = Attacker(attacked, name, server.args.nice, turn)
    time.sleep(SETTLE_S)
    pid = attacked.process.popen.pid
    begin, used = time.monotonic(), processor_s(pid)
    share = {}
    try:
        saw = server.honest()
    finally:
        share = {"server": (processor_s(pid) - used) / (time.monotonic() - begin),
                 **attacker.stop()}
    return saw, share


def measure(args, server, name, twin=None):
    # Resets VmHWM (peak memory), because a worker needs more memory to start than to serve.
    pathlib.Path(f"/proc/{server.process.popen.pid}/clear_refs").write_text("5")
    # Stores 16 MiB. The attacker requests these bytes and does not read the answer.
    if name == "trickle-read":
        subprocess.run(server.caller(0, 0, "other", first=0, mib=16), check=True,
                       stdout=subprocess.DEVNULL)
    alone, attacked, shares, control = [], [], [], []
    for turn in range(args.rounds):
        rest(server.process.popen)
        alone.append(server.honest())
        if twin is not None:
            control.append(calls_under_attack(server, twin, name, turn)[0])
            rest(twin.process.popen)
        saw, share = calls_under_attack(server, server, name, turn)
        attacked.append(saw)
        shares.append(share)
    most = memory_mib(server.process, "VmHWM")
    server.honest()
    return judge(server, f"{server.kind}/{name}", alone, attacked, shares, most, control)


def started(args, names, kind):
    """Starts a server and yields the row of each attack on it."""
    with tempfile.TemporaryDirectory(prefix="hearth-attack-") as folder, \
            Cluster(args.bin, pathlib.Path(folder) / "processes") as cluster:
        server = Server(args, cluster, pathlib.Path(folder), kind)
        twin = None
        if args.control:
            (pathlib.Path(folder) / "twin").mkdir()
            twin = Server(args, cluster, pathlib.Path(folder) / "twin", kind)
        for name in names:
            yield measure(args, server, name, twin)


def measured(args, chosen):
    """Yields the rows of all attacks. Each attack gets a new store, but all attacks share one
    worker, because starting a worker takes as long as two attacks."""
    workers = [name for kind, name in chosen if kind == "worker"]
    for kind, name in chosen:
        if kind != "worker":
            yield from started(args, [name], kind)
    if workers:
        yield from started(args, workers, "worker")


def judge(server, name, alone, attacked, shares, most_mib, control):
    def together(runs, kind):
        return [ms for run in runs for ms in run[kind]]
    kinds = [kind for kind in alone[0] if isinstance(alone[0][kind], list)]
    row = {"name": name, "failed": sum(run["failed"] for run in alone + attacked),
           "why": next((run["why"] for run in alone + attacked if run["why"]), ""),
           "memory_most_mib": most_mib, "memory_limit_mib": server.limits_mib + BESIDE_MIB +
           (server.before_mib if server.kind == "worker" else 0),
           "memory_after_mib": memory_mib(server.process, "VmRSS"),
           "first_ms": max(run["first_ms"] for run in attacked),
           "shares": shares, "calls": {}}
    for kind in kinds:
        a, b = together(alone, kind), together(attacked, kind)
        a99 = [percentile(run[kind], .99) for run in alone]
        b99 = [percentile(run[kind], .99) for run in attacked]
        ratios = [during / before for before, during in zip(a99, b99)]
        row["calls"][kind] = {
            "alone_p50": percentile(a, .5), "alone_p99": statistics.median(a99),
            "attacked_p50": percentile(b, .5), "attacked_p99": statistics.median(b99),
            "ratios": ratios, "ratio": statistics.median(ratios)}
        if control:
            machine = [percentile(run[kind], .99) / before for before, run in zip(a99, control)]
            row["calls"][kind].update(machines=machine, machine=statistics.median(machine))
    health = together(attacked, "health")
    row["health_median"], row["health_worst"] = percentile(health, .5), max(health)
    row["ratio"] = max(call["ratio"] for call in row["calls"].values())
    missed = []
    if row["ratio"] >= MOST_RATIO:
        missed.append("ratio")
    if row["health_median"] >= MOST_MEDIAN_MS or row["health_worst"] >= MOST_WORST_MS:
        missed.append("health")
    if row["failed"]:
        missed.append("failed")
    if max(row["memory_most_mib"], row["memory_after_mib"]) > row["memory_limit_mib"]:
        missed.append("memory")
    if not all(each["is_attack"] for each in shares):
        missed.append("no attack")
    row["missed"] = missed
    return row


COLUMNS = (f"{'attack':24} {'call':8} {'alone':>7} {'during':>7} {'ratio':>6} {'machine':>7} "
           f"{'median':>7} {'worst':>6} {'max':>5} {'after':>5} {'bar':>5} {'fail':>4} "
           f"{'units/s':>8} {'share':>5} {'server':>6}  verdict")


def show(row):
    """Prints a row, with the kind of call that has the largest ratio."""
    kind, call = max(row["calls"].items(), key=lambda item: item[1]["ratio"])
    share = sum(each["share"] for each in row["shares"]) / len(row["shares"])
    server = sum(each["server"] for each in row["shares"]) / len(row["shares"])
    units = sum(each.get("units", 0) for each in row["shares"])
    seconds = sum(each.get("seconds", 0) for each in row["shares"]) or 1
    verdict = "missed: " + ", ".join(row["missed"]) if row["missed"] else "held"
    verdict += f" ({row['why']})" if row["why"] else ""
    machine = f"{call['machine']:.2f}" if "machine" in call else "-"
    print(f"{row['name']:24} {kind:8} {call['alone_p99']:7.2f} {call['attacked_p99']:7.2f} "
          f"{row['ratio']:6.2f} {machine:>7} {row['health_median']:7.2f} "
          f"{row['health_worst']:6.1f} {row['memory_most_mib']:5.0f} "
          f"{row['memory_after_mib']:5.0f} {row['memory_limit_mib']:5.0f} {row['failed']:4d} "
          f"{units / seconds:8.1f} {share:5.2f} {server:6.2f}  {verdict}", flush=True)


def all_attacks(behind_proxy):
    names = [("store", name) for name in hostile_calls.STORE_ATTACKS]
    names += [("store", name) for name in CALLERS]
    names += [("store-tls", name) for name in ("tls-abandoned", "tls-half-hello", "garbage")]
    names += [("worker", name) for name in hostile_calls.WORKER_ATTACKS]
    names += [("worker", name) for name in WORKER_CALLERS]
    return [each for each in names if behind_proxy or each[1] not in hostile_calls.BEHIND_PROXY]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="attacks beginning with this")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side")
    parser.add_argument("--calls", type=int, default=100, help="calls of each kind in a turn")
    parser.add_argument("--times", type=float, default=1, help="factor for the attack rates")
    parser.add_argument("--control", action="store_true", help="also measure an unattacked server")
    parser.add_argument("--nice", type=int, default=10, help="the attacker's niceness")
    parser.add_argument("--model", default=str(ROOT / "models/gemma-3-270m.gguf"))
    parser.add_argument("--bin", default=str(ROOT / "build/bin"))
    parser.add_argument("--json", help="file to write all figures to")
    parser.add_argument("--behind-proxy", action="store_true",
                        help="also attacks that a proxy should stop; they have no bar")
    args = parser.parse_args()
    chosen = [(kind, name) for kind, name in all_attacks(args.behind_proxy)
              if not args.only or any(f"{kind}/{name}".startswith(only) for only in args.only)]
    if not chosen:
        parser.error("--only must begin one of: " +
                     ", ".join(f"{kind}/{name}" for kind, name in all_attacks(args.behind_proxy)))
    print("p99 of honest calls and health in ms; memory in MiB; shares of a core, the attacker's "
          "and the server's\n" + COLUMNS, flush=True)
    rows, begin = [], time.monotonic()
    for row in measured(args, chosen):
        rows.append(row)
        show(row)
        if args.json:
            pathlib.Path(args.json).write_text(json.dumps(rows, indent=1))
    missed = [row["name"] for row in rows if row["missed"]]
    print(f"missed by {len(missed)} of {len(rows)}: {', '.join(missed)}" if missed else
          f"every bar is held, in {len(rows)} attacks")
    print(f"{time.monotonic() - begin:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
