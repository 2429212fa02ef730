"""What grammars cost while a worker generates: the time between tokens, steps, and neighbours.

    .venv/bin/python bench/grammar_load.py MODEL [--turns 5]

Prints, for a worker on loopback and the five schemas of bench/grammar_schemas.json:
- the time between tokens without guesses, with a schema and without, as medians of turns, and their
  ratio
- tokens for each step of eight requests at the same time, with guesses
- the 99th percentile of the time between tokens of one caller, alone and while four others send the
  schemas of tests/worker/text/hostile_schemas_test.py, and the longest time of an answer to these
Needs a quiet machine.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "worker" / "text")]
from hearth_procs import Cluster  # noqa: E402  (path set above)
import hostile_schemas_test  # noqa: E402

NAMES = ("weather", "invoice", "ui", "event", "issue")
TOKENS, NEIGHBOUR_TOKENS, CALLERS = 96, 400, 4


class Load:
    def __init__(self, model, folder, cluster):
        self.cluster = cluster
        self.worker = cluster.worker(model, "none", "--speculate", 0, pages=("http",))
        schemas = json.loads((ROOT / "bench" / "grammar_schemas.json").read_text())
        self.files = {}
        for name in NAMES:
            self.files[name] = folder / f"{name}.json"
            self.files[name].write_text(json.dumps(schemas[name]))
        self.prompts = {name: f"Write JSON. The schema is {json.dumps(schemas[name])}.\nJSON: "
                        for name in NAMES}

    def generate(self, name, *flags):
        return self.cluster.ctl("generate", "--worker", self.worker.address, "--prompt",
                                self.prompts[name], *flags)

    def between_tokens(self, name, is_constrained):
        """Returns (ms between tokens, tokens). The answers have the same number of tokens."""
        flags = ["--max-new-tokens", TOKENS]
        if is_constrained:
            flags += ["--json-schema", self.files[name]]
        answer = self.generate(name, *flags)
        count = len(answer["token_ids"])
        return (answer["total_ms"] - answer["ttft_ms"]) / max(count - 1, 1), count

    def compare(self, turns):
        ratios = []
        for name in NAMES:
            pairs = [(self.between_tokens(name, False), self.between_tokens(name, True))
                     for _ in range(turns)]
            free, bound = (statistics.median(pair[i][0] for pair in pairs) for i in range(2))
            ratios.append(bound / free)
            print(f"{name}: {free:.2f} ms between {pairs[0][0][1]} tokens, {bound:.2f} ms between "
                  f"{pairs[0][1][1]} tokens with the schema: {bound / free:.3f}", flush=True)
        print(f"all: median ratio {statistics.median(ratios):.3f}, highest {max(ratios):.3f}")

    def batch(self):
        names = [NAMES[i % len(NAMES)] for i in range(8)]
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            answers = list(pool.map(lambda name: self.generate(
                name, "--json-schema", self.files[name], "--max-new-tokens", TOKENS, "--speculate",
                15), names))
        tokens = sum(len(answer["token_ids"]) for answer in answers)
        steps = sum(answer["decode_steps"] + 1 for answer in answers)
        each = [len(answer["token_ids"]) / (answer["decode_steps"] + 1) for answer in answers]
        print(f"batch of 8: {tokens} tokens in {steps} steps of requests: {tokens / steps:.2f} "
              f"tokens a step, {min(each):.2f} to {max(each):.2f}", flush=True)

    def gaps(self):
        """Returns the seconds between the tokens of one caller's stream."""
        body = {"prompt": "Once upon a time", "max_tokens": NEIGHBOUR_TOKENS, "ignore_eos": True,
                "temperature": 0, "stream": True}
        times = []
        with self.post(body) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    times.append(time.monotonic())
        return [later - earlier for earlier, later in zip(times, times[1:])]

    def post(self, body):
        return urllib.request.urlopen(urllib.request.Request(
            self.worker.url("http") + "/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"}), timeout=120)

    def send_hostile(self, schemas, stop, longest):
        """Sends the schemas in turn. Puts (seconds, name, status) of each answer into `longest`."""
        for number in range(1 << 30):
            if stop.is_set():
                return
            name, text = schemas[number % len(schemas)]
            start = time.monotonic()
            try:
                with self.post({"prompt": "a", "max_tokens": 1, "guided_json": text}) as answer:
                    answer.read()
                    status = answer.status
            except urllib.error.HTTPError as error:
                error.read()
                status = error.code
            longest.append((time.monotonic() - start, name, status))

    def neighbours(self):
        schemas = list(hostile_schemas_test.schemas().items())
        alone = quantile(self.gaps(), 0.99)
        stop, longest = threading.Event(), []
        threads = [threading.Thread(target=self.send_hostile, args=(
            schemas[i * len(schemas) // CALLERS:] + schemas[:i * len(schemas) // CALLERS], stop,
            longest)) for i in range(CALLERS)]
        for thread in threads:
            thread.start()
        try:
            beside = quantile([gap for _ in range(3) for gap in self.gaps()], 0.99)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        print(f"a neighbour's p99 between tokens: {alone * 1e3:.1f} ms alone, "
              f"{beside * 1e3:.1f} ms beside {CALLERS} callers with "
              f"{len(longest)} hostile schemas: {beside / alone:.2f}; longest answers to these:")
        for seconds, name, status in sorted(longest, reverse=True)[:5]:
            print(f"  {seconds * 1e3:.0f} ms, status {status}: {name}")
        print(f"  resident: {self.worker.status_field('VmRSS') >> 10} MiB")


def quantile(values, q):
    return sorted(values)[int(q * (len(values) - 1))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", choices=("compare", "batch", "neighbours"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        with Cluster(ROOT / "build/bin", folder / "processes") as cluster:
            load = Load(args.model.resolve(), folder, cluster)
            load.generate("weather", "--json-schema", load.files["weather"])  # builds the tables
            if args.only in (None, "compare"):
                load.compare(args.turns)
            if args.only in (None, "batch"):
                load.batch()
            if args.only in (None, "neighbours"):
                load.neighbours()


if __name__ == "__main__":
    main()
