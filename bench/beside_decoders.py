"""A long prompt that comes while others decode: what it waits for, and what they wait for.

    .venv/bin/python bench/beside_decoders.py [--rounds 3] [--step-tokens 64,128,256] [--json FILE]

One worker of the class invariant, no store, no pool. In each round a prompt of 2,048 tokens is sent
alone, and then while eight requests decode; for each --step-tokens in turn, in the same run.
Printed for each: the prompt's time to first token alone and beside the eight, their ratio (the bar
of issue 13: below 3), and the gaps between two tokens of an answer, as the caller sees them: the
median while nothing else runs, the median and the largest while the prompt is computed. Medians of
the rounds, but the largest, which is the largest of all.
"""

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
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)

DECODERS, DECODER_PROMPT, SETTLED_TOKENS = 8, 32, 6


class Decoder:
    """One request that goes on until it is ended; when its tokens came."""

    def __init__(self, bin_dir, address, ids):
        self.times = []
        self.popen = subprocess.Popen(
            [str(pathlib.Path(bin_dir) / "hearthctl"), "generate", "--worker", address, "--wait",
             "10", "--token-ids", ",".join(map(str, ids)), "--max-new-tokens", "4000",
             "--ignore-eos", "--cache", "off", "--json"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.popen.stdout:
            if '"event":"token"' in line.replace(" ", ""):
                self.times.append(time.monotonic())

    def gaps(self, begin, end):
        """Of tokens that came in between, the one that ends after it included."""
        return [b - a for a, b in zip(self.times, self.times[1:]) if b > begin and a < end]

    def stop(self):
        self.popen.kill()
        self.popen.wait()
        self.reader.join()


def random_ids(source, count, vocab):
    return [2] + [source.randrange(1000, vocab) for _ in range(count - 1)]


def one_round(args, cluster, worker, source, vocab):
    def prefill():
        begin = time.monotonic()
        answer = cluster.generate(worker.address, random_ids(source, args.tokens, vocab), "--cache",
                                  "off")
        return answer["ttft_ms"], begin, time.monotonic()

    alone_ms, _, _ = prefill()
    decoders = [Decoder(args.bin, worker.address, random_ids(source, DECODER_PROMPT, vocab))
                for _ in range(DECODERS)]
    try:
        while min(len(decoder.times) for decoder in decoders) < SETTLED_TOKENS:
            time.sleep(0.02)
        quiet_from = time.monotonic()
        time.sleep(1.5)
        beside_ms, begin, end = prefill()
        time.sleep(0.5)
        quiet = [gap for decoder in decoders for gap in decoder.gaps(quiet_from, begin)]
        busy = [gap for decoder in decoders for gap in decoder.gaps(begin, end)]
    finally:
        for decoder in decoders:
            decoder.stop()
    return {"alone_ms": alone_ms, "beside_ms": beside_ms, "ratio": beside_ms / alone_ms,
            "quiet_ms": 1e3 * statistics.median(quiet), "busy_ms": 1e3 * statistics.median(busy),
            "worst_ms": 1e3 * max(busy)}


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=2048, help="of the prompt (default 2048)")
    parser.add_argument("--step-tokens", help="values of the worker's flag, by commas (default: "
                        "as the worker has it)")
    args = parser.parse_args()
    vocab = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]
    source = random.Random(3)
    steps = args.step_tokens.split(",") if args.step_tokens else ["default"]
    rounds = {step: [] for step in steps}
    for _ in range(args.rounds):
        for step in steps:  # in turns; a worker each, so that only one is there
            flags = [] if step == "default" else ["--step-tokens", step]
            with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
                worker = cluster.worker(args.model, "none", "--exactness", "invariant",
                                        "--pool-bytes", "0", "--max-running", DECODERS + 1, *flags)
                cluster.generate(worker.address, random_ids(source, 200, vocab))  # warm
                rounds[step].append(one_round(args, cluster, worker, source, vocab))
    print(f"{'step tokens':12}{'alone ms':>10}{'beside ms':>11}{'ratio':>7}"
          f"{'gap alone':>11}{'beside':>8}{'worst':>8}")
    for step, measured in rounds.items():
        median = {key: statistics.median(one[key] for one in measured) for key in measured[0]}
        worst = max(one["worst_ms"] for one in measured)
        print(f"{step:12}{median['alone_ms']:10.0f}{median['beside_ms']:11.0f}"
              f"{median['ratio']:7.2f}{median['quiet_ms']:11.1f}{median['busy_ms']:8.1f}"
              f"{worst:8.1f}")
    figures.write(args, rounds)


if __name__ == "__main__":
    main()
