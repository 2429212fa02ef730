"""Tokens that a worker guesses and verifies, beside none, and beside transformers' prompt look-up.

    .venv/bin/python bench/worker/guessed_tokens.py [--model DIR] [--reps 3] [--tokens 128]
                                                    [--speculate 15] [--no-peer] [--json FILE]

Prompts whose answer repeats them (a passage to be written again, a list and a program to be edited,
a summary), and texts that go on without repetition, greedy and drawn. By turns in one run: the
worker with --speculate 0, the worker with guesses, transformers' generate, and the same with
prompt_lookup_num_tokens=10, each --reps times, with some sleep between them. Of each the decoded
tokens a second by the clock and by the processor time of the whole process; a turn is a call with
all tokens less one with a single token. Printed are medians, and of the ratios those of a turn; the
steps, and how many guesses were right. Answers must be equal with and without guesses. Of
transformers drawn texts are left out; its threads sleep where they wait, as others may use the
machine.
"""

import os
import pathlib
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import figures  # noqa: E402  (path set above)
from hearth_procs import Cluster  # noqa: E402  (path set above)

QUIET_S = 0.3
LOOK_UP_TOKENS = 10  # of the peer, as its documentation has it

LIST = "\n".join(f"- {name}, born {year}, lives in {town}" for name, year, town in [
    ("Anna Weber", 1961, "Bremen"), ("Karl Schulz", 1974, "Kiel"), ("Maria Lang", 1980, "Ulm"),
    ("Peter Kraus", 1955, "Mainz"), ("Julia Frank", 1992, "Trier"), ("Otto Berger", 1948, "Jena"),
    ("Eva Sommer", 1988, "Bonn"), ("Hans Winter", 1969, "Worms")])
PROGRAM = '''def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
'''


def prompts():
    """name -> (text, sampling flags)."""
    story = (ROOT / "scripts/data/demo_text.txt").read_text()
    passage = " ".join(story.split()[:220])
    drawn = ("--temperature", "0.9", "--top-p", "0.95", "--seed", "3")
    return {
        "a passage again": (f"{passage}\n\nThe same passage once more:\n{passage[:40]}", ()),
        "a list, edited": (f"People:\n{LIST}\n\nThe same people, with their country:\n", ()),
        "a program, edited": (f"{PROGRAM}\n\n# The same with comments:\n", ()),
        "in short": (f"{passage}\n\nIn short, the passage says that", ()),
        "a story, greedy": (" ".join(story.split()[:150]), ()),
        "a story, drawn": (" ".join(story.split()[:150]), drawn),
        "a letter, drawn": ("Dear Sir,\n\nI am writing to you because", drawn),
    }


class Peer:
    """transformers, float32, greedy, with as many threads as cores."""

    def __init__(self, model):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        import torch
        from transformers import AutoModelForCausalLM
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()

    def generate(self, ids, count, **options):
        with self.torch.inference_mode():
            out = self.model.generate(self.torch.tensor([ids]), max_new_tokens=count,
                                      min_new_tokens=count, do_sample=False, **options)
        return out[0, len(ids):].tolist()

    def clocks(self):
        return time.perf_counter(), time.process_time()


class Worker:
    """A hearth-worker without a store."""

    def __init__(self, cluster, model):
        self.cluster = cluster
        self.server = cluster.worker(model, "none")
        self.last = None

    def ids(self, text):
        made = self.cluster.ctl("tokenize", "--worker", self.server.address, "--prompt", text)
        return made["token_ids"]

    def generate(self, ids, count, speculate, sampling):
        self.last = self.cluster.generate(self.server.address, ids, "--cache", "off", "--speculate",
                                          speculate, *sampling, max_new_tokens=count)
        return self.last["token_ids"]

    def clocks(self):
        stat = pathlib.Path(f"/proc/{self.server.popen.pid}/stat").read_text()
        ticks = sum(map(int, stat.split(")")[1].split()[11:13]))
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK")


def turn(side, ids, tokens, *how, **options):
    """Tokens a second after the first, by the clock and by processor time, and the tokens."""
    taken, answer = [], []
    for count in (1, tokens):
        time.sleep(QUIET_S)
        begin = side.clocks()
        answer = side.generate(ids, count, *how, **options)
        taken.append([end - start for start, end in zip(begin, side.clocks())])
    return [(tokens - 1) / (last - first) for first, last in zip(*taken)], answer


def measure_one(args, worker, peer, text, sampling):
    ids = worker.ids(text)
    rates = {}
    for _ in range(args.reps):
        off, plain = turn(worker, ids, args.tokens, 0, sampling)
        guessed, answer = turn(worker, ids, args.tokens, args.speculate, sampling)
        assert answer == plain, "other tokens"
        both = [("off", off), ("guessed", guessed)]
        if peer is not None and not sampling:
            both.append(("peer", turn(peer, ids, args.tokens)[0]))
            look_up = {"prompt_lookup_num_tokens": LOOK_UP_TOKENS}
            both.append(("look-up", turn(peer, ids, args.tokens, **look_up)[0]))
        for name, rate in both:
            rates.setdefault(name, []).append(rate)
    return rates


def report(name, rates, out):
    line = (f"{name:18} {out['decode_steps']:5}"
            f" {out['accepted_tokens']:5}/{out['drafted_tokens']:<5}")
    for clock in (0, 1):
        for plain, faster in (("off", "guessed"), ("peer", "look-up")):
            if plain not in rates:
                continue
            first = [rate[clock] for rate in rates[plain]]
            second = [rate[clock] for rate in rates[faster]]
            ratio = statistics.median(b / a for a, b in zip(first, second))
            line += (f" | {statistics.median(first):6.1f} {statistics.median(second):6.1f}"
                     f" {ratio:5.2f}")
    print(line, flush=True)
    return {"rates": rates, "steps": out["decode_steps"], "drafted": out["drafted_tokens"],
            "accepted": out["accepted_tokens"]}


def main():
    parser = figures.flags(__doc__)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--speculate", type=int, default=15)
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--only", help="prompts whose name has this")
    args = parser.parse_args()
    result = {}
    with tempfile.TemporaryDirectory() as work, Cluster(args.bin, work) as cluster:
        worker = Worker(cluster, args.model)
        peer = None if args.no_peer else Peer(args.model)
        print("tokens a second: off, guessed, ratio | transformers, look-up, ratio; by the clock,"
              " then by processor time\n"
              f"{'':18} {'steps':>5} right/guessed")
        for name, (text, sampling) in prompts().items():
            if args.only and args.only not in name:
                continue
            result[name] = report(name, measure_one(args, worker, peer, text, sampling),
                                  worker.last)
    figures.write(args, result)


if __name__ == "__main__":
    main()
