"""The demonstration: one prefix, computed once, restored everywhere.

    .venv/bin/python scripts/demo.py [--model PATH] [--keep]

Starts one store and two workers on loopback, sends a long shared prefix with two different endings,
then restarts the store, kills and replaces a worker, and compares every answer with a cold one.
Prints a table, writes build/demo.json and build/demo.svg, and ends with 0 only when every warm row
reused the prefix, gave the same text and the same logits, and was at least 5 times sooner.
"""

import argparse
import json
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import demo_picture  # noqa: E402  (path set above)
from hearth_procs import Cluster, ProcessFailed  # noqa: E402

PREFIX_TOKENS = 2048
NEW_TOKENS = 16
MIN_SPEEDUP = 5.0
RECONNECT_TIMEOUT_S = 15
ENDINGS = {
    "A": "\n\nQuestion: Whom did Alice follow down the rabbit-hole?\nAnswer: She followed",
    "B": "\n\nIn one sentence, the story so far: A girl called Alice",
}


def say(text):
    print(text, flush=True)


class Prompts:
    """The prompts: a shared prefix and two endings, as token ids. If the model has no tokenizer,
    the ids are random."""

    def __init__(self, cluster, address):
        model = cluster.ctl("model", "--worker", address)
        chunk, context = model["chunk_tokens"], model["context_tokens"]
        room = context - 8 * NEW_TOKENS
        self.breakpoint = min(PREFIX_TOKENS, room // chunk * chunk)
        if self.breakpoint == 0:
            raise ProcessFailed(f"the context must hold a chunk of {chunk} tokens; got {context}")
        self.dtype = model["dtype"]
        if model["has_tokenizer"]:
            self._read_text(cluster, address)
        else:
            self._make_ids(model["vocab_size"])
        if len(self.prefix) < self.breakpoint:
            raise ProcessFailed(f"text must have {self.breakpoint} tokens; got {len(self.prefix)}")

    def _read_text(self, cluster, address):
        text = ROOT / "scripts" / "data" / "demo_text.txt"
        ids = cluster.ctl("tokenize", "--worker", address, "--prompt-file", text)["token_ids"]
        self.prefix = ids[:self.breakpoint]
        self.endings = {}
        for name, ending in ENDINGS.items():
            ids = cluster.ctl("tokenize", "--worker", address, "--prompt", ending)["token_ids"]
            self.endings[name] = ids[1:]  # without <bos>
        self.warm_up = ids

    def _make_ids(self, vocab_size):
        source = random.Random(2048)
        def ids(count):
            return [source.randrange(3, vocab_size) for _ in range(count)]
        self.prefix = [2] + ids(self.breakpoint - 1)
        self.endings = {name: ids(20) for name in ENDINGS}
        self.warm_up = [2] + ids(20)

    def ids(self, ending):
        return self.prefix + self.endings[ending]


class Demo:
    """Sends requests and collects rows, each compared with the cold answer to the same prompt."""

    def __init__(self, cluster, prompts):
        self.cluster, self.prompts = cluster, prompts
        self.cold, self.rows = {}, []

    def ask(self, name, worker, ending, expected, *flags):
        say(f"  {name} ...")
        answer = self.cluster.generate(
            worker.address, self.prompts.ids(ending), "--breakpoint", self.prompts.breakpoint,
            *flags, max_new_tokens=NEW_TOKENS)
        if expected == "cold":
            self.cold.setdefault(ending, answer)
        reference = self.cold[ending]
        self.rows.append({
            "name": name,
            "expected": expected,
            "ending": ending,
            "prompt_tokens": answer["prompt_tokens"],
            "cached_tokens": answer["cached_tokens"],
            "source_tier": answer["source_tier"],
            "ttft_ms": answer["ttft_ms"],
            "speedup": reference["ttft_ms"] / answer["ttft_ms"],
            "text": answer["text"],
            "text_equal": (answer["text"] == reference["text"]
                           and answer["token_ids"] == reference["token_ids"]),
            "logits_equal": answer["first_logits_sha256"] == reference["first_logits_sha256"],
            "first_logits_sha256": answer["first_logits_sha256"],
        })

    def start_worker(self, model, store, *flags):
        """Starts a worker and sends one request, so that no row includes the extra time of a
        process's first request."""
        worker = self.cluster.worker(model, store.address, *flags)
        self.cluster.generate(worker.address, self.prompts.warm_up if self.prompts else [2],
                              "--cache", "off")
        return worker

    def wait_for_store(self, worker):
        """Waits until this worker reaches its store again."""
        deadline = time.monotonic() + RECONNECT_TIMEOUT_S
        ids = ",".join(map(str, self.prompts.ids("A")))
        while time.monotonic() < deadline:
            try:
                return self.cluster.ctl("explain", "--worker", worker.address, "--token-ids", ids,
                                        "--breakpoint", self.prompts.breakpoint)
            except ProcessFailed:
                time.sleep(0.1)
        raise ProcessFailed(f"the worker did not reach the store in {RECONNECT_TIMEOUT_S} s")


def run(cluster, model, work_dir):
    say("Starting one store and two workers ...")
    store = cluster.store(work_dir / "data")
    demo = Demo(cluster, None)
    worker1 = demo.start_worker(model, store)
    demo.prompts = Prompts(cluster, worker1.address)
    # Worker 2 has no memory pool, so everything that it reuses comes from the store.
    worker2 = demo.start_worker(model, store, "--pool-bytes", "0")
    say(f"Sending two prompts that share a prefix of {demo.prompts.breakpoint} tokens ...")
    demo.ask("Worker 1, cold", worker1, "A", "cold", "--wait-published")
    demo.ask("Worker 1, second prompt, cache off", worker1, "B", "cold", "--cache", "off")
    demo.ask("Worker 1, again", worker1, "A", "warm")
    demo.ask("Worker 1, second prompt", worker1, "B", "warm")
    demo.ask("Worker 2", worker2, "A", "warm")
    demo.ask("Worker 2, second prompt", worker2, "B", "warm")
    say("Restarting the store: its RAM is empty now ...")
    store.stop()
    store = cluster.store(work_dir / "data", listen=store.address)
    demo.wait_for_store(worker2)
    demo.ask("Worker 2, store restarted", worker2, "A", "warm")
    say("Killing worker 1 (SIGKILL) and starting another ...")
    worker1.kill()
    worker3 = demo.start_worker(model, store)
    demo.ask("Worker 3, replacing worker 1", worker3, "A", "warm")
    demo.ask("Worker 3, second prompt", worker3, "B", "warm")
    return demo


def good(row, min_speedup):
    if row["expected"] == "cold":
        return row["cached_tokens"] == 0
    return (row["cached_tokens"] > 0 and row["text_equal"] and row["logits_equal"]
            and row["speedup"] >= min_speedup)


TIERS = {"none": "-", "worker": "own memory", "gpu": "store, GPU", "host": "store, RAM",
         "disk": "store, disk"}


def print_table(rows, min_speedup):
    say("")
    say(" " * 42 + "tokens     taken           first    times  same   same")
    say("request" + " " * 32 + "reused/all     from         token (ms)  sooner  text   logits")
    for row in rows:
        cold = row["expected"] == "cold"
        yes = {True: "yes", False: "NO"}
        reused = f"{row['cached_tokens']}/{row['prompt_tokens']}"
        say(f"{row['name']:<36} {reused:>12}     {TIERS[row['source_tier']]:<12} "
            f"{row['ttft_ms']:>9.0f}  {'cold' if cold else format(row['speedup'], '.1f'):>6}  "
            f"{'-' if cold else yes[row['text_equal']]:<5}  "
            f"{'-' if cold else yes[row['logits_equal']]:<4}"
            f"{'' if good(row, min_speedup) else '   <-- FAILED'}")
    say("")


def closing(rows, prefix_tokens, ok, min_speedup):
    """Returns one sentence: the result of the demo, or the rows that failed."""
    warm = [row for row in rows if row["expected"] == "warm"]
    low, high = (f(row["speedup"] for row in warm) for f in (min, max))
    if ok:
        return (f"{prefix_tokens} tokens were computed once, on worker 1. {len(warm)} later "
                f"requests, on three workers, through a restart of the store and the loss of a "
                f"worker, reused them: the first token came {low:.0f} to {high:.0f} times sooner, "
                f"and every answer equals the cold one, bit for bit.")
    bad = [row["name"] for row in rows if not good(row, min_speedup)]
    return f"Failed: {'; '.join(bad)}."


def write_results(out_dir, demo, model, ok):
    out_dir.mkdir(parents=True, exist_ok=True)
    result = {"ok": ok, "model": str(model), "dtype": demo.prompts.dtype,
              "prefix_tokens": demo.prompts.breakpoint, "rows": demo.rows}
    (out_dir / "demo.json").write_text(json.dumps(result, indent=1) + "\n")
    (out_dir / "demo.svg").write_text(demo_picture.draw(demo.rows, demo.prompts.breakpoint))


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=pathlib.Path, default=ROOT / "models" / "gemma-3-270m.gguf",
                        help="Gemma 3: a Hugging Face checkpoint folder or a GGUF file")
    parser.add_argument("--keep", action="store_true", help="keep logs and data; print the folder")
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build" / "bin")
    parser.add_argument("--out-dir", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--min-speedup", type=float, default=MIN_SPEEDUP)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    for name in ("hearth-store", "hearth-worker", "hearthctl"):
        if not (arguments.bin_dir / name).exists():
            sys.exit(f"demo: {arguments.bin_dir / name} is missing: run ./hearth build first")
    if not arguments.model.is_file() and not (arguments.model / "config.json").is_file():
        sys.exit(f"demo: {arguments.model} must be a GGUF file or a folder with a config.json: "
                 "pass --model PATH")
    # SIGTERM raises SystemExit, so that the demo's processes are ended, as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *unused: sys.exit("demo: terminated"))
    work_dir = pathlib.Path(tempfile.mkdtemp(prefix="hearth-demo-"))
    try:
        with Cluster(arguments.bin_dir, work_dir) as cluster:
            demo = run(cluster, arguments.model.resolve(), work_dir)
    except ProcessFailed as failure:
        sys.exit(f"demo: {failure}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted")
    finally:
        if arguments.keep:
            say(f"Logs and data are in {work_dir}")
        else:
            subprocess.run(["rm", "-rf", str(work_dir)], check=False)
    ok = all(good(row, arguments.min_speedup) for row in demo.rows)
    print_table(demo.rows, arguments.min_speedup)
    write_results(arguments.out_dir, demo, arguments.model, ok)
    say(closing(demo.rows, demo.prompts.breakpoint, ok, arguments.min_speedup))
    say(f"Written: {arguments.out_dir / 'demo.json'}, {arguments.out_dir / 'demo.svg'}")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
